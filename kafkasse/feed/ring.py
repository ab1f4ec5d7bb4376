"""The frames of one selection, encoded once and kept in a bounded ring. Knows no Kafka, and nobody's socket.

A tail appends; readers take segments by number. Readers that have all there is are parked: the feed serves them itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gevent.event import Event

from kafkasse import frame
from kafkasse.errors import FilterError, KafkasseError
from kafkasse.frame import Encoder
from kafkasse.log import Batch, Gap, Partition
from kafkasse.position import IdType, IdWriter


@dataclass(frozen=True, slots=True)
class RingLimits:
    """What a feed may keep, and how long it may be silent."""

    max_ring_bytes: int
    max_ring_records: int
    heartbeat_s: float


class Segment:
    """The frames that one batch became. Segments are numbered; a reader's place is the number of the next one."""

    __slots__ = (
        "data",
        "gap",
        "id_after",
        "id_sent",
        "next_offset",
        "offsets",
        "partition",
        "place_after",
        "timestamps",
    )

    def __init__(self, partition: Partition, next_offset: int) -> None:
        self.partition = partition
        self.next_offset = next_offset
        self.gap: Gap | None = None  # in place of records
        self.offsets: list[int] = []  # of the record of each frame
        self.timestamps: list[int | None] = []  # likewise; only kept where ids tell times
        self.data = b""
        self.id_after = ""
        self.id_sent = ""  # the same, or "" where its last frame does not tell it: what follows that frame is hidden
        self.place_after: dict[Partition, int] | None = None  # where ids tell no offsets


class Place(NamedTuple):
    """How far a reader was served: the number of its next segment, the last id it was told, and its position."""

    number: int
    id_sent: str
    position: str | dict[Partition, int]


class Parked(Protocol):
    """A client that has all there is and waits. While its socket takes all, no greenlet is switched to."""

    def wrap(self, data: bytes) -> bytes:
        """The bytes as they go over the socket; the same for all parked readers of a feed."""
        ...

    def deliver(self, wrapped: bytes) -> bool:
        """Send without waiting. False: it could not take all, so it is parked no more and must go on by itself."""
        ...

    def wake(self) -> None:
        """The feed has ended or failed: go on by yourself."""
        ...


class SharedFeed:
    """The frames of one selection. See the module."""

    def __init__(self, encoder: Encoder, ids: IdWriter, kind: IdType, bounds: RingLimits) -> None:
        self.ids = ids
        self.wire = encoder.wire
        self.readers = 0
        self.idle_since = time.monotonic()
        self.failure: KafkasseError | None = None
        self.ended = False
        self._encoder = encoder
        self._kind = kind
        self._bounds = bounds
        self._ring: deque[Segment] = deque()
        self._ring_bytes = 0
        self._ring_records = 0
        self.first = 0  # number of the oldest segment in the ring
        self.head = 0  # number of the next segment
        self._ring_from = dict(ids.offsets)  # every frame from these offsets on is in the ring
        self._parked: dict[Parked, Place | None] = {}  # with the place of those that were given more than they took
        self._pushed = 0
        self._beat_due = time.monotonic() + bounds.heartbeat_s
        self._given = Place(0, ids.render(), self.place)  # how far those who are parked were served
        self._changed = Event()

    def is_at(self, ids: IdWriter) -> bool:
        """Whether these ids say what the feed's own say; where times stand in them, about those, too."""
        same = ids.offsets == self.ids.offsets
        return same and (self._kind is IdType.OFFSET or ids.timestamps == self.ids.timestamps)

    # Appending: the tail's side.

    def append(self, batch: Batch) -> None:
        """Encode a batch once, for everybody."""
        partition, records, next_offset = batch
        segment = Segment(partition, next_offset)
        try:
            frames, segment.offsets = self._encoder.encode_run(partition, records, self.ids)
        except FilterError:
            if len(records) == 1:
                raise
            for half in batch.halves():  # nobody may miss what stands before the record that the filter fails at
                self.append(half)
            return
        if self._kind is not IdType.OFFSET:
            times = {record.offset: record.timestamp for record in records}
            segment.timestamps = [times[offset] for offset in segment.offsets]
        self.ids.set(partition, next_offset)
        segment.data = b"".join(frames)
        self._add(segment, ends_visibly=bool(frames) and segment.offsets[-1] + 1 == next_offset)

    def declare(self, gap: Gap) -> None:
        """Tell all readers of records that are lost."""
        self.ids.set(gap.partition, gap.end)
        segment = Segment(gap.partition, gap.end)
        segment.gap = gap
        segment.data = frame.gap(self.wire, gap.partition, gap.start, gap.end, gap.reason, self.ids.render())
        self._add(segment, ends_visibly=True)

    def add_partitions(self, firsts: Mapping[Partition, int]) -> None:
        """The topic has grown: new partitions are read from their first record."""
        for partition, first in firsts.items():
            self.ids.set(partition, first)
            self._ring_from[partition] = first

    def _add(self, segment: Segment, ends_visibly: bool) -> None:
        if not segment.data:
            return  # filtered, or markers: the position has moved, and a heartbeat tells it
        segment.id_after = self.ids.render()
        segment.id_sent = segment.id_after if ends_visibly else ""
        if self._kind is IdType.TIMESTAMP:
            segment.place_after = dict(self.ids.offsets)
        self._ring.append(segment)
        self.head += 1
        self._ring_bytes += len(segment.data)
        self._ring_records += len(segment.offsets)

    def _trim(self) -> None:
        """Only once what is new has been given to all who wait: the ring may exceed its bounds by one fetch until then."""
        bounds = self._bounds
        while self._ring and (self._ring_bytes > bounds.max_ring_bytes or self._ring_records > bounds.max_ring_records):
            self._evict()

    def _evict(self) -> None:
        oldest = self._ring.popleft()
        self.first += 1
        self._ring_bytes -= len(oldest.data)
        self._ring_records -= len(oldest.offsets)
        self._ring_from[oldest.partition] = max(self._ring_from[oldest.partition], oldest.next_offset)

    def flush(self) -> None:
        """Give what is new to everybody who waits."""
        if self._pushed < self.head:
            data, last = self.joined(self._pushed), self._ring[-1]
            self._given = Place(self.head, last.id_sent, last.place_after or last.id_after)
            self._pushed = self.head
            self._push(data)
            self._trim()
            self._notify()
        elif time.monotonic() >= self._beat_due:
            self._push(self._heartbeat())

    def fail(self, error: KafkasseError | None) -> None:
        """End all readers: with this error, or politely."""
        self.failure = error
        self.ended = error is None
        self._notify()
        for parked in list(self._parked):
            parked.wake()

    def _heartbeat(self) -> bytes:
        now = self.ids.render()
        moved = now != self._given.id_sent
        self._given = Place(self._pushed, now, self.place)
        return (self.wire.id_alone(now) if moved else b"") or self.wire.heartbeat

    def _push(self, data: bytes) -> None:
        self._beat_due = time.monotonic() + self._bounds.heartbeat_s
        wrapped: bytes | None = None
        for parked, place in self._parked.items():
            if place is None:
                wrapped = parked.wrap(data) if wrapped is None else wrapped
                if not parked.deliver(wrapped):
                    # It has this much, and goes on from here: pushes that come before its greenlet does pass it by.
                    self._parked[parked] = self._given

    def _notify(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    # Reading: the clients' side.

    def segments(self, number: int) -> Iterator[Segment]:
        """The segments from `number` on. It must not have left the ring."""
        ring = self._ring
        for at in range(number - self.first, len(ring)):
            yield ring[at]

    def joined(self, number: int) -> bytes:
        """The bytes of all segments from `number` on."""
        return b"".join(segment.data for segment in self.segments(number))

    def covers(self, offsets: Mapping[Partition, int]) -> bool:
        """Whether a reader at `offsets` finds everything that it still needs in the ring."""
        ring_from = self._ring_from
        return len(offsets) == len(ring_from) and all(offsets.get(each, -1) >= at for each, at in ring_from.items())

    def holds(self, offsets: Mapping[Partition, int]) -> bool:
        """As covers(), and no offset lies beyond what the feed itself has read: nobody needs to ask Kafka."""
        ours = self.ids.offsets
        return self.covers(offsets) and all(offset <= ours[each] for each, offset in offsets.items())

    def wait(self, number: int, timeout_s: float) -> None:
        """Until there is a segment `number`, or the feed has ended."""
        if self.head <= number and not self.ended and self.failure is None:
            self._changed.wait(timeout_s)

    def poke(self) -> None:
        """Let all waiting readers look whether they are to end."""
        self._notify()

    def park(self, parked: Parked) -> None:
        """Serve a reader that has all segments up to head from now on."""
        self._parked[parked] = None

    def unpark(self, parked: Parked) -> Place:
        """Serve it no more. Returns how far it was served."""
        return self._parked.pop(parked, None) or self._given

    @property
    def place(self) -> str | dict[Partition, int]:
        """The feed's position, in the form in which a reader keeps it."""
        return dict(self.ids.offsets) if self._kind is IdType.TIMESTAMP else self.ids.render()

    @property
    def pushed(self) -> int:
        """The number of the segment that parked readers get next."""
        return self._pushed

    @property
    def parked(self) -> int:
        return len(self._parked)
