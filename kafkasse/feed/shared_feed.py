"""A shared feed: the frames of one selection, encoded once for all of its readers. The tail reads from the log.

    Tail ─▶ append() ─▶ encode ─▶ FeedCore ─▶ readers and parked clients

The methods of this module may let other greenlets run. Those of FeedCore do not.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping

from gevent.event import Event
from gevent.lock import BoundedSemaphore

from kafkasse.errors import KafkasseError
from kafkasse.feed.core.feed import FeedCore, FeedKey
from kafkasse.feed.core.ring import RingLimits
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.snapshot import Snapshot
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Batch, Gap
from kafkasse.process.event_loop import take_turn
from kafkasse.records.frame import DecoderPending
from kafkasse.records.position import IdWriter, Places


class SharedFeed(FeedCore):
    """A FeedCore with a clock and greenlets: it encodes batches, flushes and wakes readers.

    See FeedCore for the other arguments.

    Args:
        versions: the versions of the records before the feed's position, if outdated records are dropped.

    Attributes:
        snapshot: the newest record of each key, if a stream started with a snapshot.
    """

    def __init__(
        self,
        key: FeedKey,
        ids: IdWriter,
        limits: RingLimits,
        heartbeat_s: float,
        stats: RouteStats | None = None,
        versions: Versions | None = None,
    ) -> None:
        super().__init__(key, ids, limits, heartbeat_s, stats or RouteStats(), time.monotonic(), _random_weight)
        self.snapshot: Snapshot | None = None
        self._versions = versions
        # The greenlet of a backlog appends and flushes while the tail sends heartbeats.
        self._flushing = BoundedSemaphore()
        self._changed = Event()

    # The tail calls these.

    def newest(self, batch: Batch) -> Batch:
        """Return the batch without its outdated records."""
        return without_outdated(batch, self._versions, self.stats)

    @property
    def versions_bytes(self) -> int:
        """How many bytes the versions of records take up."""
        return 0 if self._versions is None else self._versions.bytes

    def append(self, batch: Batch) -> None:
        """Encode a batch for all readers, in pieces.

        Raises:
            FilterError: the filter failed at a record; the records before it have been appended.
        """
        end: int | None = None
        self._measure_delay(batch)
        self.begin(batch)
        while end != len(batch.records):
            take_turn(urgent=True)
            began_at = time.perf_counter()
            try:
                piece = self.key.encoder.encode_piece(batch, end or 0, self.ids)
            except DecoderPending:  # a feed with a decoder has a greenlet of its own, which may wait
                continue
            self.stats.encode_s += time.perf_counter() - began_at
            self.stats.records += piece.end - (end or 0)
            end = piece.end
            self.add(batch, piece)
            if self.must_flush:
                self.flush()

    def _measure_delay(self, batch: Batch) -> None:
        timestamp = batch.records[0].timestamp if batch.records else None
        if timestamp is not None and timestamp >= 0:
            self.stats.delay_s = max(self.stats.delay_s, time.time() - timestamp / 1000)

    def report_gap(self, gap: Gap) -> None:
        if gap.is_truncation:
            self.flush()  # at the position before the gap, because a heartbeat may be due
        super().report_gap(gap)
        if self.must_flush:
            self.flush()

    def skip_to(self, places: Places, topic_ids: Mapping[str, str]) -> None:
        self.flush()
        super().skip_to(places, topic_ids)
        self.wake_readers()

    def flush(self) -> None:
        """Send new frames to the parked clients and wake the waiting readers. Send a heartbeat if one is due."""
        with self._flushing:
            if self.has_new_frames:
                _run(self.send_frames(time.monotonic()))
                self.wake_readers()
            if self.heartbeat_is_due(now := time.monotonic()):
                _run(self.send_heartbeat(now))

    def fail(self, error: KafkasseError | None) -> None:
        super().fail(error)
        self.wake_readers()

    # Readers call these.

    def wait(self, segment: int, timeout_s: float) -> None:
        """Wait until the ring has a segment with this number, or the feed has ended."""
        if self.ring.head <= segment and self.is_open:
            self._changed.wait(timeout_s)

    def wake_readers(self) -> None:
        """Wake all waiting readers, so that each checks whether there are frames, or whether it was stopped."""
        changed, self._changed = self._changed, Event()
        changed.set()


def _random_weight() -> int:
    return secrets.randbits(64) + 1


def _run(steps: Iterator[None]) -> None:
    """Run a generator of the core, and let other greenlets run before each step."""
    for _ in steps:
        take_turn(urgent=True)
