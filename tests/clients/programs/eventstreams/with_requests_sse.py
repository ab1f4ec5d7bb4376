"""Print the changes of a stream, as the Python example in the documentation of EventStreams does. Argument: the URL."""

import json
import sys

from requests_sse import EventSource

with EventSource(sys.argv[1], headers={"User-Agent": "example (bot@example.org)"}) as stream:
    for event in stream:
        if event.type == "message":
            change = json.loads(event.data)
            if change["meta"]["domain"] != "canary":
                print(json.dumps(change), flush=True)
