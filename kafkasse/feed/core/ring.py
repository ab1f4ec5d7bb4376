"""The ring: a bounded buffer with the latest frames of one feed. This module does no I/O, reading or encoding.

    first              flushed        head
      │                   │            │
      ▼                   ▼            ▼
      [ segment ][ segment ][ segment ]  ← append()
      evict()

Segments are numbered. A reader remembers the number of the segment that it reads next. If that number is less than `first`,
the ring has evicted the segment, and the reader must catch up through its own cursor.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import ref

from kafkasse.log import UNKNOWN_EPOCH, Gap, Offsets, Partition
from kafkasse.records.filter import Selector
from kafkasse.records.filter.dimensions import Values
from kafkasse.records.position import Place

# The memory that a segment takes up in addition to its frames. A test measures it.
SEGMENT_BYTES = 700
RECORD_BYTES = 16
MOVE_BYTES = 200
VALUES_BYTES = 16  # for each record with dispatch values, in its segment
INDEX_BYTES = 280  # for each dispatch value in the index, in addition to its text
INDEX_ENTRY_BYTES = 8


@dataclass(slots=True)
class Segment:
    """The frames of one piece of a batch, or of one gap.

    Attributes:
        partition: the partition of the records.
        next_offset: the offset after the records.
        data: the encoded frames.
        offsets: for each frame, the offset of its record.
        timestamps: for each frame, the timestamp of its record, or -1; empty unless the event IDs contain timestamps.
        moves: the partitions that have moved since the previous segment, with their places after this segment. This can be
            more than one partition, because a batch of filtered records moves its partition without a segment.
        ends_at_position: the event ID of the last frame is the position after this segment. False if filtered records follow
            that frame.
        gap: the gap that this segment reports, if it contains no records.
        leader_epoch: the leader epoch of the records, or UNKNOWN_EPOCH.
        values: for each frame, the dispatch values of its record; empty if all readers receive the segment.
        ends: for each frame with values, where it ends in `data`.
        start: the offset of the partition before this segment. Set by the ring.
        rank: the rank of the position after this segment; see Ring.rank(). Set by the ring.
    """

    partition: Partition
    next_offset: int
    data: bytes
    offsets: Sequence[int]
    timestamps: Sequence[int]
    moves: Sequence[tuple[Partition, Place]]
    ends_at_position: bool
    gap: Gap | None = None
    leader_epoch: int = UNKNOWN_EPOCH
    values: Sequence[Values] = ()
    ends: Sequence[int] = ()
    start: int = 0
    rank: int = 0

    @property
    def size(self) -> int:
        """About how many bytes of memory the segment takes up."""
        per_record = RECORD_BYTES * len(self.offsets) + VALUES_BYTES * len(self.values)
        return SEGMENT_BYTES + len(self.data) + per_record + MOVE_BYTES * len(self.moves)

    def selected(self, selector: Selector | None) -> Sequence[int]:
        """Return the indexes of the frames that a reader with this selector receives."""
        if selector is None:
            return range(len(self.offsets))
        return [index for index, values in enumerate(self.values) if selector.selects(values)]

    def frame(self, index: int) -> bytes:
        """Return one frame of a segment with dispatch values."""
        return self.data[self.ends[index - 1] if index else 0 : self.ends[index]]

    def frames(self, selector: Selector | None) -> tuple[bytes, int]:
        """Return the frames that a reader with this selector receives, and the number of their records."""
        if selector is None or not self.values:
            return self.data, len(self.offsets)
        selected = self.selected(selector)
        return b"".join([self.frame(index) for index in selected]), len(selected)


class RingLimits:
    """The limits of the rings of one worker.

    Args:
        max_bytes: the limit of one ring, including its bookkeeping.
        max_records: the limit of one ring.
        max_total_bytes: the limit of all rings together, which share it equally.
    """

    def __init__(self, max_bytes: int, max_records: int, max_total_bytes: int) -> None:
        self.max_records = max_records
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._rings: set[ref[Ring]] = set()

    @property
    def max_bytes(self) -> int:
        """The maximum number of bytes of each ring."""
        return min(self._max_bytes, self._max_total_bytes // max(1, len(self._rings)))

    def add(self, ring: Ring) -> None:
        """Count a ring as long as it exists. The other rings may have to shrink."""
        self._rings.add(ref(ring, self._rings.discard))
        for other in [reference() for reference in self._rings]:
            if other is not None:
                other.evict()


class Ring:
    """A bounded queue of segments.

    Args:
        limits: when evict() removes segments.
        offsets: the position before the first segment.
        random_weight: returns a random number of 64 bits; see rank().
        has_index: the frames have dispatch values, so that find_selected() can be called.

    Attributes:
        first: the number of the oldest segment.
        head: the number that the next segment gets.
        flushed: the number of the segment that parked clients receive next. evict() keeps it and later segments.
    """

    def __init__(
        self, limits: RingLimits, offsets: Offsets, random_weight: Callable[[], int], has_index: bool = False
    ) -> None:
        self.first = 0
        self.head = 0
        self.flushed = 0
        self._limits = limits
        # A dict, because a deque needs time in proportion to its length to access a segment in the middle.
        self._segments: dict[int, Segment] = {}
        self._bytes = 0
        self._records = 0
        self._complete_from = dict(offsets)  # the ring holds every frame at or after these offsets
        self._offsets = dict(offsets)  # the position after the newest segment
        self._random_weight = random_weight
        self._weights = {partition: random_weight() for partition in offsets}
        self._rank_before = self._rank_after = self.rank(offsets)  # before the first segment, and after the newest
        self._truncated = -1  # the newest segment that reports a truncation
        self._has_index = has_index
        self._index: dict[Values | None, _Indexed] = {}  # None: the segments that all readers receive
        limits.add(self)

    def __getitem__(self, number: int) -> Segment:
        """Return a segment that the ring holds."""
        return self._segments[number]

    def append(self, segment: Segment) -> None:
        """Add a segment. The ring may exceed its limits until evict() is called."""
        segment.start = self._offsets.get(segment.partition, 0)
        for partition, place in segment.moves:
            assert place.offset is not None  # noqa: S101 - a partition that moves has an offset
            if partition not in self._weights:
                self._weights[partition] = self._random_weight()
            self._rank_after += self._weights[partition] * (place.offset - self._offsets.get(partition, -1))
            self._offsets[partition] = place.offset
        segment.rank = self._rank_after
        if segment.gap is not None and segment.gap.is_truncation:
            self._truncated = self.head
        self._segments[self.head] = segment
        if self._has_index:
            self._add_to_index(segment)
        self.head += 1
        self._bytes += segment.size
        self._records += len(segment.offsets)

    @property
    def bytes(self) -> int:
        """How many bytes of memory the segments take up."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """Whether evict() would remove segments if all were flushed."""
        return self._bytes > self._limits.max_bytes or self._records > self._limits.max_records

    def evict(self) -> None:
        """Remove the oldest segments until the ring is within its limits."""
        while self.first < self.flushed and self.is_full:
            oldest = self._segments.pop(self.first)
            self.first += 1
            self._rank_before = oldest.rank
            if self._has_index:
                self._remove_from_index(oldest)
            self._bytes -= oldest.size
            self._records -= len(oldest.offsets)
            complete_from = self._complete_from
            complete_from[oldest.partition] = max(complete_from[oldest.partition], oldest.next_offset)

    def _add_to_index(self, segment: Segment) -> None:
        """Index the newest segment, and let it share the objects of its values with the index."""
        shared: list[Values] = []
        for values in segment.values or (None,):
            indexed = self._index.get(values)
            if indexed is None:
                indexed = self._index[values] = _Indexed(values, [])
                self._bytes += indexed.size
            if not indexed.numbers or indexed.numbers[-1] != self.head:
                indexed.numbers.append(self.head)
                self._bytes += INDEX_ENTRY_BYTES
            if indexed.values is not None:
                shared.append(indexed.values)
        segment.values = shared

    def _remove_from_index(self, oldest: Segment) -> None:
        for values in dict.fromkeys(oldest.values or (None,)):
            indexed = self._index[values]
            del indexed.numbers[0]
            self._bytes -= INDEX_ENTRY_BYTES
            if not indexed.numbers:
                del self._index[values]
                self._bytes -= indexed.size

    def find_selected(self, selector: Selector, first: int, limit: int) -> list[int]:
        """Return the numbers of the first `limit` segments from `first` on that a reader with this selector receives."""
        numbers: set[int] = set()
        for values in (None, *selector.values):
            if (indexed := self._index.get(values)) is not None:
                start = bisect_left(indexed.numbers, first)
                numbers.update(indexed.numbers[start : start + limit])
        return sorted(numbers)[:limit]

    def add_partitions(self, offsets: Offsets) -> None:
        """Add partitions that start at these offsets."""
        self._complete_from.update(offsets)

    def restart(self, offsets: Offsets) -> None:
        """Remove all segments, which must be flushed. From now on, readers can join at these offsets or later."""
        self._segments.clear()
        self._index.clear()
        self._bytes = self._records = 0
        self.first = self.head
        self._complete_from = dict(offsets)
        self._offsets = dict(offsets)
        for partition in offsets:
            self._weights.setdefault(partition, self._random_weight())
        self._rank_before = self._rank_after = self.rank(offsets)

    def skip_to(self, offsets: Offsets) -> None:
        """Make all readers fall behind, even those that have read all segments. They can join at these offsets or later."""
        self.head += 1
        self.flushed = self.head
        self.restart(offsets)

    def covers(self, offsets: Offsets) -> bool:
        """Return whether the ring has evicted nothing that a reader at `offsets` still needs."""
        complete_from = self._complete_from
        return len(offsets) == len(complete_from) and all(
            offsets.get(partition, -1) >= offset for partition, offset in complete_from.items()
        )

    def rank(self, offsets: Offsets) -> int:
        """Return a number that grows with each offset. Two positions have the same rank only if they are equal.

        It is the sum of all offsets, each multiplied by a random number of 64 bits, so that no client can find two positions
        with the same rank. With ranks, find() needs no copy of the position at each segment. -1 if the ring does not know a
        partition.
        """
        weights = self._weights
        try:
            return sum([weights[partition] * (offset + 1) for partition, offset in offsets.items()])
        except KeyError:
            return -1

    def find(self, offsets: Offsets) -> int:
        """Return the number of the segment that a reader at `offsets` needs next.

        A binary search finds a position that the event IDs of this feed contain. A reader at another position gets the
        number of the first segment, and skips the records that it already has.
        """
        rank = self.rank(offsets)
        first = max(self.first, self._truncated + 1)  # readers that join are at a position after the truncation
        number = first + bisect_left(range(first, self.head), rank, key=lambda at: self._segments[at].rank)
        if number == self.head:
            return first
        segment = self._segments[number]
        if rank == segment.rank:
            return number + 1
        offset = offsets.get(segment.partition, -1)
        missing = self._weights[segment.partition] * (segment.next_offset - offset)
        if offset >= segment.start and rank + missing == segment.rank:
            return number  # at a record of this segment
        return first

    def rank_before(self, number: int) -> int:
        """Return the rank of the position before a segment."""
        return self._segments[number - 1].rank if number > self.first else self._rank_before


class _Indexed(NamedTuple):
    """The segments with a dispatch value, in ascending order. The segments share the object of the value."""

    values: Values | None
    numbers: list[int]

    @property
    def size(self) -> int:
        return INDEX_BYTES + sum(map(sys.getsizeof, self.values or ()))
