"""What the next chunk of a client needs, kept for a short time: the offsets of the log, and a cursor with fetched records.

A client that reads chunk after chunk would otherwise need lookups and a new cursor for each of them, and each cursor fetches
more records than a chunk contains. Any client that reaches the position may use them. They are as old as chunks that a cache
returns: a truncation is noticed at the end of the records that the cursor has fetched, or after MAX_AGE_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import gevent

from kafkasse.log import UNKNOWN_EPOCH, Batch, Cursor, Partition
from kafkasse.records.position import IdWriter

MAX_AGE_S = 1.0
MAX_CURSORS = 8  # in addition to those with slots
MAX_STARTS = 64

Value = TypeVar("Value")


class Unused(Generic[Value]):
    """Keeps values until they are used, but not longer than MAX_AGE_S.

    Args:
        max_values: the oldest ones are dropped.
        drop: frees a value that was not used.
    """

    def __init__(self, max_values: int, drop: Callable[[Value], object] = lambda value: None) -> None:
        self._max_values = max_values
        self._drop = drop
        self._values: dict[Hashable, tuple[float, Value]] = {}  # with the time when they expire; the oldest is first
        self._is_checking = False

    def __len__(self) -> int:
        return len(self._values)

    def keep(self, key: Hashable, value: Value) -> None:
        """Keep a value, in place of another one with the same key."""
        self._remove(key)
        self._values[key] = time.monotonic() + MAX_AGE_S, value
        while len(self._values) > self._max_values:
            self._remove(next(iter(self._values)))
        if not self._is_checking:
            self._is_checking = True
            gevent.spawn(self._drop_expired)

    def take(self, key: Hashable) -> Value | None:
        """Return the value with a key, which is no longer kept."""
        _, value = self._values.pop(key, (0.0, None))
        return value

    def _remove(self, key: Hashable) -> None:
        if (value := self.take(key)) is not None:
            self._drop(value)

    def _drop_expired(self) -> None:
        while self._values:
            key, (expires_at, _) = next(iter(self._values.items()))
            if (left_s := expires_at - time.monotonic()) > 0:
                gevent.sleep(left_s)
            else:
                self._remove(key)
        self._is_checking = False


class CursorKey(NamedTuple):
    """Where a cursor of one partition continues."""

    partition: Partition
    offset: int
    epoch: int
    topic_id: str
    looked_up_at: (
        float  # of the ChunkStart: no cursor has fetched records before the last lookup, which notices truncations
    )

    @classmethod
    def of(cls, ids: IdWriter, looked_up_at: float, partition: Partition) -> CursorKey:
        epoch = ids.epochs.get(partition, UNKNOWN_EPOCH)
        return cls(partition, ids.offsets[partition], epoch, ids.topic_ids.get(partition.topic, ""), looked_up_at)


class BufferedCursor:
    """A cursor, and the last records that it has returned if they are for the next chunk."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._unread: list[Batch] = []

    def poll(self, timeout_s: float) -> list[Batch]:
        """See log.Cursor.poll()."""
        if self._unread:
            unread, self._unread = self._unread, []
            return unread
        return self.cursor.poll(timeout_s)

    def unread(self, batch: Batch) -> None:
        """Let poll() return a batch again."""
        self._unread.append(batch)
