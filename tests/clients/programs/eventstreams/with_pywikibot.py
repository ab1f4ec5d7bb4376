"""Print the changes of streams with pywikibot, which builds the URL itself. Argument: the URL that it must build."""

import json
import os
import sys
from urllib.parse import parse_qs, urlsplit

os.environ["PYWIKIBOT_NO_USER_CONFIG"] = "2"

from pywikibot import Timestamp
from pywikibot.comms.eventstreams import EventStreams

url = urlsplit(sys.argv[1])


class Site:
    """The members of pywikibot's site that its EventStreams uses. A real site needs a wiki."""

    sitename, code = "example:en", "en"

    def username(self) -> None: ...

    def eventstreams_host(self) -> str:
        return f"{url.scheme}://{url.netloc}"

    def eventstreams_path(self) -> str:
        return url.path.rpartition("/")[0]


streams = url.path.rpartition("/")[2].split(",")
since = Timestamp.fromISOformat(parse_qs(url.query)["since"][0])
changes = EventStreams(streams=streams, since=since, site=Site())
assert changes.url == sys.argv[1], changes.url
changes.register_filter(type=("edit", "new"), ftype="any")
for change in changes:
    print(json.dumps(change), flush=True)
