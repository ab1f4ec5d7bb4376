"""API keys: random text that a program sends to identify itself. The server stores only a hash of each key.

A key has 256 random bits, so nobody can guess it, and nobody can find it from its SHA-256 hash. Slow hashes such as bcrypt
protect passwords that people choose; here, they would only make each request slower.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256

from kafkasse.access.visitor import InvalidToken, Visitor
from kafkasse.access.watched_file import WatchedFile

PREFIX = "kafkasse_"  # lets scanners find keys that were published by accident
_RANDOM_BYTES = 32
_KEY = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_LINE = re.compile(r"([^\s:#][^\s:]{0,99}):([0-9a-f]{64})")


def create_key(name: str) -> tuple[str, str]:
    """Return a new key, and the line of the file that contains its hash.

    Raises:
        ValueError: the name is empty, too long, or contains a colon or a space.
    """
    key = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    line = f"{name}:{_hash(key)}"
    if not _LINE.fullmatch(line):
        raise ValueError("A name has 1 to 100 characters, without colons and spaces, and does not start with #.")
    return key, line


class ApiKeys:
    """The guard `name`, for the keys in a file with the lines `name:sha256-of-the-key`.

    Raises:
        ConfigurationError: the file cannot be read or is not valid.
    """

    def __init__(self, name: str, file: str, logger: logging.Logger) -> None:
        self._name = name
        self._file = WatchedFile(f"guards.{name}.api_keys.file", file, _parse, logger)

    @property
    def version(self) -> int:
        """A number that changes when keys are added or revoked."""
        self._file.content  # noqa: B018 - checks whether the file has changed
        return self._file.version

    def identify(self, token: str) -> Visitor:
        """Return the owner of a key, whose claim `sub` is the name in the file. Raise InvalidToken for other keys."""
        if not token.startswith(PREFIX):
            raise InvalidToken("The token is not an API key.")
        if _KEY.fullmatch(token):
            given = _hash(token)
            # The time of this lookup depends on the hash of the key, from which nobody can infer the key.
            known, owner = self._file.content.get(given, ("", ""))
            if hmac.compare_digest(known, given):
                return Visitor(self._name, owner, {"sub": owner}, key_hash=given)
        raise InvalidToken("The API key is unknown or was revoked.")

    def is_current(self, visitor: Visitor) -> bool:
        """Return whether the key of a visitor is still in the file."""
        return visitor.key_hash in self._file.content


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _parse(data: bytes) -> Mapping[str, tuple[str, str]]:
    """Return the hash and the owner of each key, by the hash."""
    keys: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:  # the message must not quote the line, which may contain a key
            raise ValueError(f"line {number} must be NAME:HASH, as `kafkasse key create NAME` prints it.")
        keys[match[2]] = match[2], match[1]
    return keys
