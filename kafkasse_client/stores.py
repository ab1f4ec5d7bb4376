"""Position stores, which keep the position of a client between two runs of its process."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol


class PositionStore(Protocol):
    """A place for one position, such as a row of a database."""

    def load(self) -> str | None:
        """Return the position that was saved last, or None."""

    def save(self, position: str) -> object:
        """Replace the position. `AsyncStream` also accepts a coroutine function."""


Save = Callable[[str], object]


class FileStore:
    """Keeps the position in a file. Each process and each URL needs its own file.

    The file is replaced as a whole: after a crash, it contains the old or the new position. The data is not flushed to the
    disk. After a power failure, the file may contain an older position, and the client receives the later events again, or
    it may be empty. That is an error, because a client without a position may skip records.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._new = self._path.with_name(f"{self._path.name}.new")

    def load(self) -> str | None:
        try:
            position = self._path.read_text("utf-8").strip()
        except FileNotFoundError:
            return None
        if not position:
            raise ValueError(f"the position file {self._path} is empty; to start at the route's default, delete it")
        return position

    def save(self, position: str) -> None:
        try:
            self._new.write_text(f"{position}\n", "utf-8")
            os.replace(self._new, self._path)  # noqa: PTH105 - Path.replace() costs twice as much
        except OSError:  # such as a full disk
            with suppress(OSError):
                self._new.unlink()
            raise


def save_of(store: PositionStore | Save | None) -> Save:
    """Return the function that saves a position."""
    if store is None:
        return lambda position: None
    return store if callable(store) else store.save


def load(store: PositionStore | Save | None) -> str:
    """Return the saved position, or "" if there is none. A function can only save positions."""
    return "" if store is None or callable(store) else store.load() or ""
