"""The core of a snapshot: the newest record of each key of a feed's topics, as encoded rows.

Clients share a version: a list of rows, and the position after them. At most two versions are in memory: the newest, and one
that clients still receive. If the feed has dimensions, a client receives a list with the rows that it selects.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafkasse.errors import ConfigurationError, Unavailable
from kafkasse.feed.core.feed import FeedCore
from kafkasse.feed.core.versions import Versions
from kafkasse.log import Batch, OffsetAndEpoch, OffsetOutOfRange, Offsets, Partition, Ranges, Resumption
from kafkasse.records.filter import Selector
from kafkasse.records.filter.dimensions import Values
from kafkasse.records.position import Places

ROW_BYTES = 200  # the memory that a row takes up in addition to its key and its frame; a test measures it
INDEX_BYTES = 132  # in addition for each row, if the feed has dimensions
VALUES_BYTES = 300  # in addition for each of the dispatch values, without its text
MAX_PIECE_RECORDS = 64
MAX_SUPERSEDED_S = 600.0  # how long clients may take to receive a version that is not the newest


class Rows(list[bytes]):
    """The frames of a version, or those that clients with one selector receive.

    Attributes:
        is_expired: the frames were removed before all clients had received them.
        selected: the rows for the selectors of a feed with dimensions, as long as clients receive them.
        whole: the rows of the version, if these are the rows for one selector.
    """

    __slots__ = ("__weakref__", "is_expired", "selected", "whole")

    def __init__(self, frames: Iterable[bytes], whole: Rows | None = None) -> None:
        super().__init__(frames)
        self.is_expired = False
        self.selected: weakref.WeakValueDictionary[Selector, Rows] = weakref.WeakValueDictionary()
        self.whole = whole

    def expire(self) -> None:
        """Remove the frames, although clients still need them."""
        for rows in (self, *self.selected.values()):
            rows.is_expired = True
            rows.clear()


@dataclass(frozen=True, slots=True)
class SnapshotVersion:
    """The rows of a snapshot, and the position after them."""

    rows: Rows
    places: Places


class SnapshotCore:
    """The newest record of each key of a feed's topics.

    Args:
        feed: the feed; the snapshot has its partitions, and its encoder.
        max_bytes: the maximum size of the rows, including keys and bookkeeping.

    Attributes:
        ids: the position after the rows. No partition has an offset before begin() is called.
        newest: the newest version, or None if there is none yet.
        versions: the versions of the records before the position, if outdated records are dropped.
    """

    def __init__(self, feed: FeedCore, max_bytes: int) -> None:
        self._feed = feed
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Remove everything."""
        self._rows: dict[object, bytes] = {}  # the newest frame of each key, in the order of the log
        # Only if the feed has dimensions: the dispatch values of each key, and the keys with each of the dispatch values.
        # Keys are numbered in the order of `_rows`.
        self._values: dict[object, Values] = {}
        self._keys: dict[Values, dict[object, int]] = {}
        self._next_number = 0
        newest_by = self._feed.key.newest_by
        self.versions = Versions(newest_by) if newest_by is not None else None
        self._bytes = 0
        self._is_changed = True  # since the newest version
        self.ids = self._feed.ids.copy_at({})
        self._truncations = self._feed.epochs.truncations
        self.newest: SnapshotVersion | None = None
        self._previous: weakref.ref[Rows] | None = None
        self._superseded_at = 0.0

    @property
    def is_current(self) -> bool:
        """Whether the newest version contains the records that the feed has, and no others.

        A snapshot that is ahead of the feed is not current: the feed would not notice a truncation of the records between
        them.
        """
        return self.newest is not None and self.ids.offsets == self._feed.ids.offsets and not self._has_lost_records

    @property
    def _has_lost_records(self) -> bool:
        """Whether the rows may contain records that the log has lost, as far as the feed knows."""
        epochs = self._feed.epochs
        return self._truncations != epochs.truncations or epochs.has_diverged(self.ids)

    def has_reached(self, ends: Offsets) -> bool:
        """Return whether the position is at or after these offsets."""
        offsets = self.ids.offsets
        return all(offsets.get(partition, -1) >= end for partition, end in ends.items())

    # Versions.

    def may_supersede(self, now: float) -> bool:
        """Expire the previous version if clients have used it for MAX_SUPERSEDED_S.

        Return whether no previous version is in use, so that make_version() may be called.
        """
        previous = self._previous() if self._previous is not None else None
        if previous is not None and now - self._superseded_at > MAX_SUPERSEDED_S:
            previous.expire()
            previous = None
        return previous is None

    def is_in_use(self) -> bool:
        """Return whether clients still receive a version."""
        if self.newest is None:
            return False
        if self._previous is not None and self._previous() is not None:
            return True
        places, reference = self.newest.places, weakref.ref(self.newest.rows)
        self.newest = None  # frees the rows, unless a client has another reference
        if (rows := reference()) is not None:
            self.newest = SnapshotVersion(rows, places)
        return rows is not None

    def make_version(self, now: float) -> None:
        """Make the rows the newest version."""
        rows = self.newest.rows if self.newest is not None else None
        if rows is None or self._is_changed:
            if rows is not None:
                self._previous, self._superseded_at = weakref.ref(rows), now
            rows = Rows(self._rows.values())
            self._is_changed = False
        self.newest = SnapshotVersion(rows, self.ids.places())

    def select(self, version: SnapshotVersion, selector: Selector) -> SnapshotVersion:
        """Return the rows of the newest version that clients with this selector receive. No row may have changed since."""
        rows = version.rows.selected.get(selector)
        if rows is None:
            numbers = {key: at for values in selector.values for key, at in self._keys.get(values, {}).items()}
            in_order = sorted(numbers, key=numbers.__getitem__)
            rows = version.rows.selected[selector] = Rows((self._rows[key] for key in in_order), version.rows)
        return SnapshotVersion(rows, version.places)

    # Rows.

    @property
    def epochs_ahead(self) -> dict[Partition, int]:
        """The leader epochs where the snapshot is ahead of the feed, which notices no truncation there."""
        feed = self._feed.ids.offsets
        return {at: epoch for at, epoch in self.ids.epochs.items() if self.ids.offsets[at] > feed.get(at, 0)}

    def begin(self, offset_ranges: Ranges, epoch_ends: Mapping[Partition, OffsetAndEpoch]) -> None:
        """Start to read the partitions that are new. If the log was truncated, start to read all of them again.

        Args:
            offset_ranges: the offsets that the log holds.
            epoch_ends: where the epochs of `epochs_ahead` end, as far as the log knows.
        """
        ends = [(partition, offsets.end) for partition, offsets in offset_ranges.items()]
        ends += [(partition, end.offset) for partition, end in epoch_ends.items()]
        if self._has_lost_records or any(self.ids.offsets.get(partition, 0) > end for partition, end in ends):
            self.clear()
        for partition, offsets in offset_ranges.items():
            if partition not in self.ids.offsets:
                self.ids.set(partition, offsets.start)

    def resume(self, error: OffsetOutOfRange, offset_ranges: Ranges) -> Resumption:
        """Move to the next offsets that the log holds.

        Raises:
            Unavailable: the log was truncated. The snapshot is empty now, and must be read from the start.
        """
        resumption = error.resume(self.ids.offsets, offset_ranges)
        diverged = {
            partition: end.offset for partition, end in error.diverged_at.items() if partition not in offset_ranges
        }
        has_diverged = any(offset < self.ids.offsets[partition] for partition, offset in diverged.items())
        if resumption.is_truncated or has_diverged:  # the rows may contain lost records
            self.clear()
            raise Unavailable("The log was truncated, so the snapshot must be read from the start.")
        for gap in resumption.gaps:
            self.ids.set(gap.partition, gap.end)
        return resumption

    def add(self, batch: Batch) -> Iterator[None]:
        """Add the records of a batch, some in each step.

        Raises:
            ConfigurationError: the snapshot is too large.
        """
        topic, partition = batch.partition
        encoder = self._feed.key.encoder
        for start in range(0, len(batch.records), MAX_PIECE_RECORDS):
            yield
            for record in batch.records[start : start + MAX_PIECE_RECORDS]:
                # A record without a key replaces no other. A newer record moves its key to the end: the order of the log.
                key = (topic, record.key) if record.key is not None else (batch.partition, record.offset)
                encoded = encoder.encode(topic, partition, record) if record.value is not None else None
                if encoded is None:
                    self._replace(key, None, ())
                else:
                    event, body, values = encoded
                    self._replace(key, encoder.wire.frame(event, "", body), values)
        last_timestamp = batch.records[-1].timestamp if batch.records else None
        self.ids.set(batch.partition, batch.next_offset, last_timestamp, batch.leader_epoch)

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
