"""The person or program that reads a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


ANONYMOUS = Visitor()
