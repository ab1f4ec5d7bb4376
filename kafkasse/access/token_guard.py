"""The protocol of guards that check a token."""

from __future__ import annotations

from typing import Protocol

from kafkasse.access.visitor import Visitor


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
