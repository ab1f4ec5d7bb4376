"""The backlog of a feed with hooks. A hook may wait for I/O, such as a schema registry, and must not delay other feeds.

    Tail ─▶ put() ─▶ queue ─▶ greenlet ─▶ SharedFeed

If the hooks are slower than the topic, the queue is dropped, and the feed continues at the tail's position. All its readers
fall behind, and read the dropped records through their own cursors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import gevent

from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.log import Batch, Record

MAX_BYTES = 4_194_304  # of the records in one queue
RECORD_BYTES = 500  # about the memory that a decoded record takes up in addition to its key, value and headers


class Backlog:
    """Applies changes to a feed, in order, in a greenlet that runs only while there are changes.

    Args:
        feed: the feed.
        skip: continues the feed at the tail's position.

    Attributes:
        skip: is called if the queue was dropped.
        bytes: about the memory that the queue takes up.
    """

    def __init__(self, feed: SharedFeed, skip: Callable[[], None]) -> None:
        self._feed = feed
        self.skip = skip
        self._changes: deque[tuple[Callable[[], None], int]] = deque()
        self.bytes = 0
        self._has_overflowed = False
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def put(self, change: Callable[[], None], batch: Batch | None = None) -> None:
        """Call `change` after the changes before it. `batch` is the batch that it appends."""
        size = size_of(batch) if batch is not None else 0
        self.bytes += size
        self._has_overflowed = self._has_overflowed or self.bytes > MAX_BYTES
        if self._has_overflowed:  # the greenlet skips to the tail's position after the change that it may be applying
            self._changes.clear()
            self.bytes = 0
        else:
            self._changes.append((change, size))
        if self._greenlet is None or self._greenlet.ready():
            self._greenlet = gevent.spawn(self._run)

    def join(self) -> None:
        """Wait until all changes have been applied."""
        if self._greenlet is not None:
            self._greenlet.join()

    def _run(self) -> None:
        while self._feed.is_open and (self._changes or self._has_overflowed):
            if self._has_overflowed:
                self._has_overflowed = False
                self.skip()
            else:
                change, size = self._changes.popleft()
                self.bytes -= size
                change()
                self._feed.flush()


def size_of(batch: Batch) -> int:
    """Return about how many bytes of memory the records of a batch take up."""
    return sum(map(_size, batch.records))


def _size(record: Record) -> int:
    headers = sum([len(name) + len(value or b"") for name, value in record.headers])
    return RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
