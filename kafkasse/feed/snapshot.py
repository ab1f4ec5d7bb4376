"""Snapshots: the newest record of each key. A client of a compacted topic that represents a table receives it first.

    Snapshot (one per feed) ── one greenlet, one cursor ─▶ rows ─▶ SnapshotVersion ─▶ Reader (one per client)

For the first client, the snapshot is read from the start of the topics. For later clients, the records since then are added.
"""

from __future__ import annotations

import copy
import time

import gevent
from gevent.event import Event

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.feed.core.feed import FeedCore
from kafkasse.feed.core.snapshot import SnapshotCore, SnapshotVersion
from kafkasse.feed.lookup import UNAVAILABLE_BACKOFF_S, known_offset_ranges
from kafkasse.feed.slots import CatchUpSlots, QueuedSlot
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Cursor, Log, OffsetOutOfRange, Partition, PartitionsFailed
from kafkasse.process.event_loop import take_turn
from kafkasse.records.filter import Selector
from kafkasse.records.frame import DecoderPending

MAX_POLL_S = 0.25
FAILED_FOR_S = 30.0  # new clients receive the error of a failed snapshot, which is not built again


class Snapshot(SnapshotCore):
    """A SnapshotCore that reads the log when clients request it.

    See SnapshotCore for the other arguments.

    Args:
        log: the log to read.
        slots: the cursor needs a slot.
        idle_timeout_s: the rows are evicted this many seconds after the last client opened the snapshot, unless clients
            still receive them.
    """

    def __init__(self, feed: FeedCore, log: Log, slots: CatchUpSlots, max_bytes: int, idle_timeout_s: float) -> None:
        super().__init__(feed, max_bytes)
        self._log = log
        self._slots = slots
        self._idle_timeout_s = idle_timeout_s
        self._failure: KafkasseError | None = None
        self._failed_at = 0.0
        self._requested = Event()
        self._changed = Event()  # set, and replaced, when a version is complete or the snapshot has failed
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def request(self) -> None:
        """Start to complete the snapshot, unless it contains all records that the feed has.

        Raises:
            KafkasseError: see version().
        """
        self._check()
        if not self.is_current:
            self._requested.set()
            if not self._greenlet:  # it has not started, or has ended
                self._greenlet = gevent.spawn(self._run)

    def version(self, timeout_s: float, selector: Selector | None = None) -> SnapshotVersion | None:
        """Return the newest version as soon as no request for a newer one is pending. Return None after the timeout.

        Args:
            timeout_s: how long to wait.
            selector: the rows to return, if the feed has dimensions.

        Raises:
            KafkasseError: the snapshot failed a short time ago: it is too large, or could not be read.
        """
        if self._requested.is_set() and timeout_s > 0:
            self._changed.wait(timeout_s)
        self._check()
        if self._requested.is_set() or self.newest is None:
            return None
        return self.newest if selector is None else self.select(self.newest, selector)

    def wake(self) -> None:
        """End all calls of version()."""
        changed, self._changed = self._changed, Event()
        changed.set()

    def _check(self) -> None:
        if self._failure is not None and time.monotonic() - self._failed_at < FAILED_FOR_S:
            raise copy.copy(self._failure)  # each stream adds to the traceback of its error

    def _run(self) -> None:
        try:
            while self._is_needed():
                try:
                    if self.may_supersede(time.monotonic()):
                        self._complete()
                except (Unavailable, DecoderPending):
                    gevent.sleep(UNAVAILABLE_BACKOFF_S)  # the clients that wait receive heartbeats meanwhile
                    continue
                self._requested.clear()
                self.wake()
        except BaseException as error:  # a hook may let any exception escape, such as a gevent.Timeout
            self._failure = KafkasseError("The server could not read the snapshot.")
            self._failed_at = time.monotonic()
            if not isinstance(error, KafkasseError):
                raise
            self._failure = error
        finally:
            self.clear()
            self._requested.clear()
            self.wake()

    def _is_needed(self) -> bool:
        """Wait for a request. Return False if the feed has ended, or there is no request and no client receives a version.

        If the rows were evicted earlier, each slow client could keep a version of its own in memory.
        """
        while self._feed.is_open:
            if self._requested.wait(max(MAX_POLL_S, self._idle_timeout_s)):
                return self._feed.is_open
            if not self.is_in_use():
                break
        return False

    def _complete(self) -> None:
        """Read up to the end that the log has now, and make a version."""
        partitions = list(self._feed.partitions)
        offset_ranges = self._log.offset_ranges(partitions)
        ahead = self.epochs_ahead
        self.begin(offset_ranges, self._log.epoch_ends(ahead) if ahead else {})
        if not self.ids.offsets.keys() >= set(partitions):
            raise Unavailable("A partition has no leader, so the snapshot would lack its rows.")
        ends = {partition: offsets.end for partition, offsets in offset_ranges.items()}
        while self._feed.is_open:
            if self.has_reached(ends):
                if self._has_lost_records:  # since it began to read
                    raise Unavailable("The log was truncated, so the snapshot must be read from the start.")
                self.make_version(time.monotonic())
                return
            self._read(ends)

    def _read(self, ends: dict[Partition, int]) -> None:
        """Read until the snapshot has reached these offsets, or until other readers need the slot.

        If the log was truncated, move `ends` back, because the snapshot would wait for records that are lost.
        """
        slot = self._slots.request("", lambda: None)
        cursor: Cursor | None = None
        try:
            while self._feed.is_open and not slot.wait(MAX_POLL_S):
                pass
            topic_ids = self._feed.ids.topic_ids
            cursor = self._log.cursor(self.ids.offsets, epochs=self.ids.epochs, topic_ids=topic_ids)
            while self._feed.is_open and not (self.has_reached(ends) or slot.revoked):
                if not self._poll(cursor, slot):
                    for partition, offsets in known_offset_ranges(self._log, ends, topic_ids).items():
                        if offsets.end >= self.ids.offsets[partition]:  # otherwise, the cursor reports the truncation
                            ends[partition] = min(ends[partition], offsets.end)
        finally:
            if cursor is not None:
                cursor.close()
            slot.release()

    def _poll(self, cursor: Cursor, slot: QueuedSlot) -> bool:
        """Add the next records. Return whether the log has returned any."""
        try:
            batches = cursor.poll(MAX_POLL_S)
        except PartitionsFailed as error:
            raise next(iter(error.errors.values())) from error
        except OffsetOutOfRange as error:
            offset_ranges = known_offset_ranges(self._log, error.partitions, self._feed.ids.topic_ids)
            cursor.seek(self.resume(error, offset_ranges).offsets)
            return True
        for batch in batches:
            slot.started()
            for _ in self.add(without_outdated(batch, self.versions)):
                take_turn()
        return bool(batches)
