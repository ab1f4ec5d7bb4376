"""The core of a shared feed: its position, its ring, and what its parked clients have received.

    frames ─▶ add() ─▶ ring ─▶ readers that have a greenlet take segments   (reader.py)
                        └────▶ send_frames() sends to parked clients

This module has no clock and opens no socket: the caller passes in the time, and ParkedClient.try_send() sends without
waiting. The feed may change between two steps of a generator. SharedFeed (shared_feed.py) is the feed with greenlets.

A parked client has received everything and needs no greenlet: send_frames() calls its try_send(). For a thousand
parked clients, a record is encoded once and sent with a thousand send() calls. If the encoder has dimensions, one lookup
finds the clients that receive a record; the others cost nothing (subscribers.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

from kafkasse.errors import KafkasseError
from kafkasse.feed.core.epochs import FeedEpochs
from kafkasse.feed.core.ring import Ring, RingLimits, Segment
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.subscribers import (
    FeedPosition,
    Flush,
    Group,
    NewFrames,
    Parked,
    ParkedClient,
    ParkedReader,
    Subscribers,
)
from kafkasse.log import Batch, Gap, Offsets, Partition
from kafkasse.records import frame
from kafkasse.records.encoder import Encoder, Piece
from kafkasse.records.filter import Selector
from kafkasse.records.frame import Wire
from kafkasse.records.position import IdWriter, Place, Places
from kafkasse.route import NewestBy, Route

MAX_FLUSH_BYTES = 262_144  # send to parked clients at least this often while a long batch is encoded
PARKED_CLIENTS_PER_TURN = 32  # a system call each
RECEIVERS_PER_TURN = 1000  # a list entry each


def gap_events(wire: Wire, gaps: Sequence[Gap], position_id: str) -> bytes:
    """Return gap events. Only the last has an ID, the position after all gaps, so that the client receives all of them."""
    last = len(gaps) - 1
    return b"".join(frame.gap(wire, gap, position_id if at == last else "") for at, gap in enumerate(gaps))


class FeedKey(NamedTuple):
    """Streams with the same key share a feed.

    Attributes:
        encoder: encodes the records.
        topics: the topics, in alphabetical order; () if they depend on a route's patterns.
        selected: the selected partitions, in topics of which the streams do not contain all partitions.
        follows: the route whose patterns decide the topics. New topics that match join the feed.
        newest_by: how to recognize outdated records, which are dropped; None: all records are sent.
    """

    encoder: Encoder
    topics: tuple[str, ...] = ()
    selected: frozenset[Partition] = frozenset()
    follows: Route | None = None
    newest_by: NewestBy | None = None

    @property
    def partial_topics(self) -> frozenset[str]:
        """The topics of which the streams contain only selected partitions."""
        return frozenset(partition.topic for partition in self.selected)


class FeedState(Enum):
    """The states of a feed. After a failure, its state is the error instead, which the readers raise."""

    OPEN = "receives records"
    ENDED = "the readers end their streams, and the clients reconnect"


class FeedCore:
    """The frames of one selection of topics in one format.

    Args:
        key: the encoder and the selection.
        ids: writes the event IDs. Its position is where the feed starts.
        limits: the limits of the ring.
        heartbeat_s: parked clients receive a heartbeat after this many seconds without data.
        stats: the totals of the route.
        now: the time, by a monotonic clock.
        random_weight: returns a random number of 64 bits; see Ring.rank().

    Attributes:
        epochs: the leader epochs that the feed has read.
        partitions: the partitions of the feed, as the keys of a dict. The tail adds partitions that are created later.
        added: where each partition that the tail has added starts.
        readers: the number of readers. Feeds.open() increments it before it opens a reader; the reader decrements it.
        idle_since: when the last reader closed, by the same clock as `now`.
        state: whether the feed is open, has ended, or has failed with an error.
    """

    def __init__(
        self,
        key: FeedKey,
        ids: IdWriter,
        limits: RingLimits,
        heartbeat_s: float,
        stats: RouteStats,
        now: float,
        random_weight: Callable[[], int],
    ) -> None:
        self.key = key
        self.ids = ids
        self.partitions = dict.fromkeys((*ids.offsets, *ids.pending))
        self.added: dict[Partition, Place] = {}
        self.epochs = FeedEpochs(ids)
        self.ring = Ring(limits, ids.offsets, random_weight, has_index=key.encoder.dimensions is not None)
        self.wire = key.encoder.wire
        self.id_frequency = key.encoder.id_frequency
        self.readers = 0
        self.stats = stats
        self.idle_since = now
        self.state: FeedState | KafkasseError = FeedState.OPEN
        self._has_dimensions = key.encoder.dimensions is not None
        self._heartbeat_s = heartbeat_s
        self._heartbeat_at = now + heartbeat_s
        self._moved: dict[Partition, None] = {}  # the partitions that moved since the last segment
        self._subscribers = Subscribers()
        self._unsent_bytes = 0  # of the segments that flush() has not sent
        start = FeedPosition(0, ids.places(), True)
        self._last_flush = Flush(start, start)
        self._last_id: tuple[Places, str] = ({}, "")  # see id_at()

    def is_at(self, ids: IdWriter) -> bool:
        """Return whether `ids` is at the position of this feed. The timestamps of idle partitions may differ."""
        return ids.offsets == self.ids.offsets and ids.pending.keys() == self.ids.pending.keys()

    def covers(self, ids: IdWriter) -> bool:
        """Return whether the feed has evicted nothing that a reader at the position of `ids` still needs."""
        pending = self.ids.pending
        return (
            self.ring.covers(ids.offsets)
            and ids.pending.keys() == pending.keys()
            and all(start_ms >= pending[partition] for partition, start_ms in ids.pending.items())
            and self._has_topics_of(ids)
            and self.epochs.match(ids)
        )

    def _has_topics_of(self, ids: IdWriter) -> bool:
        """Return whether the feed reads the topics of `ids`, and not former topics with the same names."""
        topic_ids = self.ids.topic_ids
        return all(topic_ids.get(name, topic_id) == topic_id for name, topic_id in ids.topic_ids.items())

    def holds(self, ids: IdWriter) -> bool:
        """Return whether a reader at the position of `ids` can start from the ring: it is not before or after the ring."""
        position = self.ids.offsets
        return self.covers(ids) and all(offset <= position[partition] for partition, offset in ids.offsets.items())

    # New frames.

    def begin(self, batch: Batch) -> None:
        """Prepare for the pieces of a batch."""
        self.epochs.append(batch)

    def add(self, batch: Batch, piece: Piece) -> None:
        """Add the next piece of a batch. `ids` is at the position after the piece."""
        self._moved[batch.partition] = None
        if piece.frames:
            self._add(self._segment(batch, piece))
        else:  # all records were filtered out; the next event or heartbeat sends the new position
            self._change_flushed(id_sent=False)

    @property
    def must_flush(self) -> bool:
        """Whether the ring is full, or the frames that parked clients have not received take up MAX_FLUSH_BYTES."""
        return self.ring.is_full or self._unsent_bytes >= MAX_FLUSH_BYTES

    def _segment(self, batch: Batch, piece: Piece) -> Segment:
        return Segment(
            batch.partition,
            piece.next_offset,
            b"".join(piece.frames),
            array("q", piece.offsets),
            array("q", [-1 if timestamp is None else timestamp for timestamp in piece.timestamps]),
            self._moves(),
            # With dimensions, most clients do not receive the last frame.
            piece.ends_at_position and not self._has_dimensions,
            leader_epoch=batch.leader_epoch,
            values=piece.values,
            ends=array("I", accumulate(map(len, piece.frames))) if self._has_dimensions else (),
        )

    def report_gap(self, gap: Gap) -> None:
        """Report lost records to all readers. If the gap is a truncation, the caller flushes first."""
        self.stats.gaps[gap.reason] += 1
        self.ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        if gap.is_truncation:
            # A reader that joins later must not receive the records that the log has lost.
            self.ring.restart(self.ids.offsets)
            self.epochs.truncate(gap)
        data = frame.gap(self.wire, gap, self.ids.render())
        self._moved[gap.partition] = None
        self._add(Segment(gap.partition, gap.end, data, (), (), self._moves(), True, gap))

    def add_partitions(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Add new partitions, which start at these offsets. `topic_ids` are those of their topics."""
        self.ids.topic_ids.update(topic_ids)
        self.ring.add_partitions(offsets)
        for partition, offset in offsets.items():
            self.ids.set(partition, offset)
            self.added[partition] = self.ids.place(partition)
            self._moved[partition] = None
        self._change_flushed(id_sent=False)

    def skip_to(self, places: Places, topic_ids: Mapping[str, str]) -> None:
        """Continue at a later position. All readers fall behind, and read the skipped records through their own cursors.

        The caller flushes first.

        Args:
            places: the position, which may contain new partitions.
            topic_ids: the ID of each topic in `places`.
        """
        self.ids.topic_ids.update(topic_ids)
        for parked in self.parked:
            parked.reader.unparked(self.unpark(parked))
            parked.client.wake()
        for partition, place in places.items():
            if place.offset is not None:
                self.ids.set(partition, place.offset, place.timestamp, place.epoch)
        self.epochs.restart()
        self._moved.clear()
        self.ring.skip_to(self.ids.offsets)
        self._change_flushed(segment=self.ring.head, places=self.ids.places(), id_sent=False)

    def _moves(self) -> tuple[tuple[Partition, Place], ...]:
        moved, self._moved = self._moved, {}
        return tuple((partition, self.ids.place(partition)) for partition in moved)

    def _add(self, segment: Segment) -> None:
        self.ring.append(segment)
        self._unsent_bytes += segment.size
        self.ring.evict()  # otherwise a full ring would be flushed after each segment

    @property
    def has_new_frames(self) -> bool:
        """Whether there are frames that the parked clients have not received."""
        return self.ring.flushed < self.ring.head

    def _change_flushed(self, **changes: Any) -> None:
        """Change the position of the parked clients."""
        self._last_flush.after = self._last_flush.after._replace(**changes)

    def send_frames(self, now: float) -> Iterator[None]:
        """Send the frames that are new since the last flush to the parked clients. No other flush may be in progress."""
        ring = self.ring
        head = ring.head
        segments = [ring[number] for number in range(ring.flushed, head)]
        places = dict(self._last_flush.after.places)
        for segment in segments:
            places.update(segment.moves)
        self._unsent_bytes = 0
        if self._has_dimensions:
            new = yield from self._distribute(segments)
            frames_for, groups = new.frames_for, new.receivers
        else:
            self._heartbeat_at = now + self._heartbeat_s
            frames = (
                b"".join([segment.data for segment in segments]),
                sum([len(segment.offsets) for segment in segments]),
            )
            frames_for, groups = lambda group: frames, self._subscribers.groups
        position = FeedPosition(head, places, segments[-1].ends_at_position and not self._moved)
        yield from self._send_to_parked(frames_for, groups, position)
        ring.evict()

    def _distribute(self, segments: Sequence[Segment]) -> Generator[None, None, NewFrames]:
        """Find the receivers of the frames in these segments.

        No client can park until all steps are done, because the ring has frames that are not flushed.
        """
        new = NewFrames(segments, self._subscribers)
        size = 0
        for piece_size in new.find_receivers():
            if (size := size + piece_size) >= RECEIVERS_PER_TURN:
                yield
                size = 0
        return new

    def send_heartbeat(self, now: float) -> Iterator[None]:
        """Send a heartbeat to the parked clients. No other flush may be in progress."""
        self._heartbeat_at = now + self._heartbeat_s
        has_flushed_all = self.ring.flushed == self.ring.head  # frames may have been appended since the last flush
        flushed = self._last_flush.after
        position = self.position if has_flushed_all else flushed
        ids = self.ids if has_flushed_all else self.ids.copy_at(position.places)
        data = b"" if flushed.id_sent else self.wire.position(ids.render())
        position = position._replace(id_sent=True) if data else flushed
        data = data or self.wire.heartbeat
        yield from self._send_to_parked(lambda group: (data, 0), self._subscribers.groups, position)

    def heartbeat_is_due(self, now: float) -> bool:
        """Return whether it is time to call send_heartbeat()."""
        return now >= self._heartbeat_at

    def _send_to_parked(
        self, frames_for: Callable[[Group], tuple[bytes, int]], groups: Iterable[Group], position: FeedPosition
    ) -> Iterator[None]:
        """Send to the parked clients of these groups. Afterwards, all parked clients are at `position`.

        Args:
            frames_for: returns the bytes for a group, and the number of records in them.
            groups: the groups that receive bytes.
            position: the position after the bytes.
        """
        self._last_flush = flush = Flush(self._last_flush.after, position, groups)
        self.ring.flushed = position.segment
        data = b""
        chunks: dict[str, bytes] = {}  # by content coding
        while flush.unsent:
            yield
            for _ in range(min(PARKED_CLIENTS_PER_TURN, len(flush.unsent))):
                parked, _ = flush.unsent.popitem()
                client, group = parked.client, parked.group
                if group is not flush.sending:
                    flush.sending, previous = group, data
                    data, events = frames_for(group)
                    group.count(events, len(data))
                    if data is not previous:  # a heartbeat is the same for all groups
                        chunks = {}
                self.stats.events += events
                self.stats.bytes += len(data)
                chunk = chunks.get(coding := client.coding)
                if chunk is None:
                    chunk = chunks[coding] = client.to_chunk(data)
                if not client.try_send(chunk, data):
                    parked.reader.unparked(self.unpark(parked))

    def fail(self, error: KafkasseError | None) -> None:
        """End all streams of this feed, with this error. If it is None, the streams end so that their clients reconnect."""
        self.state = error or FeedState.ENDED
        for parked in self.parked:
            parked.client.wake()

    @property
    def parked(self) -> list[Parked]:
        """The parked clients."""
        return [parked for group in self._subscribers.groups for parked in group.clients]

    # Readers call these.

    @property
    def position(self) -> FeedPosition:
        """The position after everything that the feed has appended."""
        is_flushed = self.ring.flushed == self.ring.head and not self._moved
        return FeedPosition(self.ring.head, self._last_flush.after.places if is_flushed else self.ids.places(), False)

    def id_at(self, places: Places) -> str:
        """Return the event ID of a position. Clients that open one after another are at the same position."""
        if places is not self._last_id[0]:
            self._last_id = places, self.ids.copy_at(places).render()
        return self._last_id[1]

    @property
    def is_open(self) -> bool:
        """Whether the feed has neither failed nor ended."""
        return self.state is FeedState.OPEN

    def can_park(self, segment: int) -> bool:
        """Return whether a client that needs this segment next has received everything that the feed has flushed."""
        return segment == self.ring.head == self.ring.flushed and self.is_open

    def park(self, client: ParkedClient, reader: ParkedReader, selector: Selector | None = None) -> Parked:
        """Send frames to this client from now on. It must have received everything up to the head of the ring.

        Args:
            client: the client.
            reader: its reader.
            selector: with dimensions, the records that the client receives.
        """
        # The parked clients move past the records that were filtered out since the last flush, as this client has.
        moved = {partition: self.ids.place(partition) for partition in self._moved}
        places = self._last_flush.after.places
        if any(places.get(partition) != place for partition, place in moved.items()):
            self._change_flushed(places={**places, **moved})
        return self._subscribers.add(client, reader, selector)

    def position_of(self, parked: Parked) -> FeedPosition:
        """Return the position of a parked client, which includes the bytes that the client keeps unsent."""
        return self._last_flush.position_of(parked)

    def unpark(self, parked: Parked) -> FeedPosition:
        """Stop sending to this client. Return its position."""
        position = self.position_of(parked)
        self._last_flush.unsent.pop(parked, None)
        self._subscribers.remove(parked)
        return position
