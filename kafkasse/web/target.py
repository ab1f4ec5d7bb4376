"""The stream that the query of a request names, such as that of a ticket: ?path=/me/orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import current_app, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from kafkasse.route import Route

TICKET_ENDPOINT = "-ticket"  # no route can have this name
TICKET_PATH = "/-/ticket"


class Target(NamedTuple):
    """A stream: its route, the path parameters of the route, and its complete path."""

    route: Route
    parameters: Mapping[str, Any]
    path: str


def find_target(routes: Mapping[str, Route], own_path: str) -> Target | None:
    """Return the stream that the parameter `path` of the current request names, or None if there is no such stream.

    Args:
        routes: the routes of the blueprint by name.
        own_path: the path of the request below the blueprint's prefix.
    """
    adapter = current_app.create_url_adapter(request)
    path = request.args.get("path", "")
    if adapter is None or not path.startswith("/"):
        return None
    path = request.path.removesuffix(own_path) + path
    try:
        endpoint, parameters = adapter.match(path, "GET")
    except (HTTPException, RequestRedirect):
        return None
    blueprint, _, name = endpoint.rpartition(".")
    if blueprint != (request.endpoint or "").rpartition(".")[0] or name not in routes:
        return None
    return Target(routes[name], parameters, path)
