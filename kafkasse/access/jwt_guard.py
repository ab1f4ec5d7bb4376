"""JSON Web Tokens (RFC 7519): checks the signature and the claims. This module does not know where the keys come from.

PyJWT checks the signature and the registered claims. This module adds what PyJWT leaves to its caller: a limit on the size,
the choice of the key, and no support for critical extensions. Keys in the token's own header (jwk, jku, x5u) are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt

from kafkasse.access.keys import KeySource
from kafkasse.access.visitor import InvalidToken, Visitor
from kafkasse.settings import JwtSettings

MAX_TOKEN_BYTES = 8192
MAX_NAME_CHARS = 200
MAX_TIME = 253_402_300_800  # the year 10,000

_REASONS: Mapping[type[Exception], str] = {
    jwt.ExpiredSignatureError: "has expired",
    jwt.ImmatureSignatureError: "is not valid yet",
    jwt.InvalidAudienceError: "is for another audience",
    jwt.InvalidIssuerError: "has another issuer",
    jwt.MissingRequiredClaimError: "does not contain the claims exp, iss and aud",
    jwt.InvalidSignatureError: "has a wrong signature",
}


class JwtGuard:
    """The guard `name`, which accepts the tokens of one issuer. `settings` is its setting `jwt`."""

    def __init__(self, name: str, settings: Mapping[str, Any], keys: KeySource) -> None:
        self._name = name
        self._keys = keys
        self._algorithms = frozenset(settings["algorithms"])
        self._issuer: str = settings["issuer"]
        self._audience = settings["audience"]
        self._leeway_s: float = settings.get("leeway_s", JwtSettings.leeway_s)

    def identify(self, token: str) -> Visitor:
        """Return the subject of a token.

        Raises:
            InvalidToken: the token is not valid.
            AccessUnavailable: the keys cannot be fetched.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken(f"The token is longer than {MAX_TOKEN_BYTES} bytes.")
        try:
            claims = self._verified(token)
        except (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
            reason = _REASONS.get(type(error), "is not a valid JSON Web Token of this issuer")
            raise InvalidToken(f"The token {reason}.") from None
        # PyJWT has accepted a token for leeway_s after it expired, so its stream may last as long.
        expires_at = min(int(claims["exp"]), MAX_TIME) + self._leeway_s
        return Visitor(self._name, str(claims.get("sub", ""))[:MAX_NAME_CHARS], claims, expires_at)

    def is_current(self, visitor: Visitor) -> bool:
        """Return True: a token is valid until it expires."""
        return True

    def _verified(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if "crit" in header:  # PyJWT accepts the extension b64, which tokens must not use (RFC 7797)
            raise InvalidToken("The token uses a critical extension, which this server does not support.")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise InvalidToken("The algorithm of the token is not allowed.")
        claims: dict[str, Any] = jwt.decode(
            token,
            self._keys.find(kid, algorithm),
            algorithms=[algorithm],
            issuer=self._issuer,
            audience=self._audience,
            leeway=self._leeway_s,
            options={"require": ["exp", "iss", "aud"], "enforce_minimum_key_length": True},
        )
        return claims
