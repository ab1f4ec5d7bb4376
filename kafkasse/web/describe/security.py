"""How a client sends its credentials, as security schemes of OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkasse.route import Route

Scheme = dict[str, str]

TICKET = "ticket-in-query"  # with hyphens, because no guard has such a name
_TICKET = {
    "type": "apiKey",
    "in": "query",
    "name": "ticket",
    "description": "A ticket from POST /-/ticket. It opens one stream once, for clients that cannot set headers.",
}


def schemes_of(route: Route, guards: Mapping[str, Any], tickets: bool) -> dict[str, Scheme]:
    """Return the security schemes of a route, by name; none if it is public. `guards` and `tickets` are the settings."""
    schemes: dict[str, Scheme] = {}
    for grant in route.access:
        schemes |= _schemes(grant.guard, guards[grant.guard]) | ({TICKET: _TICKET} if tickets else {})
    return schemes


def _schemes(name: str, guard: Any) -> dict[str, Scheme]:
    if callable(guard):
        login = "The login of the app that contains the streams; usually its session cookie."
        return {name: {"type": "apiKey", "in": "cookie", "name": "session", "description": login}}
    if "jwt" in guard:
        schemes = {name: {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    else:
        schemes = {name: {"type": "http", "scheme": "bearer", "description": "An API key."}}
    if "cookie" in guard:
        schemes[f"{name}-cookie"] = {"type": "apiKey", "in": "cookie", "name": guard["cookie"]}
    return schemes
