"""Access: who may read a route. This package does not know HTTP, feeds or Kafka.

    visitor       the person or program that reads a stream
    grant         which visitors may read a route
    guards        the guards of a configuration
    token_guard   the protocol of a guard that checks a token: jwt_guard (with keys) or api_keys
    tickets       short-lived text that stands for a visitor in a URL

The modules jwt_guard, keys and tickets need PyJWT and cryptography. They are imported only if the configuration uses them.
"""

from kafkasse.access.grant import PUBLIC, Grant, grants
from kafkasse.access.guards import Guards, Login, challenges
from kafkasse.access.token_guard import InvalidToken
from kafkasse.access.visitor import ANONYMOUS, Visitor

__all__ = [
    "ANONYMOUS",
    "PUBLIC",
    "Grant",
    "Guards",
    "InvalidToken",
    "Login",
    "Visitor",
    "challenges",
    "grants",
]
