"""A file that is read again when it changes, such as a list of keys. An operator does not have to restart the server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from kafkasse.errors import ConfigurationError

CHECK_INTERVAL_S = 1.0
MAX_BYTES = 16 * 1024 * 1024

Content = TypeVar("Content")
_files: WeakSet[WatchedFile[Any]] = WeakSet()


def outdated_count() -> int:
    """Read the files again that are due. Return how many keep their last valid content, as they are missing or invalid."""
    files = list(_files)
    for file in files:
        file.reload_if_due()
    return sum(file.is_outdated for file in files)


class WatchedFile(Generic[Content]):
    """The parsed content of a file.

    Args:
        setting: the setting that contains the path, for messages. The path itself is not shown: if the operator has put the
            secret in its place, a message must not reveal it.
        parse: parses the bytes of the file, and raises ValueError with a sentence if they are not valid.

    Raises:
        ConfigurationError: the file cannot be read or is not valid.
    """

    def __init__(self, setting: str, path: str, parse: Callable[[bytes], Content], logger: logging.Logger) -> None:
        self._setting, self._path, self._parse, self._logger = setting, Path(path), parse, logger
        self.version = 0  # the number of changes so far
        self.is_outdated = False
        try:
            self._stat = self._read_stat()
            self._content = self._read()
        except OSError as error:
            advice = (
                "" if self._path.is_absolute() else f" Its path is relative to the working directory, {Path.cwd()}."
            )
            raise ConfigurationError(f"{setting}: the file cannot be read: {error.strerror}.{advice}") from None
        except ValueError as error:
            raise ConfigurationError(f"{setting}: {error}") from None
        self._checked_at = time.monotonic()
        _files.add(self)

    @property
    def content(self) -> Content:
        """The current content. If the file has become invalid or is missing, this is the last valid content."""
        self.reload_if_due()
        return self._content

    def reload_if_due(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            self._reload()

    def _reload(self) -> None:
        last = self._stat
        try:
            stat = self._read_stat()
            if stat == last:
                return
            self._stat = stat
            self._content = self._read()
            self.version += 1
            if self.is_outdated:
                self.is_outdated = False
                self._logger.info("%s: the file is valid again.", self._setting)
        except OSError as error:
            self.is_outdated = True
            self._stat = (0, 0, 0)
            if last != self._stat:
                self._logger.error(
                    "%s: the file cannot be read: %s. Its last content stays in effect.", self._setting, error.strerror
                )
        except Exception as error:  # noqa: BLE001 - the parser's library may raise any error. Its text may quote a secret.
            self.is_outdated = True
            reason = error if isinstance(error, ValueError) else f"{type(error).__name__}."
            self._logger.error("%s: %s The last valid content stays in effect.", self._setting, reason)

    def _read_stat(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> Content:
        with self._path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"the file is larger than {MAX_BYTES} bytes.")
        return self._parse(data)
