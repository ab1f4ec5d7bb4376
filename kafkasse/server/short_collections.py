"""Keeps Python's garbage collections short, because each one stops the event loop.

A collection takes about 0.7 µs for each object that it visits: 130 ms for the objects of 6,000 idle streams. Nearly all
objects are released by their reference counts instead, because a stream has no reference cycles. Therefore, an object that
survives its first collection is frozen: later collections do not visit it.

    new ─▶ frozen
             │ only if far more objects are frozen than the open streams explain
             ▼
        one full collection

The first collection of an object is soon, at the end of a turn of the event loop. Python's own threshold is not enough: it
applies to the number of objects that were created minus those that were released. While a thousand requests end and their
streams start, this number stays low, although there are many new objects.

The cost: a reference cycle that is in use during a collection is not freed before the next full collection. Our code creates
no such cycle, but an app that the same worker serves may.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sized
from typing import Any

from gevent import get_hub

INTERVAL_S = 0.02  # in which a busy worker creates up to 20,000 objects
NEW_OBJECTS = 20_000  # applies within a long turn; decoding and encoding allocate thousands of records at a time
OBJECTS_PER_STREAM = 40
MAX_UNEXPLAINED_OBJECTS = 250_000  # some 25 MB
CHECK_INTERVAL_S = 300.0  # long, because counting takes up to 50 ms, and thousands of open requests count as garbage


class ShortCollections:
    """Collects often, and freezes the objects that survive. The garbage collector is that of the whole process."""

    def __init__(self, streams: Sized) -> None:
        self._streams = streams
        self._next_at = 0.0
        self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._expected = 0  # how many objects are frozen without any stream
        self._watcher: Any = None

    def start(self) -> None:
        """Freeze what exists now, which is the app, and collect at the end of turns of this thread's event loop."""
        gc.freeze()
        self._expected = gc.get_freeze_count()
        gc.set_threshold(NEW_OBJECTS)
        gc.callbacks.append(self._on_collection)
        self._watcher = get_hub().loop.prepare(ref=False)
        self._watcher.start(self.turn_ends)

    def turn_ends(self) -> None:
        """Collect, unless the last collection was just now."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + INTERVAL_S
            gc.collect(0)
        if now >= self._check_at:
            self._check_at = now + CHECK_INTERVAL_S
            self._collect_frozen()

    def _collect_frozen(self) -> None:
        explained = OBJECTS_PER_STREAM * len(self._streams)
        if gc.get_freeze_count() > self._expected + explained + MAX_UNEXPLAINED_OBJECTS:
            gc.unfreeze()
            gc.collect()
            self._expected = gc.get_freeze_count() - explained

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "stop":
            gc.freeze()
