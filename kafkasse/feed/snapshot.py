"""Snapshots: the newest record of each key. A client of a compacted topic that represents a table receives it first.

    Snapshot (one per feed) ── one greenlet, one cursor ─▶ rows ─▶ SnapshotVersion ─▶ SnapshotReader (one per client)

For the first client, the snapshot is read from the start of the topics. For later clients, the records since then are added.
Clients share a version: a list of encoded rows, and the position after them. At most two versions are in memory: the newest,
and one that clients still receive. If the feed has dimensions, a client receives a list with the rows that it selects.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import gevent
from gevent.event import Event

from kafkasse.errors import ConfigurationError, KafkasseError, Unavailable
from kafkasse.feed.core.feed import FeedCore
from kafkasse.feed.core.ring import Place
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.slots import CatchUpSlots, Slot
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Batch, Cursor, Log, OffsetOutOfRange, Partition, PartitionsFailed, known_offset_ranges
from kafkasse.process.event_loop import take_turn
from kafkasse.records.filter import Selector
from kafkasse.records.filter.dimensions import Values
from kafkasse.records.frame import DecoderPending
from kafkasse.records.position import IdWriter

ROW_BYTES = 200  # the memory that a row takes up in addition to its key and its frame; a test measures it
INDEX_BYTES = 132  # in addition for each row, if the feed has dimensions
VALUES_BYTES = 300  # in addition for each of the dispatch values, without its text
MAX_POLL_S = 0.25
UNAVAILABLE_BACKOFF_S = 0.5
MAX_PIECE_RECORDS = 64
FAILED_FOR_S = 30.0  # new clients receive the error of a failed snapshot, which is not built again
MAX_SUPERSEDED_S = 600.0  # how long clients may take to receive a version that is not the newest


class _Rows(list[bytes]):
    """The frames of a version, or those that clients with one selector receive.

    Attributes:
        is_expired: the frames were removed before all clients had received them.
        selected: the rows for the selectors of a feed with dimensions, as long as clients receive them.
        whole: the rows of the version, if these are the rows for one selector.
    """

    __slots__ = ("__weakref__", "is_expired", "selected", "whole")

    def __init__(self, frames: Iterable[bytes], whole: _Rows | None = None) -> None:
        super().__init__(frames)
        self.is_expired = False
        self.selected: weakref.WeakValueDictionary[Selector, _Rows] = weakref.WeakValueDictionary()
        self.whole = whole

    def expire(self) -> None:
        for rows in (self, *self.selected.values()):
            rows.is_expired = True
            rows.clear()


@dataclass(frozen=True, slots=True)
class SnapshotVersion:
    """The rows of a snapshot, and the position after them."""

    rows: _Rows
    places: dict[Partition, Place]


class Snapshot:
    """The newest record of each key of a feed's topics.

    Args:
        feed: the feed; the snapshot has its partitions, and its encoder.
        log: the log to read.
        slots: the cursor needs a slot.
        max_bytes: the maximum size of the rows, including keys and bookkeeping.
        idle_timeout_s: the rows are evicted this many seconds after the last client opened the snapshot.
    """

    def __init__(self, feed: FeedCore, log: Log, slots: CatchUpSlots, max_bytes: int, idle_timeout_s: float) -> None:
        self._feed = feed
        self._encoder = feed.key.encoder
        self._log = log
        self._slots = slots
        self._max_bytes = max_bytes
        self._idle_timeout_s = idle_timeout_s
        self._failure: KafkasseError | None = None
        self._failed_at = 0.0
        self._requested = Event()
        self._changed = Event()  # set, and replaced, when a version is complete or the snapshot has failed
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._clear()

    def _clear(self) -> None:
        self._rows: dict[object, bytes] = {}  # the newest frame of each key, in the order of the log
        # Only if the feed has dimensions: the dispatch values of each key, and the keys with each of the dispatch values.
        # Keys are numbered in the order of `_rows`.
        self._values: dict[object, Values] = {}
        self._keys: dict[Values, dict[object, int]] = {}
        self._next_number = 0
        newest_by = self._feed.key.newest_by
        self._versions = Versions(newest_by) if newest_by is not None else None
        self._bytes = 0
        self._is_changed = True  # since the newest version
        self._ids: IdWriter | None = None  # the position after the rows
        self._newest: SnapshotVersion | None = None
        self._previous: weakref.ref[_Rows] | None = None
        self._superseded_at = 0.0

    def check(self) -> None:
        """Raise the error with which the snapshot failed a short time ago.

        Raises:
            KafkasseError: the snapshot is too large, or could not be read.
        """
        if self._failure is not None and time.monotonic() - self._failed_at < FAILED_FOR_S:
            raise copy.copy(self._failure)  # each stream adds to the traceback of its error

    def request(self) -> None:
        """Start to complete the snapshot, unless it contains all records that the feed has."""
        if not self._is_current():
            self._requested.set()
            if not self._greenlet:  # it has not started, or has ended
                self._greenlet = gevent.spawn(self._run)

    def version(self, timeout_s: float, selector: Selector | None = None) -> SnapshotVersion | None:
        """Return the newest version as soon as no request for a newer one is pending. Return None after the timeout.

        Args:
            timeout_s: how long to wait.
            selector: the rows to return, if the feed has dimensions.

        Raises:
            KafkasseError: see check().
        """
        if self._requested.is_set() and timeout_s > 0:
            self._changed.wait(timeout_s)
        self.check()
        if self._requested.is_set() or self._newest is None or selector is None:
            return None if self._requested.is_set() else self._newest
        whole, places = self._newest.rows, self._newest.places
        rows = whole.selected.get(selector)
        if rows is None:
            # Without a request, nothing has changed the rows since the newest version was made.
            numbers = {key: at for values in selector.values for key, at in self._keys.get(values, {}).items()}
            in_order = sorted(numbers, key=numbers.__getitem__)
            rows = whole.selected[selector] = _Rows((self._rows[key] for key in in_order), whole)
        return SnapshotVersion(rows, places)

    def wake(self) -> None:
        """End all calls of version()."""
        changed, self._changed = self._changed, Event()
        changed.set()

    # Building.

    def _is_current(self) -> bool:
        if self._newest is None or self._ids is None:
            return False
        offsets = self._ids.offsets
        return all(offsets.get(partition, -1) >= end for partition, end in self._feed.ids.offsets.items())

    def _run(self) -> None:
        try:
            while self._requested.wait(self._idle_timeout_s) and self._feed.is_open:
                try:
                    if self._may_read_on():
                        self._complete()
                except (Unavailable, DecoderPending):
                    gevent.sleep(UNAVAILABLE_BACKOFF_S)  # the clients that wait receive heartbeats meanwhile
                    continue
                self._requested.clear()
                self.wake()
        except Exception as error:
            self._failure = KafkasseError("The server could not read the snapshot.")
            self._failed_at = time.monotonic()
            if not isinstance(error, KafkasseError):
                raise
            self._failure = error
        finally:
            self._clear()
            self._requested.clear()
            self.wake()

    def _may_read_on(self) -> bool:
        """Return whether a newer version may be made: clients may use only one other version, and not for too long."""
        previous = self._previous() if self._previous is not None else None
        if previous is not None and time.monotonic() - self._superseded_at > MAX_SUPERSEDED_S:
            previous.expire()
            previous = None
        return previous is None

    def _complete(self) -> None:
        """Read up to the end that the log has now, and make a version."""
        held = self._log.offset_ranges(self._feed.ids.offsets)
        starts = {partition: offsets.start for partition, offsets in held.items()}
        if self._ids is None:
            self._ids = self._feed.ids.copy_at(starts, {})
        for partition in starts.keys() - self._ids.offsets.keys():  # partitions that were added
            self._ids.set(partition, starts[partition])
        ends = {partition: offsets.end for partition, offsets in held.items()}
        while not self._has_reached(ends):
            self._read(self._ids, lambda: self._has_reached(ends))
        self._make_version(self._ids)

    def _has_reached(self, ends: dict[Partition, int]) -> bool:
        assert self._ids is not None  # noqa: S101 - see _complete()
        return all(self._ids.offsets[partition] >= end for partition, end in ends.items())

    def _read(self, ids: IdWriter, is_complete: Callable[[], bool]) -> None:
        """Read until the snapshot is complete, or until other readers need the slot."""
        slot = self._slots.request("", lambda: None)
        cursor: Cursor | None = None
        try:
            while not slot.wait(MAX_POLL_S):
                pass
            cursor = self._log.cursor(ids.offsets, epochs=ids.epochs)
            while not (is_complete() or slot.revoked):
                self._poll(cursor, slot, ids)
        finally:
            if cursor is not None:
                cursor.close()
            slot.release()

    def _poll(self, cursor: Cursor, slot: Slot, ids: IdWriter) -> None:
        try:
            batches = cursor.poll(MAX_POLL_S)
        except PartitionsFailed as error:
            raise next(iter(error.errors.values())) from error
        except OffsetOutOfRange as error:
            self._recover(error, cursor, ids)
            return
        for batch in batches:
            slot.started()
            self._add(without_outdated(batch, self._versions), ids)

    def _recover(self, error: OffsetOutOfRange, cursor: Cursor, ids: IdWriter) -> None:
        resumption = error.resume(ids.offsets, known_offset_ranges(self._log, error.partitions))
        for gap in resumption.gaps:
            if gap.is_truncation:  # the rows may contain records that the log has lost
                self._clear()
                raise Unavailable("The log was truncated, so the snapshot must be read from the start.")
            ids.set(gap.partition, gap.end)
        cursor.seek(resumption.offsets)

    def _add(self, batch: Batch, ids: IdWriter) -> None:
        topic, partition = batch.partition
        for start in range(0, len(batch.records), MAX_PIECE_RECORDS):
            take_turn()
            for record in batch.records[start : start + MAX_PIECE_RECORDS]:
                # A record without a key replaces no other. A newer record moves its key to the end: the order of the log.
                key = (topic, record.key) if record.key is not None else (batch.partition, record.offset)
                encode = self._encoder.encode_with_values
                encoded = encode(topic, partition, record) if record.value is not None else None
                if encoded is None:
                    self._replace(key, None, ())
                else:
                    values, (event, body) = encoded
                    self._replace(key, self._encoder.wire.frame(event, "", body), values)
        last_timestamp = batch.records[-1].timestamp if batch.records else None
        ids.set(batch.partition, batch.next_offset, last_timestamp, batch.leader_epoch)

    def _replace(self, key: tuple[object, object], frame: bytes | None, values: Values) -> None:
        key_bytes = len(key[1]) if isinstance(key[1], bytes) else 0
        if (former := self._rows.pop(key, None)) is not None:
            self._bytes -= len(former) + key_bytes + ROW_BYTES
            self._is_changed = True
            self._remove_from_index(key)
        if frame is not None:
            self._rows[key] = frame
            self._bytes += len(frame) + key_bytes + ROW_BYTES
            self._is_changed = True
            if values:
                self._add_to_index(key, values)
        if self._bytes > self._max_bytes:
            raise ConfigurationError(
                f"The snapshot is larger than {self._max_bytes} bytes (max_snapshot_bytes={self._max_bytes})."
                " Increase max_snapshot_bytes in the server's configuration, or start at another position."
            )

    def _add_to_index(self, key: object, values: Values) -> None:
        keys = self._keys.get(values)
        if keys is None:
            keys = self._keys[values] = {}
            self._bytes += VALUES_BYTES + sum(map(len, values))
        self._values[key] = values
        self._bytes += INDEX_BYTES
        keys[key] = self._next_number
        self._next_number += 1

    def _remove_from_index(self, key: object) -> None:
        values = self._values.pop(key, None)
        if values is None:
            return
        self._bytes -= INDEX_BYTES
        keys = self._keys[values]
        del keys[key]
        if not keys:
            del self._keys[values]
            self._bytes -= VALUES_BYTES + sum(map(len, values))

    def _make_version(self, ids: IdWriter) -> None:
        rows = self._newest.rows if self._newest is not None else None
        if rows is None or self._is_changed:
            if rows is not None:
                self._previous, self._superseded_at = weakref.ref(rows), time.monotonic()
            rows = _Rows(self._rows.values())
            self._is_changed = False
        self._newest = SnapshotVersion(rows, self._feed.places(ids))


class SnapshotReader:
    """Sends a snapshot to one client.

    Attributes:
        position: the position after the snapshot; None until the client has received all rows.
        rows_read: the number of rows that read() has returned.
    """

    __slots__ = ("_selector", "_snapshot", "_version", "position", "rows_read")

    def __init__(self, snapshot: Snapshot, selector: Selector | None = None) -> None:
        self.position: dict[Partition, Place] | None = None
        self._snapshot = snapshot
        self._selector = selector
        self._version: SnapshotVersion | None = None
        self.rows_read = 0
        snapshot.check()
        snapshot.request()

    def read(self, timeout_s: float, max_bytes: int) -> bytes:
        """Return the next rows, about `max_bytes` at most, or b"" if the snapshot is not complete within the timeout.

        Raises:
            KafkasseError: the snapshot failed, or this client has received it too slowly.
        """
        if self._version is None:
            self._version = self._snapshot.version(timeout_s, self._selector)
            if self._version is None:
                return b""
        rows = self._version.rows
        if rows.is_expired:
            raise Unavailable("The client received the snapshot too slowly. Reconnect to start again.")
        frames: list[bytes] = []
        size = 0
        while self.rows_read < len(rows) and size < max_bytes:
            frames.append(rows[self.rows_read])
            size += len(frames[-1])
            self.rows_read += 1
        if self.rows_read == len(rows):
            self.position = self._version.places
        return b"".join(frames)

    def wake(self) -> None:
        """End read()."""
        self._snapshot.wake()
