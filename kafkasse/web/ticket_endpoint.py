"""POST /-/ticket?path=/me/orders: exchanges the token of a request for a ticket, which may be part of a URL.

`path` is the path of a stream below the blueprint's prefix. It is in the query, so that a preflight request has it too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from flask import Request, Response, current_app
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from kafkasse.access import Visitor
from kafkasse.config import Config
from kafkasse.errors import BadRequest, ConfigurationError, InvalidParameter, MethodNotAllowed
from kafkasse.route import Route
from kafkasse.web.headers import DEFAULT_HEADERS

if TYPE_CHECKING:  # the package cryptography is optional
    from kafkasse.access.tickets import Tickets

PATH = "/-/ticket"
ENDPOINT = "-ticket"  # no route can have this name
METHODS = "POST, OPTIONS"


class Target(NamedTuple):
    """The stream for which a client requests a ticket.

    Attributes:
        route: its route.
        parameters: the path parameters of the route.
        path: its complete path.
    """

    route: Route
    parameters: Mapping[str, Any]
    path: str


def open_tickets(config: Config, name: str) -> Tickets | None:
    """Return the tickets of the blueprint `name`, or None if the configuration does not use tickets.

    Raises:
        ConfigurationError: the package cryptography is missing, or the secret cannot be read or stored.
    """
    settings = config.access
    if not settings.tickets:
        return None
    try:
        from kafkasse.access.tickets import open_tickets
    except ImportError as error:
        raise ConfigurationError(f'tickets needs the package {error.name}: run pip install "kafkasse[jwt]".') from None
    return open_tickets(settings.guards, settings.ticket_secret_file, name, config.hooks.logger)


def target(request: Request, routes: Mapping[str, Route], own_path: str = PATH) -> Target | None:
    """Return the stream that the parameter `path` names, or None if there is no such stream.

    `own_path` is the path of the request below the blueprint's prefix.
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
    if blueprint != request.endpoint.rpartition(".")[0] or name not in routes:  # type: ignore[union-attr]
        return None
    return Target(routes[name], parameters, path)


def check_request(request: Request, found: Target | None) -> Target:
    """Return the target of a valid request for a ticket.

    Raises:
        MethodNotAllowed: the method is not POST.
        InvalidParameter: the parameter `path` is missing, or names no stream.
        BadRequest: the stream is public.
    """
    if request.method != "POST":
        raise MethodNotAllowed("Request a ticket with POST.", allow=METHODS)
    if found is None:
        raise InvalidParameter("path must be the path of a stream. Example: POST /-/ticket?path=/me/orders")
    if not found.route.access:
        raise BadRequest("This stream is public, so it needs no ticket.")
    return found


def response(tickets: Tickets, visitor: Visitor, path: str) -> Response:
    """Return the response with a new ticket."""
    from kafkasse.access.tickets import LIFETIME_S

    body = {"ticket": tickets.issue(visitor, path), "expires_in": LIFETIME_S}
    return Response(json.dumps(body) + "\n", content_type="application/json", headers=DEFAULT_HEADERS)
