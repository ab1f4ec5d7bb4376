"""The person or program that reads a stream, and the protocol of guards that identify it by a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person or program that reads a stream, as a guard has identified it.

    Attributes:
        guard: the name of the guard; "" for a visitor of a public route.
        name: the name for logs, such as the subject of a token; "" if there is none.
        claims: the claims of the token, to which filters and path parameters may refer. They may be personal data.
        expires_at: when the visitor must be identified again, in seconds since the epoch. The stream ends at this time.
        key_hash: the hash of the visitor's API key; "" if it has none. The stream ends when the key is revoked.
    """

    guard: str = ""
    name: str = ""
    claims: Mapping[str, Any] = field(default_factory=dict, repr=False)
    expires_at: float = float("inf")
    key_hash: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, Real):
            kind = type(self.expires_at).__name__
            raise TypeError(
                f"Visitor: expires_at must be a number of seconds since the epoch, not a value of type {kind}"
            )


ANONYMOUS = Visitor()


class InvalidToken(Exception):
    """A guard rejects a token. The message is a sentence for the client, and does not quote the token."""


class TokenGuard(Protocol):
    """Identifies visitors by a token."""

    def identify(self, token: str) -> Visitor:
        """Return the visitor whom the token identifies.

        Raises:
            InvalidToken: the token is not valid.
            AccessUnavailable: the token cannot be checked now.
        """

    def is_current(self, visitor: Visitor) -> bool:
        """Return whether a visitor that this guard identified earlier may continue to read."""
