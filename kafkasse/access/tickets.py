"""Tickets: short-lived text that stands for a visitor in the URL of one stream, because EventSource cannot send a header.

A ticket contains the visitor, encrypted and signed (Fernet), so that neither clients nor logs can read its claims. It is
valid for one path, once, for LIFETIME_S seconds. Each use creates a file. The workers of a machine share the directory of
these files, so that only one of them accepts a ticket. If servers on several machines have the same `ticket_secret_file`,
each machine accepts a ticket once.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from cryptography.fernet import InvalidToken as InvalidFernet
from gevent import get_hub

from kafkasse.access.visitor import InvalidToken, Visitor
from kafkasse.access.watched_file import WatchedFile
from kafkasse.errors import AccessUnavailable, BadRequest, ConfigurationError
from kafkasse.process.open_streams import streams

LIFETIME_S = 30
MAX_TICKET_BYTES = 6000  # a request line may have 8,190 bytes
WINDOW_S = 60  # the files of one directory
MAX_WINDOWS = 3  # older directories are deleted
_SECRET_BYTES = 32
_REJECTED = "The ticket is not valid: it has expired, was used, or is for another stream. Request a new one."


class Tickets:
    """Issues and redeems tickets.

    Args:
        secret: at least 32 bytes, the same in all processes that accept each other's tickets.
        purpose: tickets of another purpose are not valid, even if the secret is the same.
        folder: the directory for the files of used tickets, the same for all workers.
        is_shared: the secret is the one in this directory.
    """

    def __init__(
        self, secret: bytes, purpose: str, folder: Path, clock: Callable[[], float] = time.time, is_shared: bool = False
    ) -> None:
        key = hmac.digest(secret, purpose.encode(), "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self._folder = folder
        self._shared = secret if is_shared else b""
        self._clock = clock
        self._window = 0

    def issue(self, visitor: Visitor, path: str) -> str:
        """Return a ticket for a visitor and a path. Raise BadRequest if the visitor's claims are too large."""
        expires_at = None if visitor.expires_at == float("inf") else visitor.expires_at
        who = visitor.guard, visitor.name, dict(visitor.claims), expires_at, visitor.key_hash
        data = json.dumps([secrets.token_hex(16), path, *who], separators=(",", ":")).encode()
        ticket = self._fernet.encrypt_at_time(data, int(self._clock())).rstrip(b"=")
        if len(ticket) > MAX_TICKET_BYTES:
            raise BadRequest(
                "The claims of your token are too large for a ticket. Send the token in a header or a cookie."
            )
        return ticket.decode()

    def redeem(self, ticket: str, path: str) -> Visitor:
        """Return the visitor of a ticket, and make the ticket invalid.

        Raises:
            InvalidToken: the ticket was not issued by this server, is for another path, has expired or was used; or
                end_streams() was called for the visitor after the ticket was issued, for example at a logout.
            AccessUnavailable: the use cannot be recorded.
        """
        padded = ticket.encode() + b"=" * (-len(ticket) % 4)
        try:
            if len(ticket) > MAX_TICKET_BYTES:
                raise InvalidFernet
            data = self._fernet.decrypt_at_time(padded, LIFETIME_S, int(self._clock()))
            issued_at = self._fernet.extract_timestamp(padded)
        except (InvalidFernet, ValueError):
            raise InvalidToken(_REJECTED) from None
        number, its_path, guard, name, claims, expires_at, key_hash = json.loads(data)
        was_ended = streams.has_ended(name, time.monotonic() - (self._clock() - issued_at))
        if its_path != path or was_ended or not self._use(number, issued_at // WINDOW_S):
            raise InvalidToken(_REJECTED)
        return Visitor(guard, name, claims, float("inf") if expires_at is None else expires_at, key_hash)

    def _use(self, number: str, window: int) -> bool:
        """Record that a ticket was used. Return False if that was recorded before, by any worker."""
        folder = self._folder / str(window)
        try:
            _make_private(self._folder)
            folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(folder / number, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        except (OSError, ConfigurationError):
            raise AccessUnavailable("The server cannot accept tickets now. Retry after 5 s.") from None
        if window > self._window:
            self._window = window
            get_hub().threadpool.spawn(_tidy, self._folder, window - MAX_WINDOWS, self._shared)
        return True


def open_tickets(settings: Mapping[str, Any], secret_file: str, name: str, logger: logging.Logger) -> Tickets:
    """Create the tickets of the blueprint `name`. They are not valid for one whose setting `guards` is different.

    If `secret_file` is empty, all processes of this user on this machine share a random secret. Then login functions in
    different files are different guards: two apps may have login functions with the same name, but different visitors.

    Raises:
        ConfigurationError: the secret cannot be read, or there is no private directory.
    """
    folder = Path(tempfile.gettempdir()) / f"kafkasse-{os.getuid()}"
    _make_private(folder)
    if secret_file:
        from kafkasse.access.keys import parse_secret

        secret = WatchedFile("ticket_secret_file", secret_file, parse_secret, logger).content
    else:
        secret = _shared_secret(folder, secrets.token_bytes(_SECRET_BYTES))

    def identity(login: Any) -> list[str]:
        module = sys.modules.get(getattr(login, "__module__", ""))
        file = "" if secret_file else getattr(module, "__file__", "")
        return [getattr(login, "__qualname__", ""), file]

    purpose = json.dumps([name, settings], sort_keys=True, default=identity)
    return Tickets(secret, purpose, folder, is_shared=not secret_file)


def _make_private(folder: Path) -> None:
    """Create a directory that only this user can read. All workers, and all servers of this user, use the same one."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"The setting tickets needs the directory {folder}: {error.strerror}. Set TMPDIR to use another one."
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"The setting tickets needs a directory that only this user can read: {folder}. Set TMPDIR to use another one."
        )


def _shared_secret(folder: Path, secret: bytes) -> bytes:
    """Return the secret in a directory, or write this one. link() makes it appear complete, and only once."""
    file = folder / "secret"
    new = folder / f"secret-{secrets.token_hex(8)}"
    if not file.exists():
        new.touch(mode=0o600)
        new.write_bytes(secret)
        with suppress(FileExistsError):
            os.link(new, file)
        new.unlink()
    return file.read_bytes()


def _tidy(folder: Path, window: int, secret: bytes) -> None:
    """Delete old windows, and keep the shared secret, which programs that clean the temporary directory may have deleted."""
    if secret:
        _shared_secret(folder, secret)
        os.utime(folder / "secret")
    for window_folder in folder.iterdir():
        if window_folder.name.isdigit() and int(window_folder.name) < window:
            shutil.rmtree(window_folder, ignore_errors=True)
