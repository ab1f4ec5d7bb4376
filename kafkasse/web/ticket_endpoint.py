"""POST /-/ticket?path=/me/orders: exchanges the token of a request for a ticket, which may be part of a URL.

`path` is the path of a stream below the blueprint's prefix. It is in the query, so that a preflight request has it too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response, request

from kafkasse.errors import BadRequest, InvalidParameter, MethodNotAllowed
from kafkasse.web.headers import DEFAULT_HEADERS
from kafkasse.web.service import RULE_OPTIONS, StreamService
from kafkasse.web.target import TICKET_ENDPOINT, TICKET_PATH, find_target

if TYPE_CHECKING:  # the package cryptography is optional
    from kafkasse.access.tickets import Tickets

METHODS = "POST, OPTIONS"


def add_tickets(blueprint: Blueprint, service: StreamService, tickets: Tickets) -> None:
    """Add the endpoint to a blueprint."""

    def view(**_: str) -> Any:  # the parameters are those of the app's prefix
        return service.responder.answer(lambda: _issue(service, tickets), METHODS)

    blueprint.add_url_rule(TICKET_PATH, TICKET_ENDPOINT, view, **RULE_OPTIONS)


def _issue(service: StreamService, tickets: Tickets) -> Response:
    from kafkasse.access.tickets import LIFETIME_S

    if request.method != "POST":
        raise MethodNotAllowed("Request a ticket with POST.", allow=METHODS)
    target = find_target(service.routes, TICKET_PATH)
    if target is None:
        raise InvalidParameter("path must be the path of a stream. Example: POST /-/ticket?path=/me/orders")
    if not target.route.access:
        raise BadRequest("This stream is public, so it needs no ticket.")
    visitor = service.identify(target.route, target.parameters)
    body = {"ticket": tickets.issue(visitor, target.path), "expires_in": LIFETIME_S}
    return Response(json.dumps(body) + "\n", content_type="application/json", headers=DEFAULT_HEADERS)
