"""The ring: a bounded buffer with the latest frames of one feed. This module does no I/O, reading or encoding.

    first                         head
      │                            │
      ▼                            ▼
      [ segment ][ segment ][ segment ]  ← append()
      evict()

Segments are numbered. A reader remembers the number of the segment that it reads next. If that number is less than `first`,
the ring has evicted the segment, and the reader must catch up through its own cursor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafkasse.log import Gap, Partition


@dataclass(frozen=True, slots=True)
class RingLimits:
    """The limits of a ring. `max_bytes` counts the bytes of frames, not the bookkeeping of each segment."""

    max_bytes: int
    max_records: int


@dataclass(slots=True)
class Segment:
    """The frames of one batch, or of one gap.

    Attributes:
        partition: the partition of the batch.
        next_offset: the offset after the batch.
        data: the encoded frames.
        offsets: for each frame, the offset of its record.
        timestamps: for each frame, the timestamp of its record; empty unless the event IDs contain timestamps.
        gap: the gap that this segment reports, if it contains no records.
        next_offsets: the next offset of each partition that has moved since the previous segment. This can be more than one
            partition, because a batch whose records are all filtered out moves its partition but adds no segment.
        next_timestamps: for the same partitions, the timestamp in the event ID; empty unless event IDs contain timestamps.
        ends_at_position: the event ID of the last frame is the position after this segment. False if filtered records follow
            that frame.
    """

    partition: Partition
    next_offset: int
    data: bytes
    offsets: list[int]
    timestamps: list[int | None]
    gap: Gap | None
    next_offsets: dict[Partition, int]
    next_timestamps: dict[Partition, int]
    ends_at_position: bool


class Ring:
    """A bounded queue of segments.

    Args:
        limits: when evict() removes segments.
        offsets: the position before the first segment.

    Attributes:
        first: the number of the oldest segment.
        head: the number that the next segment gets.
    """

    def __init__(self, limits: RingLimits, offsets: Mapping[Partition, int]) -> None:
        self.first = 0
        self.head = 0
        self._limits = limits
        self._segments: deque[Segment] = deque()
        self._bytes = 0
        self._records = 0
        self._complete_from = dict(offsets)  # the ring holds every frame at or after these offsets

    def append(self, segment: Segment) -> None:
        """Add a segment. The ring may exceed its limits until evict() is called."""
        self._segments.append(segment)
        self.head += 1
        self._bytes += len(segment.data)
        self._records += len(segment.offsets)

    def evict(self) -> None:
        """Remove the oldest segments until the ring is within its limits."""
        limits = self._limits
        while self._segments and (self._bytes > limits.max_bytes or self._records > limits.max_records):
            oldest = self._segments.popleft()
            self.first += 1
            self._bytes -= len(oldest.data)
            self._records -= len(oldest.offsets)
            complete_from = self._complete_from
            complete_from[oldest.partition] = max(complete_from[oldest.partition], oldest.next_offset)

    def add_partitions(self, offsets: Mapping[Partition, int]) -> None:
        """Add partitions that start at these offsets."""
        self._complete_from.update(offsets)

    def segments(self, number: int) -> Iterator[Segment]:
        """Yield the segments from `number` on. The ring must not have evicted segment `number`."""
        segments = self._segments
        for index in range(number - self.first, len(segments)):
            yield segments[index]

    def covers(self, offsets: Mapping[Partition, int]) -> bool:
        """Return whether the ring has evicted nothing that a reader at `offsets` still needs."""
        complete_from = self._complete_from
        return len(offsets) == len(complete_from) and all(
            offsets.get(partition, -1) >= offset for partition, offset in complete_from.items()
        )
