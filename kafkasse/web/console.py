"""The web console: a page that lists the streams, shows their events, and shows operators the state of the server.

The page is static and contains no data. Its scripts read the catalog, the streams and the endpoints for operators with the
credentials of its user, so the console shows nothing that the user cannot read without it. All URLs in its files are
relative, so that it works under any prefix, including one that only a proxy knows.

    /                         the page, for browsers; programs get the catalog as JSON
    /-/console/<file>         its scripts and styles
    /-/console/features       what this server offers to the visitor
    /-/console/check?path=…   checks a request for a stream, and opens no stream
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from flask import Response, current_app, request, send_from_directory

from kafkasse.errors import KafkasseError
from kafkasse.web.pages import ASSETS, CLIENT, PAGE, add_headers
from kafkasse.web.pages import NAME as DEMO
from kafkasse.web.responder import json_response
from kafkasse.web.service import StreamService

FILES = ASSETS / "console"
_PAGE = FILES / "index.html"
# The demo's page uses these files, too.
SHARED = {
    file.name: file
    for file in (CLIENT, PAGE / "assets/pipelines.js", PAGE / "assets/shared.css", PAGE / "assets/slots.js")
}
PATH = "/-/console/"
CHECK_PATH = f"{PATH}check"


class Console:
    """Responds to the requests of the console of one blueprint."""

    def __init__(self, service: StreamService) -> None:
        self._service = service

    def page(self) -> Response:
        """Return the page. The root's URL may lack the final slash, so its last segment is added to the page's links."""
        last = request.path.rpartition("/")[2]
        root = f"{quote(last)}/" if last else "./"
        response = Response(
            _PAGE.read_text("utf-8").replace('"./', f'"{root}'), content_type="text/html; charset=utf-8"
        )
        response.set_etag(hashlib.sha256(response.data).hexdigest()[:32])
        response.make_conditional(request)
        return add_headers(response)

    def file(self) -> Response:
        """Return a script or a style."""
        name = (request.view_args or {})["file"]
        folder = SHARED[name].parent if name in SHARED else FILES / "assets"
        return add_headers(send_from_directory(folder, name))

    def features(self) -> Response:
        """Return what this server offers to the visitor, such as tickets and the endpoints for operators."""
        operate = self._service.may_operate
        features = {
            "guards": bool(self._service.config.access.guards),
            "tickets": self._service.tickets is not None,
            "operations": operate() if operate else None,
            "demo": DEMO in current_app.blueprints,
        }
        return json_response(features)

    def check(self) -> Response:
        """Return the problem of a request for a stream, such as an invalid filter, or null.

        The status is 200 in both cases: the console sends a request while its user types, and each rejected request would
        count towards max_rejections_per_s.
        """
        try:
            self._service.check_query(CHECK_PATH)
        except KafkasseError as error:
            return json_response({"problem": error.problem()})
        return json_response({"problem": None})
