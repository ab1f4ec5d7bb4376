"""Identifies the visitor of a request: finds its token, calls the guards of its route, and checks the route's grants.

A token arrives in the Authorization header, in a cookie, or as a ticket in the URL; see docs/access.md. This module opens no
streams.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Request

from kafkasse.access import ANONYMOUS, Guards, InvalidToken, Visitor
from kafkasse.config import Config
from kafkasse.errors import (
    AccessUnavailable,
    BadRequest,
    ConfigurationError,
    Forbidden,
    InvalidParameter,
    KafkasseError,
    Unauthorized,
)
from kafkasse.route import Route
from kafkasse.web.headers import CorsPolicy

if TYPE_CHECKING:  # the package cryptography is optional
    from kafkasse.access.tickets import Tickets

TICKET = "ticket"
# Clients of other servers put a token into these parameters.
TOKEN_PARAMETERS = frozenset({"access_token", "id_token", "token", "jwt", "api_key", "apikey", "authorization"})
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_LOOKS_LIKE_A_TOKEN = re.compile(r"kafkasse_|ey[A-Za-z0-9_-]*\.")  # an API key, or a JSON Web Token
_TICKET_ADVICE = ", or request a ticket for the URL with POST /-/ticket"


def open_tickets(config: Config, name: str) -> Tickets | None:
    """Return the tickets of the blueprint `name`, or None if the configuration does not use tickets.

    Raises:
        ConfigurationError: the package cryptography is missing, or the secret cannot be read or stored.
    """
    settings = config.access
    if not settings.tickets:
        return None
    try:
        from kafkasse.access import tickets
    except ImportError as error:
        raise ConfigurationError(f'tickets needs the package {error.name}: run pip install "kafkasse[jwt]".') from None
    return tickets.open_tickets(settings.guards, settings.ticket_secret_file, name, config.hooks.logger)


class Identifier:
    """Identifies the visitors of requests."""

    def __init__(self, guards: Guards, tickets: Tickets | None) -> None:
        self._guards = guards
        self._tickets = tickets

    def identify(self, request: Request, route: Route, parameters: Mapping[str, str], cors: CorsPolicy) -> Visitor:
        """Return the visitor of a request, who may read this route with these path parameters.

        `cors` says which pages may send a cookie.

        Raises:
            BadRequest: the URL contains a token, or the Authorization header is malformed.
            Unauthorized: no guard of the route knows the visitor.
            Forbidden: the visitor is known and may not read this route, or a page of another origin sent the cookie.
            AccessUnavailable: a token cannot be checked now.
        """
        if not route.access:
            return ANONYMOUS
        self._check_url(request)
        guards = list(dict.fromkeys(grant.guard for grant in route.access))
        is_known = False
        failures: list[InvalidToken | AccessUnavailable] = []
        asked = [partial(self._ask, guard, request, cors) for guard in guards]
        for find_visitor in [partial(self._redeem, request)] if TICKET in request.args else asked:
            try:
                visitor = find_visitor()
                if visitor is not None and visitor.expires_at <= time.time():
                    raise InvalidToken("Your access has expired.")
            except (InvalidToken, AccessUnavailable) as error:
                failures.append(error)
                continue
            if visitor is None:
                continue
            is_known = True
            grants = [grant for grant in route.access if grant.guard == visitor.guard]
            if any(grant.admits(visitor.claims, parameters) for grant in grants):
                return visitor
        if is_known:
            raise Forbidden("You may not read this stream.", self._guards.challenges(guards, "insufficient_scope"))
        # A token in the header, or in the cookie of any guard, which no guard of this route has checked.
        has_token = bool(_bearer_header(request)) or any(map(request.cookies.get, self._guards.cookies.values()))
        if not failures and has_token:
            failures.append(InvalidToken("No guard of this stream accepts these credentials."))
        raise self._failure(failures, guards)

    def _check_url(self, request: Request) -> None:
        is_token = _LOOKS_LIKE_A_TOKEN.match(request.args.get(TICKET, ""))
        if is_token or any(name.lower() in TOKEN_PARAMETERS for name in request.args):
            raise BadRequest(
                "A URL must not contain a token, because URLs are logged. Send the token in the Authorization header"
                f"{_TICKET_ADVICE if self._tickets else ''}. If others can read the logs of this URL, replace the token."
            )

    def _redeem(self, request: Request) -> Visitor | None:
        if self._tickets is None:
            raise InvalidParameter(
                "This server issues no tickets (tickets: false). Send the token in a header or a cookie."
            )
        visitor = self._tickets.redeem(request.args[TICKET], request.path)
        if not self._guards.is_current(visitor):
            raise InvalidToken("The API key of the ticket was revoked.")
        return visitor

    def _ask(self, guard: str, request: Request, cors: CorsPolicy) -> Visitor | None:
        """Return the visitor that a guard identifies, or None if the request has no token for this guard."""
        if (login := self._guards.logins.get(guard)) is not None:
            visitor = login(request)
            if not isinstance(visitor, Visitor | None):
                returned = type(visitor).__name__
                raise TypeError(f"The guard {guard} must return a kafkasse.Visitor or None, not {returned}")
            # With Flask-Login, the app calls end_streams("7") even if the guard has returned the number 7.
            return None if visitor is None else replace(visitor, guard=guard, name=str(visitor.name))
        token = _bearer(request) or _cookie(request, self._guards.cookies.get(guard), cors)
        return None if token is None else self._guards.tokens[guard].identify(token)

    def _failure(self, failures: Sequence[InvalidToken | AccessUnavailable], guards: Sequence[str]) -> KafkasseError:
        """Return the error of a request whose visitor no guard knows."""
        for failure in failures:
            if isinstance(failure, AccessUnavailable):
                return failure
        if not failures:
            return Unauthorized("This stream needs a token or a login.", self._guards.challenges(guards))
        detail = " ".join(dict.fromkeys(map(str, failures)))
        unauthorized = Unauthorized(detail, self._guards.challenges(guards, "invalid_token", detail))
        unauthorized.reason = detail
        return unauthorized


def _bearer(request: Request) -> str | None:
    """Return the token in the Authorization header, or None if there is none."""
    if not (header := _bearer_header(request)):
        return None
    if (match := _BEARER.fullmatch(header)) is None:  # the server joins repeated headers with a comma
        raise BadRequest("Send one Authorization header, with the word Bearer, a space and the token.")
    return match[1]


def _bearer_header(request: Request) -> str:
    """Return the Authorization header, or "" if it has another scheme: a proxy may add a login of its own."""
    header = request.headers.get("Authorization", "").strip()
    return header if header.lower().startswith("bearer") else ""


def _cookie(request: Request, name: str | None, cors: CorsPolicy) -> str | None:
    """Return the token in a cookie, or None if there is none.

    Browsers add cookies to the requests of all pages, so this checks which page sent the request.

    Raises:
        Forbidden: a page of an origin that may not send cookies sent the request.
    """
    token = request.cookies.get(name) if name else None
    if token and not _is_from_trusted_page(request, cors):
        raise Forbidden("Pages of this origin may not use the cookie of this server (cors_origins, cors_credentials).")
    return token or None


def _is_from_trusted_page(request: Request, cors: CorsPolicy) -> bool:
    origin = request.headers.get("Origin")
    if cors.allows_credentials(origin):
        return True
    # Browsers send Origin only with some requests, and Sec-Fetch-Site with all. Scripts cannot set either of them.
    if site := request.headers.get("Sec-Fetch-Site"):
        return site in ("same-origin", "none")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc == request.host
    except ValueError:  # such as "http://["; browsers send no such origin
        return False
