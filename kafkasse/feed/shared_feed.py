"""A shared feed: the frames of one selection, encoded once for all of its readers. The tail reads from the log.

    Tail ─▶ append() ─▶ encode ─▶ ring ─▶ readers that have a greenlet take segments   (reader.py)
                                   └────▶ flush() sends to parked clients

A parked client has received everything and needs no greenlet: flush() writes to its socket without waiting. For a thousand
parked clients, a record is encoded once and sent with a thousand send() calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from gevent.event import Event

from kafkasse import frame
from kafkasse.errors import KafkasseError
from kafkasse.event_loop import take_turn
from kafkasse.feed.ring import Ring, RingLimits, Segment
from kafkasse.frame import Encoder
from kafkasse.log import Batch, Gap, Partition
from kafkasse.position import IdType, IdWriter


class FeedKey(NamedTuple):
    """Streams with the same key share a feed.

    Attributes:
        encoder: encodes the records.
        topics: the topics, in alphabetical order.
        selected: the partitions of those topics of which the streams contain only selected partitions.
    """

    encoder: Encoder
    topics: tuple[str, ...]
    selected: frozenset[Partition] = frozenset()

    @property
    def partial_topics(self) -> frozenset[str]:
        """The topics of which the streams contain only selected partitions."""
        return frozenset(partition.topic for partition in self.selected)


class FeedPosition(NamedTuple):
    """How far a client has read a feed.

    Attributes:
        segment: the number of the segment that it needs next.
        offsets: the next offset of every partition.
        timestamps: the timestamps of the event ID; empty unless the event IDs contain timestamps.
        id_sent: the last event ID that the client received is this position.
    """

    segment: int
    offsets: Mapping[Partition, int]
    timestamps: Mapping[Partition, int]
    id_sent: bool


class ParkedClient(Protocol):
    """A client that has received everything. It needs no greenlet while its socket accepts all bytes at once."""

    def to_chunk(self, data: bytes) -> bytes:
        """Return `data` as it is sent over the socket. The result is the same for all parked clients of a feed."""
        ...

    def try_send(self, chunk: bytes) -> bool:
        """Send without waiting. If the socket does not accept all bytes, keep the rest, call wake() and return False."""
        ...

    def wake(self) -> None:
        """Start a greenlet that calls Reader.unpark()."""
        ...


class SharedFeed:
    """The frames of one selection of topics in one format.

    Args:
        key: the encoder and the selection.
        ids: writes the event IDs. Its position is where the feed starts.
        id_type: what the event IDs contain.
        limits: the limits of the ring.
        heartbeat_s: parked clients receive a heartbeat after this many seconds without data.

    Attributes:
        partitions: the partitions of the feed, as the keys of a dict. The tail adds partitions that are created later.
        readers: the number of readers. Feeds.open() increments it before it opens a reader; the reader decrements it.
        idle_since: when the last reader closed, by the monotonic clock.
        failure: the error that ended the feed, or None.
        ended: the feed ended without an error. Its readers end their streams, and the clients reconnect.
    """

    def __init__(self, key: FeedKey, ids: IdWriter, id_type: IdType, limits: RingLimits, heartbeat_s: float) -> None:
        self.key = key
        self.ids = ids
        self.partitions = dict.fromkeys((*ids.offsets, *ids.pending))
        self.ring = Ring(limits, ids.offsets)
        self.wire = key.encoder.wire
        self.readers = 0
        self.idle_since = time.monotonic()
        self.failure: KafkasseError | None = None
        self.ended = False
        self._encoder = key.encoder
        self._has_timestamps = id_type is not IdType.OFFSET
        self._heartbeat_s = heartbeat_s
        self._heartbeat_at = time.monotonic() + heartbeat_s
        self._moved: dict[Partition, None] = {}  # the partitions that moved since the last segment
        # The value is None, or the position of a client whose socket has not accepted all bytes.
        self._parked: dict[ParkedClient, FeedPosition | None] = {}
        self._flushed = 0  # the number of the segment that parked clients receive next
        self._flushed_offsets = dict(ids.offsets)
        self._flushed_timestamps = self._timestamps()
        self._id_flushed = True  # parked clients have received the event ID of the feed's position
        self._changed = Event()

    def is_at(self, ids: IdWriter) -> bool:
        """Return whether `ids` is at the position of this feed. The timestamps of idle partitions may differ."""
        return ids.offsets == self.ids.offsets and ids.pending.keys() == self.ids.pending.keys()

    def covers(self, ids: IdWriter) -> bool:
        """Return whether the feed has evicted nothing that a reader at the position of `ids` still needs."""
        pending = self.ids.pending
        return (
            self.ring.covers(ids.offsets)
            and ids.pending.keys() == pending.keys()
            and all(start_ms >= pending[each] for each, start_ms in ids.pending.items())
        )

    def holds(self, ids: IdWriter) -> bool:
        """Return whether a reader at the position of `ids` can start from the ring: it is covered, and not ahead of it."""
        position = self.ids.offsets
        return self.covers(ids) and all(offset <= position[each] for each, offset in ids.offsets.items())

    # The tail calls these.

    def append(self, batch: Batch) -> None:
        """Encode a batch for all readers, in pieces. Other greenlets may run between two pieces.

        Raises:
            FilterError: the filter failed at a record; the records before it have been appended.
        """
        end: int | None = None
        while end != len(batch.records):
            take_turn(urgent=True)
            piece = self._encoder.encode_piece(batch, end or 0, self.ids)
            end = piece.end
            data = b"".join(piece.frames)
            self._add(
                batch.partition, piece.next_offset, data, piece.offsets, piece.timestamps, None, piece.ends_at_position
            )

    def declare(self, gap: Gap) -> None:
        """Report lost records to all readers."""
        self.ids.set(gap.partition, gap.end)
        data = frame.gap(self.wire, gap, self.ids.render())
        self._add(gap.partition, gap.end, data, [], [], gap, True)

    def add_partitions(self, offsets: Mapping[Partition, int]) -> None:
        """Add new partitions, which start at these offsets."""
        self.ring.add_partitions(offsets)
        for partition, offset in offsets.items():
            self.ids.set(partition, offset)
            self._moved[partition] = None
        self._id_flushed = False

    def _add(
        self,
        partition: Partition,
        next_offset: int,
        data: bytes,
        offsets: list[int],
        timestamps: list[int | None],
        gap: Gap | None,
        ends_at_position: bool,
    ) -> None:
        self._moved[partition] = None
        if not data:  # all records were filtered out; the next event or heartbeat sends the new position
            self._id_flushed = False
            return
        moved, self._moved = self._moved, {}
        next_offsets = {each: self.ids.offsets[each] for each in moved}
        id_timestamps = self.ids.timestamps if self._has_timestamps else {}
        next_timestamps = {each: id_timestamps[each] for each in moved if each in id_timestamps}
        self.ring.append(
            Segment(
                partition, next_offset, data, offsets, timestamps, gap, next_offsets, next_timestamps, ends_at_position
            )
        )

    def flush(self) -> None:
        """Send new frames to all parked clients and wake the waiting readers, or send a heartbeat if one is due."""
        if self._flushed < self.ring.head:
            data = []
            for segment in self.ring.segments(self._flushed):
                data.append(segment.data)
                self._flushed_offsets.update(segment.next_offsets)
                self._flushed_timestamps.update(segment.next_timestamps)
            self._id_flushed = segment.ends_at_position and not self._moved
            self._flushed = self.ring.head
            self._send_to_parked(b"".join(data))
            self.ring.evict()
            self._notify()
        elif self.heartbeat_is_due:
            self._send_to_parked(self._heartbeat())

    @property
    def heartbeat_is_due(self) -> bool:
        """Whether flush() would send a heartbeat if there were no new frames."""
        return time.monotonic() >= self._heartbeat_at

    def _heartbeat(self) -> bytes:
        if self._id_flushed:
            return self.wire.heartbeat
        self._flushed_offsets = dict(self.ids.offsets)
        self._flushed_timestamps = self._timestamps()
        self._id_flushed = True
        return self.wire.position(self.ids.render()) or self.wire.heartbeat

    def _timestamps(self) -> dict[Partition, int]:
        return dict(self.ids.timestamps) if self._has_timestamps else {}

    def _send_to_parked(self, data: bytes) -> None:
        self._heartbeat_at = time.monotonic() + self._heartbeat_s
        chunk: bytes | None = None
        position: FeedPosition | None = None
        for client, stopped_at in self._parked.items():
            if stopped_at is None:
                chunk = client.to_chunk(data) if chunk is None else chunk
                if not client.try_send(chunk):
                    # The client keeps the rest of this chunk, so it must not receive later chunks until its greenlet runs.
                    position = position or self._flushed_position()
                    self._parked[client] = position

    def _flushed_position(self) -> FeedPosition:
        return FeedPosition(
            self._flushed, dict(self._flushed_offsets), dict(self._flushed_timestamps), self._id_flushed
        )

    def fail(self, error: KafkasseError | None) -> None:
        """End all streams of this feed, with this error. If it is None, the streams end so that their clients reconnect."""
        self.failure = error
        self.ended = error is None
        self._notify()
        for client in list(self._parked):
            client.wake()

    def _notify(self) -> None:
        changed, self._changed = self._changed, Event()
        changed.set()

    # Readers call these.

    def wait(self, segment: int, timeout_s: float) -> None:
        """Wait until the ring has a segment with this number, or the feed has ended."""
        if self.ring.head <= segment and not self.ended and self.failure is None:
            self._changed.wait(timeout_s)

    def wake_readers(self) -> None:
        """Wake all waiting readers, so that each checks whether it was stopped."""
        self._notify()

    @property
    def position(self) -> FeedPosition:
        """The position after everything that the feed has appended. Its maps change when the feed appends more."""
        return FeedPosition(
            self.ring.head, self.ids.offsets, self.ids.timestamps if self._has_timestamps else {}, False
        )

    def can_park(self, segment: int) -> bool:
        """Return whether a client that needs this segment next has received everything that the feed has flushed."""
        return segment == self.ring.head == self._flushed and self.failure is None and not self.ended

    def park(self, client: ParkedClient) -> None:
        """Send frames to this client from now on. It must have received everything up to the head of the ring."""
        self._parked[client] = None

    def unpark(self, client: ParkedClient) -> FeedPosition:
        """Stop sending to this client. Return its position, which includes the bytes that the client keeps unsent."""
        return self._parked.pop(client, None) or self._flushed_position()

    @property
    def parked(self) -> int:
        """The number of parked clients."""
        return len(self._parked)
