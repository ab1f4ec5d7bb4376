"""The guards of a configuration: create them, and find the visitor of a request.

This module does not know HTTP. The caller passes in the tokens of a request, and calls the guards of the application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kafkasse.access.api_keys import ApiKeys
from kafkasse.access.visitor import TokenGuard, Visitor
from kafkasse.errors import ConfigurationError

Login = Callable[[Any], Visitor | None]  # a guard of the application; receives Flask's request


class Guards:
    """The guards of a configuration by name: those that check a token, and the logins of the application.

    Attributes:
        cookies: the cookie that may contain the token of a guard.

    Raises:
        ConfigurationError: a file cannot be read, or a package is missing.
    """

    def __init__(self, settings: Mapping[str, Any], logger: logging.Logger) -> None:
        self.logins: dict[str, Login] = {name: guard for name, guard in settings.items() if callable(guard)}
        by_token = {name: guard for name, guard in settings.items() if name not in self.logins}
        self.tokens: dict[str, TokenGuard] = {name: _guard(name, guard, logger) for name, guard in by_token.items()}
        self.cookies: dict[str, str] = {name: guard["cookie"] for name, guard in by_token.items() if "cookie" in guard}
        self._key_files = [guard for guard in self.tokens.values() if isinstance(guard, ApiKeys)]

    @property
    def version(self) -> int:
        """A number that changes when API keys are added or revoked."""
        return sum(guard.version for guard in self._key_files)

    def is_current(self, visitor: Visitor) -> bool:
        """Return whether a visitor that was identified earlier may continue to read."""
        guard = self.tokens.get(visitor.guard)
        return guard is None or guard.is_current(visitor)

    def challenges(self, names: Iterable[str], error: str = "", description: str = "") -> str:
        """Return the value of WWW-Authenticate: a challenge for each of these guards.

        A guard that checks a token asks for one (RFC 6750). For a guard of the application, the challenge is `Cookie`: such
        guards usually ignore tokens.

        Args:
            error: "invalid_token" or "insufficient_scope"; "" if the request contains no token.
            description: a sentence without quotes, or "".
        """
        suffix = f', error="{error}"' if error else ""
        suffix += f', error_description="{description}"' if description else ""
        return ", ".join(
            f'Cookie realm="{name}"' if name in self.logins else f'Bearer realm="{name}"{suffix}' for name in names
        )


def _guard(name: str, settings: Mapping[str, Any], logger: logging.Logger) -> TokenGuard:
    if "api_keys" in settings:
        return ApiKeys(name, settings["api_keys"]["file"], logger)
    try:
        from kafkasse.access.jwt_guard import JwtGuard
        from kafkasse.access.keys import KeySetFile, KeySetUrl, KeySource, SecretFile
    except ImportError as error:
        raise ConfigurationError(
            f'guards.{name}.jwt needs the package {error.name}: run pip install "kafkasse[jwt]".'
        ) from None
    jwt = settings["jwt"]
    kinds: Mapping[str, Callable[[str, str, logging.Logger], KeySource]] = {
        "jwks_url": KeySetUrl,
        "jwks_file": KeySetFile,
        "secret_file": partial(SecretFile, algorithms=jwt["algorithms"]),
    }
    (kind,) = kinds.keys() & jwt.keys()
    return JwtGuard(name, jwt, kinds[kind](f"guards.{name}.jwt.{kind}", jwt[kind], logger))
