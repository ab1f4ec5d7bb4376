"""How a client sends its credentials, as security schemes of OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkasse.web.describe.streams import StreamDescription

Scheme = dict[str, str]

TICKET = "ticket-in-query"  # with hyphens, because no guard has such a name
_TICKET = {
    "type": "apiKey",
    "in": "query",
    "name": "ticket",
    "description": "A ticket from POST /-/ticket. It opens one stream once, for clients that cannot set headers.",
}


def security_schemes(guards: Mapping[str, Any], tickets: bool) -> dict[str, dict[str, Scheme]]:
    """Return the security schemes of each guard, by name. A client needs one of them.

    Args:
        guards: the setting `guards`.
        tickets: the setting `tickets`.
    """
    return {name: _schemes(name, guard) | ({TICKET: _TICKET} if tickets else {}) for name, guard in guards.items()}


def schemes_of(stream: StreamDescription, guards: Mapping[str, Mapping[str, Scheme]]) -> dict[str, Scheme]:
    """Return the security schemes of a stream, by name; none if the stream is public."""
    return {} if stream.is_public else {name: each for guard in stream.access for name, each in guards[guard].items()}


def _schemes(name: str, guard: Any) -> dict[str, Scheme]:
    if callable(guard):
        login = "The login of the app that contains the streams; usually its session cookie."
        return {name: {"type": "apiKey", "in": "cookie", "name": "session", "description": login}}
    if "jwt" in guard:
        found = {name: {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    else:
        found = {name: {"type": "http", "scheme": "bearer", "description": "An API key."}}
    if "cookie" in guard:
        found[f"{name}-cookie"] = {"type": "apiKey", "in": "cookie", "name": guard["cookie"]}
    return found
