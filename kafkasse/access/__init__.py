"""Access: who may read a route. This package does not know HTTP, feeds or Kafka.

    visitor       the person or program that reads a stream, and the protocol of a guard that checks a token
    grant         which visitors may read a route
    guards        the guards of a configuration
    jwt_guard     JSON Web Tokens, with the keys of their issuers (keys)
    api_keys      API keys
    tickets       short-lived text that stands for a visitor in a URL

The modules jwt_guard, keys and tickets need PyJWT and cryptography. They are imported only if the configuration uses them.
"""

from kafkasse.access.grant import PUBLIC, Grant, grants
from kafkasse.access.guards import Guards, Login
from kafkasse.access.visitor import ANONYMOUS, InvalidToken, Visitor

__all__ = ["ANONYMOUS", "PUBLIC", "Grant", "Guards", "InvalidToken", "Login", "Visitor", "grants"]
