"""A reader is one client's view of a feed: what the client has received, and where its next frames come from.

    open ─▶ SNAPSHOT          if the route starts with a snapshot
         ─▶ JOINING or LIVE   if the ring covers the client's position
         ─▶ BEHIND            otherwise

    from         to           when
    SNAPSHOT     JOINING      the client has the snapshot, and the ring covers its position
    SNAPSHOT     BEHIND       the client has the snapshot
    BEHIND       CATCHING_UP  the reader has a slot
    CATCHING_UP  JOINING      the ring covers its position
    CATCHING_UP  BEHIND       the slot was revoked, because other readers wait for one
    JOINING      LIVE         its position is one of the feed's
    JOINING      BEHIND       the ring evicted the next segment, or the log has lost records that the client read
    LIVE         PARKED       the client has received everything
    LIVE         BEHIND       the ring evicted the next segment
    PARKED       LIVE         the socket did not accept all bytes, or the stream ends
    each         CLOSED

    SNAPSHOT     sends the rows of the feed's snapshot
    BEHIND       waits for a slot, with which it may open a cursor
    CATCHING_UP  reads through its own cursor, and encodes frames with its own event IDs
    JOINING      reads from the ring and skips records that the client already has; still writes its own event IDs
    LIVE         is at a position of the feed, so the client can receive the shared frames with the event IDs in them
    PARKED       the client has received everything; the feed sends to it, and no greenlet is needed
    CLOSED       has released everything

A slow client costs other readers nothing: its reader falls behind, and catches up through its own cursor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import gevent

from kafkasse.errors import Unavailable
from kafkasse.feed.catch_up import CatchUp, declare
from kafkasse.feed.ring import Place, Segment
from kafkasse.feed.shared_feed import FeedPosition, SharedFeed
from kafkasse.feed.slots import CatchUpSlots, Slot
from kafkasse.feed.snapshot import SnapshotReader
from kafkasse.feed.subscribers import ParkedClient
from kafkasse.log import Gap, Partition
from kafkasse.process.event_loop import take_turn
from kafkasse.records import frame
from kafkasse.records.filter import Selector
from kafkasse.records.frame import Wire
from kafkasse.records.position import IdWriter

MAX_PIECE_BYTES = 65_536  # of frames that a joining reader encodes between two turns
MAX_PIECE_SEGMENTS = 1000  # that a joining reader examines between two turns
UNAVAILABLE_BACKOFF_S = 0.5
NOWHERE: Mapping[Partition, Place] = MappingProxyType({})


class ReaderState(Enum):
    """The states that the docstring of this module describes."""

    SNAPSHOT = "reading a snapshot"
    BEHIND = "behind"
    CATCHING_UP = "catching up"
    JOINING = "joining"
    LIVE = "live"
    PARKED = "parked"
    CLOSED = "closed"


class StopReason(Enum):
    """Why read() returns no more frames."""

    CLIENT_LEFT = "the client closed its connection"
    ENDED = "the server ends the stream, and the client reconnects"


_NEXT_STATES = {
    ReaderState.SNAPSHOT: {ReaderState.JOINING, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.BEHIND: {ReaderState.CATCHING_UP, ReaderState.CLOSED},
    ReaderState.CATCHING_UP: {ReaderState.JOINING, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.JOINING: {ReaderState.LIVE, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.LIVE: {ReaderState.PARKED, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.PARKED: {ReaderState.LIVE, ReaderState.CLOSED},
    ReaderState.CLOSED: set[ReaderState](),
}


class Cursors(NamedTuple):
    """Opens the cursors with which the readers of a log catch up.

    Attributes:
        open: opens the cursor of one reader, given its feed, its ID writer (the position) and its selector.
        slots: grants the slot that a cursor needs.
        max_chunk_bytes: the approximate maximum size of the data that Reader.read() returns.
    """

    open: Callable[[SharedFeed, IdWriter, Selector | None], CatchUp]
    slots: CatchUpSlots
    max_chunk_bytes: int


class Reader:
    """One client's view of a feed. One greenlet calls its methods; other greenlets may call stop() and close().

    Args:
        ids: writes the client's own event IDs, at the client's position.
        feed: the feed to join, whose `readers` already counts this reader.
        cursors: opens the reader's own cursor.
        client: the address of the client. Clients get slots in turn.
        gaps: the gaps before the position, which begin() reports.
        snapshot: the snapshot with which the stream starts, instead of at the position of `ids`. None: there is none.
        selector: the records that the client receives, if the feed has dimensions.

    Attributes:
        state: the state of the reader.
        stop_reason: why read() returns no more frames; None until then.
        stats: the totals of the route.
        events: the number of records sent to the client. While it is parked, without those of its group; see totals().
        sent_bytes: the same for bytes.
    """

    __slots__ = (
        "_address",
        "_catch_up",
        "_client",
        "_cursors",
        "_feed",
        "_gaps",
        "_id_sent",
        "_ids",
        "_places",
        "_segment",
        "_selector",
        "_slot",
        "_snapshot",
        "events",
        "sent_bytes",
        "state",
        "stats",
        "stop_reason",
    )

    def __init__(
        self,
        ids: IdWriter,
        feed: SharedFeed,
        cursors: Cursors,
        client: str,
        gaps: Sequence[Gap] = (),
        snapshot: SnapshotReader | None = None,
        selector: Selector | None = None,
    ) -> None:
        self.state = ReaderState.SNAPSHOT if snapshot is not None else ReaderState.BEHIND
        self.stop_reason: StopReason | None = None
        self.events = self.sent_bytes = 0
        self.stats = feed.stats
        self.stats.readers[self.state] += 1
        self._feed = feed
        self._selector = selector
        self._cursors = cursors
        self._address = client
        self._gaps = gaps
        self._snapshot = snapshot  # SNAPSHOT only
        self._ids: IdWriter | None = ids  # BEHIND, CATCHING_UP and JOINING
        self._slot: Slot | None = None  # BEHIND and CATCHING_UP
        self._catch_up: CatchUp | None = None  # CATCHING_UP only
        self._segment = 0  # JOINING and LIVE: the next segment to read
        self._places = NOWHERE  # LIVE only: the position before that segment
        self._id_sent = False  # the last event ID that the client received is its position
        self._client: ParkedClient | None = None  # PARKED only
        if snapshot is None and feed.covers(ids):
            self._change(ReaderState.JOINING)
            self._find_segment(ids)

    # State changes.

    def _enter(self, state: ReaderState) -> None:
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"A reader that is {self.state.value} cannot change to {state.value}.")
        self._change(state)

    def _change(self, state: ReaderState) -> None:
        readers = self.stats.readers
        readers[self.state] -= 1
        if state is not ReaderState.CLOSED:
            readers[state] += 1
        self.state = state

    def _release_cursor(self) -> None:
        catch_up, self._catch_up = self._catch_up, None
        slot, self._slot = self._slot, None
        self.stats.catching_up.pop(self, None)
        try:
            if catch_up is not None:
                catch_up.close()  # may switch greenlets
        finally:
            if slot is not None:
                slot.release()

    def _start_catch_up(self, slot: Slot, ids: IdWriter) -> None:
        try:
            catch_up = self._cursors.open(self._feed, ids, self._selector)  # may switch greenlets
        except Unavailable:
            self._release_cursor()  # let others try; Kafka may be able to serve them
            gevent.sleep(UNAVAILABLE_BACKOFF_S)
            return
        self._catch_up = catch_up
        if self.state is not ReaderState.BEHIND or slot.revoked:  # another greenlet closed the reader meanwhile
            self._release_cursor()
            return
        self._enter(ReaderState.CATCHING_UP)
        self.stats.catch_ups += 1
        self.stats.catching_up[self] = None

    def _join(self, ids: IdWriter) -> None:
        self._enter(ReaderState.JOINING)
        self.stats.joins += 1
        self._find_segment(ids)
        # This may switch greenlets. If the ring evicts the segment meanwhile, the next read() detects it.
        self._release_cursor()

    def _find_segment(self, ids: IdWriter) -> None:
        ring = self._feed.ring
        self._segment = ring.find(ids.offsets)
        if self._feed.is_at(ids):
            self._segment = ring.head
            self._go_live(ids)
        elif ring.rank(ids.offsets) == ring.rank_before(self._segment):
            self._go_live(ids)

    def _go_live(self, ids: IdWriter) -> None:
        self._enter(ReaderState.LIVE)
        self._places = self._feed.places(ids)
        self._ids = None

    def _fall_behind(self) -> None:
        if self.state is not ReaderState.CATCHING_UP:  # its slot was revoked
            self.stats.falls_behind += 1
        self._enter(ReaderState.BEHIND)
        if self._ids is None:
            self._ids = self._feed.ids_at(self._places)
            self._places = NOWHERE
        self._release_cursor()

    def _on_revoked(self) -> None:
        # The position is exact: if another greenlet is inside read(), that call returns all frames that it has encoded.
        if self.state is ReaderState.CATCHING_UP:
            self._fall_behind()

    def park(self, client: ParkedClient) -> None:
        """Let the feed send to `client`. Call this only if `can_park` is true."""
        self._enter(ReaderState.PARKED)
        self._client = client
        self._places = NOWHERE
        self._feed.park(client, self._selector)
        group = self._feed.parked_at(client, self._selector)
        self.events -= group.events
        self.sent_bytes -= group.bytes

    def unpark(self) -> None:
        """Take the client back from the feed."""
        self._enter(ReaderState.LIVE)
        client, self._client = self._client, None
        assert client is not None  # noqa: S101 - a parked reader has one
        self.events, self.sent_bytes = self._totals_parked(client)
        self._read_to(self._feed.unpark(client, self._selector))

    def stop(self, reason: StopReason) -> None:
        """Make the current and all later calls of read() return b"". Never waits, so event loop callbacks may call it."""
        if self.stop_reason is not StopReason.CLIENT_LEFT:
            self.stop_reason = reason
        if self._snapshot is not None:
            self._snapshot.wake()
        if self._slot is not None:
            self._slot.wake()
        if self.state in (ReaderState.JOINING, ReaderState.LIVE):
            self._feed.wake_readers()

    def close(self) -> None:
        """Release everything. May be called twice."""
        if self.state is ReaderState.CLOSED:
            return
        if self._client is not None:
            self.unpark()
        self._enter(ReaderState.CLOSED)
        self.stop_reason = self.stop_reason or StopReason.CLIENT_LEFT
        self._feed.readers -= 1
        self._feed.idle_since = time.monotonic()
        self._snapshot = None
        self._release_cursor()

    # What the client was sent.

    def count_bytes(self, count: int) -> None:
        """Count bytes that were sent to the client while it was not parked."""
        self.sent_bytes += count
        self.stats.bytes += count

    def _count_events(self, count: int) -> None:
        self.events += count
        self.stats.events += count

    def totals(self) -> tuple[int, int]:
        """Return how many records and how many bytes the client was sent."""
        return (self.events, self.sent_bytes) if self._client is None else self._totals_parked(self._client)

    def _totals_parked(self, client: ParkedClient) -> tuple[int, int]:
        group = self._feed.parked_at(client, self._selector)
        return self.events + group.events, self.sent_bytes + group.bytes

    def lag(self) -> int:
        """Return how many offsets the client is behind the feed, in all partitions together."""
        if self.state in (ReaderState.PARKED, ReaderState.SNAPSHOT, ReaderState.CLOSED):
            return 0
        offsets = self._offsets()
        return sum(max(0, end - offsets.get(each, end)) for each, end in self._feed.ids.offsets.items())

    def has_passed(self, ends: Mapping[Partition, int]) -> bool:
        """Return whether the client has received all of its records before these offsets."""
        if self._snapshot is not None:
            return False
        self._skip_filtered_records()
        offsets = self._offsets()
        return all(offsets.get(each, 0) >= end for each, end in ends.items())

    def _offsets(self) -> Mapping[Partition, int]:
        """Return the reader's position: the next offset of each partition, if it is known."""
        if self._ids is not None:
            return self._ids.offsets
        return {each: place.offset for each, place in self._places.items() if place.offset is not None}

    # Reading.

    def begin(self) -> bytes:
        """Return the frames to send before the first record: the first event ID, and gaps."""
        gaps, self._gaps = self._gaps, ()
        if not gaps:
            return self.id_if_moved()
        self._id_sent = True
        return declare(self._feed.wire, gaps, self.position_id)

    def read(self, timeout_s: float) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as the reader is stopped.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        deadline = time.monotonic() + timeout_s
        while self.stop_reason is None:
            take_turn()  # because many readers may wake up at once
            if self.stop_reason is not None:
                break
            state = self.state
            data = self._read_once(deadline)
            # A reader without own records may fall behind again and again, and must still return for its heartbeats.
            has_paused = self.state in (state, ReaderState.BEHIND)
            if data or (has_paused and time.monotonic() >= deadline):
                return data
        return b""

    def _read_once(self, deadline: float) -> bytes:
        if self._snapshot is not None:
            return self._read_snapshot(self._snapshot, deadline)
        if self.state is ReaderState.BEHIND:
            self._wait_for_slot(deadline)
            return b""
        if self._catch_up is not None:
            return self._read_cursor(self._catch_up, deadline)
        feed = self._feed
        if self._segment < feed.ring.first or (self._ids is not None and feed.epochs.has_diverged(self._ids)):
            self._fall_behind()
            return b""
        data = self._read_shared(feed) if self._ids is None else self._read_joining(feed, self._ids)
        if not data and self.stop_reason is None and self._segment == feed.ring.head:
            self._wait(deadline - time.monotonic())
        return data

    def _wait(self, timeout_s: float) -> None:
        feed = self._feed
        if timeout_s > 0:
            feed.wait(self._segment, timeout_s)
        if feed.ring.head <= self._segment and self.stop_reason is None:
            self._check_feed()

    def _check_feed(self) -> None:
        """Stop if the feed has failed or ended."""
        if self._feed.failure is not None:
            raise self._feed.failure
        if self._feed.ended:
            self.stop_reason = StopReason.ENDED

    def _read_snapshot(self, snapshot: SnapshotReader, deadline: float) -> bytes:
        rows = snapshot.rows_read
        data = snapshot.read(max(0.0, deadline - time.monotonic()), self._cursors.max_chunk_bytes)
        self._count_events(snapshot.rows_read - rows)
        if snapshot.position is not None and self.state is ReaderState.SNAPSHOT:
            feed = self._feed
            self._snapshot = None
            self._ids = ids = feed.ids_at(snapshot.position)
            if feed.covers(ids):
                self._enter(ReaderState.JOINING)
                self._find_segment(ids)
            else:
                self._enter(ReaderState.BEHIND)
            self._skip_filtered_records()
            self._id_sent = True
            data += feed.wire.snapshot_end(self.position_id)
        elif not data and self.stop_reason is None:
            self._check_feed()
        return data

    def _wait_for_slot(self, deadline: float) -> None:
        if self._slot is None:
            self._slot = self._cursors.slots.request(self._address, self._on_revoked)
        slot = self._slot
        if slot.wait(max(0.0, deadline - time.monotonic())) and self.stop_reason is None:
            assert self._ids is not None  # noqa: S101 - a reader that is behind has its own IDs
            self._start_catch_up(slot, self._ids)

    def _read_cursor(self, catch_up: CatchUp, deadline: float) -> bytes:
        catch_up.id_sent = self._id_sent
        events = catch_up.events
        data = catch_up.read(max(0.0, deadline - time.monotonic()), self._must_stop_catch_up)
        self._count_events(catch_up.events - events)
        self._id_sent = catch_up.id_sent
        if data and self._slot is not None:
            self._slot.started()
        if catch_up.ended and self.stop_reason is None:
            self.stop_reason = StopReason.ENDED
        if not data and self.stop_reason is None and self._may_join():
            self._join(catch_up.ids)
        return data

    def _must_stop_catch_up(self) -> bool:
        return self.stop_reason is not None or self.state is not ReaderState.CATCHING_UP or self._may_join()

    def _may_join(self) -> bool:
        catch_up = self._catch_up
        return catch_up is not None and catch_up.idle and self._feed.covers(catch_up.ids)

    def _next_segments(self, feed: SharedFeed, limit: int) -> tuple[Sequence[int], int]:
        """Return the next segments that the client receives, `limit` at most, and the number of the segment after them."""
        head = feed.ring.head
        if self._selector is None:
            end = min(head, self._segment + limit)
            return range(self._segment, end), end
        numbers = feed.ring.find_selected(self._selector, self._segment, limit)
        return numbers, numbers[-1] + 1 if len(numbers) == limit else head

    def _read_shared(self, feed: SharedFeed) -> bytes:
        parts: list[bytes] = []
        size, begin = 0, self._segment
        numbers, end = self._next_segments(feed, MAX_PIECE_SEGMENTS)
        for number in numbers:
            if size >= self._cursors.max_chunk_bytes:
                break
            segment = feed.ring[number]
            frames, events = segment.frames(self._selector)
            parts.append(frames)
            size += len(frames)
            self._segment = number + 1
            self._count_events(events)
            self._id_sent = segment.ends_at_position
        else:
            self._segment = end
        if self._selector is not None and begin < self._segment == feed.ring.head:
            self._read_to(feed.position)  # without reading the segments of other clients
        else:
            places = dict(self._places)
            for number in range(begin, self._segment):
                places.update(feed.ring[number].moves)
            self._places = places
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_joining(self, feed: SharedFeed, ids: IdWriter) -> bytes:
        """Return the next frames of the ring that the client has not received, with its own IDs. Go live if possible."""
        frames: list[bytes] = []
        size = 0
        ids.topic_ids.update(feed.ids.topic_ids)  # topics may have joined the feed
        ring = feed.ring
        rank = ring.rank(ids.offsets)
        numbers, end = self._next_segments(feed, MAX_PIECE_SEGMENTS)
        max_bytes = min(MAX_PIECE_BYTES, self._cursors.max_chunk_bytes)
        for number in numbers:
            if size >= max_bytes:
                break
            segment = ring[number]
            self._segment = number + 1
            frames += (own := self._own_frames(segment, ids))
            self._count_events(len(own) if segment.gap is None else 0)
            size += sum(map(len, own))
            if self._skip_to(segment.moves, ids) or own:
                rank = ring.rank(ids.offsets)
            if rank == segment.rank:
                self._go_live(ids)
                break
        else:
            self._segment = end
            if end == ring.head:
                self._join_at_head(feed, ids)
        return b"".join(frames)

    def _own_frames(self, segment: Segment, ids: IdWriter) -> list[bytes]:
        wire, partition = self._feed.wire, segment.partition
        position = ids.offsets.get(partition, 0)
        if segment.gap is not None:
            gap = segment.gap.from_offset(position)
            if gap is None:
                return []
            ids.set(partition, gap.end, leader_epoch=gap.epoch)
            self._id_sent = True
            return [frame.gap(wire, gap, ids.render())]
        if segment.next_offset <= position:
            return []
        frames = []
        last = len(segment.offsets) - 1
        selected = wire.split(segment.frames(self._selector)[0])
        for index, (event, body) in zip(segment.selected(self._selector), selected, strict=True):
            offset = segment.offsets[index]
            if offset >= position:
                timestamp = segment.timestamps[index] if segment.timestamps else None
                ids.set(partition, offset + 1, timestamp, segment.leader_epoch)
                has_id = index == last or not self._feed.has_sparse_ids
                frames.append(wire.frame(event, ids.render() if has_id else "", body))
                self._id_sent = has_id
        return frames

    def _skip_to(self, moves: Iterable[tuple[Partition, Place]], ids: IdWriter) -> bool:
        """Move past records that the client does not receive. Return whether the position has changed."""
        behind = [
            (partition, place)
            for partition, place in moves
            if place.offset is not None and ids.offsets.get(partition, -1) < place.offset
        ]
        for partition, place in behind:
            assert place.offset is not None  # noqa: S101 - see above
            ids.set(partition, place.offset, leader_epoch=place.epoch)
            self._id_sent = False
        return bool(behind)

    def _join_at_head(self, feed: SharedFeed, ids: IdWriter) -> None:
        """Go live if only filtered records are between the reader and the position of the feed."""
        self._skip_to(feed.places(feed.ids).items(), ids)
        if feed.is_at(ids):
            self._go_live(ids)

    # The position.

    @property
    def wire(self) -> Wire:
        """The wire format of the frames."""
        return self._feed.wire

    @property
    def partitions(self) -> Collection[Partition]:
        """The partitions of the feed."""
        return self._feed.partitions

    @property
    def topics(self) -> list[str]:
        """The topics of the feed, in alphabetical order."""
        return sorted({partition.topic for partition in self._feed.partitions})

    def id_if_moved(self) -> bytes:
        """Return a position event if the client has not received the ID of its position, else b""."""
        self._skip_filtered_records()
        if self._id_sent or self._snapshot is not None:  # without an ID, an interrupted snapshot starts again
            return b""
        self._id_sent = True
        return self._feed.wire.position(self.position_id)

    @property
    def position_id(self) -> str:
        """The event ID of everything that read() has returned; "" during a snapshot, which cannot be resumed."""
        if self._snapshot is not None:
            return ""
        if self._ids is not None:
            return self._ids.render()
        self._skip_filtered_records()
        return self._feed.ids_at(self._places).render()

    @property
    def can_park(self) -> bool:
        """Whether the reader is live and its client has received everything."""
        return self.state is ReaderState.LIVE and self.stop_reason is None and self._feed.can_park(self._segment)

    def _skip_filtered_records(self) -> None:
        """Move to the feed's position if only filtered records are between it and the reader's position."""
        # Timestamps and leader epochs may differ from those of the feed, which has read other records before.
        is_at_head = self.state is ReaderState.LIVE and self._segment == self._feed.ring.head
        if is_at_head and self._offsets() != self._feed.ids.offsets:
            self._read_to(self._feed.position)

    def _read_to(self, position: FeedPosition) -> None:
        self._segment, self._id_sent = position.segment, position.id_sent
        self._places = position.places
