"""The core of a reader: its state, its position, and what it reads from the ring.

This module does no I/O and has no clock. Reader (reader.py) waits for frames and opens cursors. It calls the methods under
"Events" when something has happened, and releases what they return.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.feed.core.catch_up import CatchUpCore
from kafkasse.feed.core.feed import FeedCore, gap_events
from kafkasse.feed.core.reader_states import (
    NAMES,
    TRANSITIONS,
    Behind,
    CatchingUp,
    Closed,
    FeedEnd,
    Joining,
    Live,
    Opening,
    OpeningCursor,
    ReaderCoreState,
    ReaderState,
    ReadingSnapshot,
    Release,
    Slot,
    Unparked,
    Waiting,
    WaitingForSnapshot,
    WithOwnIds,
)
from kafkasse.feed.core.ring import Segment
from kafkasse.feed.core.snapshot import SnapshotCore, SnapshotVersion
from kafkasse.feed.core.subscribers import FeedPosition, Parked, ParkedClient
from kafkasse.log import Gap, Offsets, Partition
from kafkasse.records import frame
from kafkasse.records.filter import Selector
from kafkasse.records.frame import Wire
from kafkasse.records.position import IdWriter, Place, Places

ReaderStart = FeedEnd | SnapshotCore | IdWriter

MAX_PIECE_BYTES = 65_536  # of frames that a joining reader encodes at once
MAX_PIECE_SEGMENTS = 1000  # that a reader examines at once


class StopReason(Enum):
    """Why read() returns no more frames, or NOT_STOPPED. A reader can stop in any state, and keeps its position."""

    NOT_STOPPED = "read() returns frames"
    ENDED = "the server ends the stream, and the client reconnects"
    CLIENT_LEFT = "the client closed its connection"


class ReaderCore:
    """What one client has received of a feed, and where its next frames come from.

    Args:
        start: where the stream starts: at the position of a feed, with a snapshot, or at the position of an ID writer, which
            writes the client's own event IDs.
        feed: the feed to join.
        max_chunk_bytes: the approximate maximum size of the frames that one call of read() returns.
        gaps: the gaps before the position, which begin() reports.
        selector: the records that the client receives, if the feed has dimensions.

    Attributes:
        stop_reason: why there are no more frames, or NOT_STOPPED.
        stats: the totals of the route.
        events, sent_bytes: the numbers of records and bytes sent to the client. While it is parked, call totals() instead.
    """

    __slots__ = (
        "_feed",
        "_gaps",
        "_id_sent",
        "_max_chunk_bytes",
        "_selector",
        "_state",
        "events",
        "sent_bytes",
        "stats",
        "stop_reason",
    )

    def __init__(
        self,
        start: ReaderStart,
        feed: FeedCore,
        max_chunk_bytes: int,
        gaps: Sequence[Gap] = (),
        selector: Selector | None = None,
    ) -> None:
        self._state: ReaderCoreState = Opening()
        self.stop_reason = StopReason.NOT_STOPPED
        self.events = self.sent_bytes = 0
        self.stats = feed.stats
        for state in (ReaderState.BEHIND, ReaderState.JOINING):  # a metric that first appears with 1 seems not to grow
            self.stats.readers.setdefault(state, 0)
        self._feed = feed
        self._max_chunk_bytes = max_chunk_bytes
        self._selector = selector
        self._gaps = gaps
        self._id_sent = False  # the last event ID that the client received is its position
        match start:
            case SnapshotCore():
                self._enter(WaitingForSnapshot(start))
            case IdWriter():
                self._enter_ring_or_fall_behind(start)
            case FeedEnd():
                self._enter(Live(feed.position.segment, feed.position.places))

    @property
    def state(self) -> ReaderState:
        """The state of the reader."""
        return NAMES[type(self._state)]

    @property
    def core_state(self) -> ReaderCoreState:
        """The state with its data, which tells the driver what to do next."""
        return self._state

    @property
    def is_stopped(self) -> bool:
        """Whether read() returns no more frames."""
        return self.stop_reason is not StopReason.NOT_STOPPED

    # State changes.

    def _enter(self, state: ReaderCoreState) -> None:
        former, new = type(self._state), type(state)
        if (former, new) not in TRANSITIONS:
            raise RuntimeError(f"A reader cannot change from {former.__name__} to {new.__name__}.")
        self._state = state
        if (name := NAMES[new]) is (former_name := NAMES.get(former)):
            return
        if former_name is not None:
            self.stats.readers[former_name] -= 1
        if new is not Closed:
            self.stats.readers[name] += 1
        if former is CatchingUp:
            del self.stats.catching_up[self]
        elif new is CatchingUp:
            self.stats.catching_up[self] = None

    def _enter_ring_or_fall_behind(self, ids: IdWriter) -> None:
        if self._feed.covers(ids):
            self._enter_ring(ids)
        else:
            self._enter(Behind(ids))

    def _enter_ring(self, ids: IdWriter) -> None:
        ring = self._feed.ring
        segment = ring.find(ids.offsets)
        self._enter(Joining(ids, segment))
        if self._feed.is_at(ids):
            self._go_live(ids, ring.head)
        elif ring.rank(ids.offsets) == ring.rank_before(segment):
            self._go_live(ids, segment)

    def _go_live(self, ids: IdWriter, segment: int) -> None:
        self._enter(Live(segment, ids.places()))

    def _fall_behind(self, state: Joining | Live) -> None:
        self.stats.falls_behind += 1
        if isinstance(state, Joining):
            self._enter(Behind(state.ids))
        else:  # retention may have removed the first records of a partition that was added since the last segment
            added = {partition: place for partition, place in self._feed.added.items() if partition not in state.places}
            self._enter(Behind(self._feed.ids.copy_at({**state.places, **added})))

    def park(self, client: ParkedClient) -> None:
        """Let the feed send to `client`. Call this only if `can_park` is true."""
        parked = self._feed.park(client, self, self._selector)
        self._enter(parked)
        position = self._feed.position_of(parked)
        self.events -= position.events
        self.sent_bytes -= position.bytes

    def unpark(self) -> None:
        """Take the client back from the feed."""
        if isinstance(self._state, Parked):
            self.unparked(self._feed.unpark(self._state))
        assert isinstance(self._state, Unparked)  # noqa: S101 - see StreamBody.resume()
        position = self._state.position
        self._enter(Live(position.segment, position.places))
        self._id_sent = position.id_sent

    # Events.

    def unparked(self, position: FeedPosition) -> None:
        """The feed sends nothing more to the parked client. Its greenlet continues at this position."""
        self._enter(Unparked(position))
        self.events += position.events
        self.sent_bytes += position.bytes

    def slot_requested(self, behind: Behind, slot: Slot) -> None:
        """The reader has a slot, or a place in the queue."""
        self._enter(Waiting(behind.ids, slot))

    def slot_granted(self, waiting: Waiting) -> bool:
        """The slot is granted. Return whether the reader still needs it, and will open a cursor."""
        if self._state is not waiting or self.is_stopped:
            return False
        self._enter(OpeningCursor(waiting.ids, waiting.slot))
        return True

    def slot_revoked(self) -> Release | None:
        """Other readers need the slot. The position is exact: a read() in progress returns all that it has encoded."""
        former = self._state
        if not isinstance(former, Waiting | CatchingUp):  # cursor_opened() sees that the slot was revoked
            return None
        self._enter(Behind(former.ids))
        return _resources(former)

    def cursor_opened(self, opening: OpeningCursor, catch_up: CatchUpCore) -> Release | None:
        """The reader catches up, unless it was closed or its slot was revoked."""
        if self._state is opening and not opening.slot.revoked:
            self.stats.catch_ups += 1
            self._enter(CatchingUp(catch_up, opening.slot))
            return None
        self.cursor_failed(opening)
        return Release(opening.slot, (catch_up,))

    def cursor_failed(self, opening: OpeningCursor) -> Release:
        """The reader gets no cursor. Another reader gets the slot; Kafka may be able to serve that reader."""
        if self._state is opening:
            self._enter(Behind(opening.ids))
        return Release(opening.slot)

    def may_read(self, state: CatchingUp) -> bool:
        """Return whether the reader should read on through this cursor."""
        return not self.is_stopped and self._state is state and not self._may_join(state)

    def cursor_read(self, state: CatchingUp, data: bytes) -> Release | None:
        """The cursor has returned `data`. If it is empty, join the feed if possible."""
        catch_up = state.catch_up
        self._count_events(catch_up.events - state.events)
        state.events = catch_up.events
        self._id_sent = catch_up.id_sent
        if catch_up.ended:
            self.stopped(StopReason.ENDED)
        if data or self._state is not state or not self._may_join(state):
            return None
        self._check_feed()
        return None if self.is_stopped else self._join(state)

    def _may_join(self, state: CatchingUp) -> bool:
        return state.catch_up.idle and (self._feed.covers(state.ids) or not self._feed.is_open)

    def _join(self, state: CatchingUp) -> Release | None:
        self._enter_ring(state.ids)
        self.stats.joins += 1
        return _resources(state)

    def snapshot_waited(self, waiting: WaitingForSnapshot, version: SnapshotVersion | None) -> bytes:
        """Return the first rows of the version; b"" if there is none yet, or the reader was closed."""
        if self._state is not waiting:
            return b""
        if version is not None:
            return self._start_snapshot(version)
        self._check_feed()
        return b""

    def _check_feed(self) -> None:
        """Stop if the feed has ended, or raise the error with which it has failed. Has no effect after a stop."""
        if self._feed.is_open or self.is_stopped:
            return
        if isinstance(self._feed.state, KafkasseError):
            raise self._feed.state
        self.stopped(StopReason.ENDED)

    def stopped(self, reason: StopReason) -> None:
        """The stream ends: all calls of read() return b"" from now on."""
        if self.stop_reason is not StopReason.CLIENT_LEFT:
            self.stop_reason = reason

    def closed(self, now: float) -> Release | None:
        """The stream has ended. May be called twice."""
        if isinstance(self._state, Closed):
            return None
        if isinstance(self._state, Parked | Unparked):
            self.unpark()
        last = self._state
        # Drop the cursor and its slot, which refer to this reader, so that no reference cycle remains.
        where = Behind(last.ids) if isinstance(last, WithOwnIds) else last
        self._enter(Closed(where if isinstance(where, Behind | Live) else Opening()))
        if not self.is_stopped:
            self.stopped(StopReason.CLIENT_LEFT)
        self._feed.readers -= 1
        self._feed.idle_since = now
        return _resources(last)

    # Counts.

    def count_bytes(self, count: int) -> None:
        """Count bytes that were sent to the client while it was not parked."""
        self.sent_bytes += count
        self.stats.bytes += count

    def _count_events(self, count: int) -> None:
        self.events += count
        self.stats.events += count

    def totals(self) -> tuple[int, int]:
        """Return how many records and how many bytes were sent to the client."""
        if isinstance(self._state, Parked):
            position = self._feed.position_of(self._state)
            return self.events + position.events, self.sent_bytes + position.bytes
        return self.events, self.sent_bytes

    def lag(self) -> int:
        """Return how many offsets the client is behind the feed, in all partitions together."""
        if isinstance(self._state, Parked | Unparked | WaitingForSnapshot | ReadingSnapshot | Closed):
            return 0
        offsets = self._offsets()
        return sum(max(0, end - offsets.get(partition, end)) for partition, end in self._feed.ids.offsets.items())

    def has_passed(self, ends: Offsets) -> bool:
        """Return whether the client has received all of its records before these offsets."""
        if isinstance(self._state, WaitingForSnapshot | ReadingSnapshot):
            return False
        self._skip_filtered_records()
        offsets = self._offsets()
        return all(offsets.get(partition, 0) >= end for partition, end in ends.items())

    def _offsets(self) -> Offsets:
        """Return the reader's position: the next offset of each partition, if it is known."""
        last = self._last()
        if isinstance(last, Live):
            return last.offsets
        return last.ids.offsets if isinstance(last, WithOwnIds) else {}

    def _last(self) -> ReaderCoreState:
        """Return the state with the position: the current one, or that before the reader was closed."""
        return self._state.last if isinstance(self._state, Closed) else self._state

    # Frames.

    def begin(self) -> bytes:
        """Return the frames to send before the first record: the first event ID, and gaps."""
        gaps, self._gaps = self._gaps, ()
        if not gaps:
            return self.id_if_moved()
        self._id_sent = True
        self.stats.gaps.update(gap.reason for gap in gaps)
        return gap_events(self._feed.wire, gaps, self.position_id)

    def _start_snapshot(self, version: SnapshotVersion) -> bytes:
        self._enter(state := ReadingSnapshot(version))
        return self._next_rows(state)

    def _next_rows(self, state: ReadingSnapshot) -> bytes:
        """Return the next rows of the snapshot. After the last one, continue at the position of the snapshot.

        Raises:
            Unavailable: this client has received the snapshot too slowly.
        """
        rows = state.version.rows
        if rows.is_expired:
            raise Unavailable("The client received the snapshot too slowly. Reconnect to start again.")
        frames: list[bytes] = []
        size = 0
        while state.next_row < len(rows) and size < self._max_chunk_bytes:
            frames.append(rows[state.next_row])
            size += len(frames[-1])
            state.next_row += 1
        self._count_events(len(frames))
        if state.next_row == len(rows):
            frames.append(self._end_snapshot(state.version.places))
        return b"".join(frames)

    def _end_snapshot(self, places: Places) -> bytes:
        self._enter_ring_or_fall_behind(self._feed.ids.copy_at(places))
        self._skip_filtered_records()
        self._id_sent = True
        return self._feed.wire.snapshot_end(self.position_id)

    def _next_frames(self, state: Joining | Live) -> bytes:
        """Return the next frames from the ring. Fall behind if the ring has evicted them, or the log has lost records."""
        has_lost = isinstance(state, Joining) and self._feed.epochs.has_diverged(state.ids)
        if state.segment < self._feed.ring.first or has_lost:
            self._fall_behind(state)
            return b""
        return self._read_shared(state) if isinstance(state, Live) else self._read_joining(state)

    @property
    def _is_at_head(self) -> bool:
        """Whether the reader has read everything that is in the ring."""
        return isinstance(self._state, Joining | Live) and self._state.segment == self._feed.ring.head

    def _next_segments(self, first: int) -> tuple[Sequence[int], int]:
        """Return the next segments that the client receives from `first` on, and the number of the segment after them."""
        ring = self._feed.ring
        if self._selector is None:
            end = min(ring.head, first + MAX_PIECE_SEGMENTS)
            return range(first, end), end
        numbers = ring.find_selected(self._selector, first, MAX_PIECE_SEGMENTS)
        return numbers, numbers[-1] + 1 if len(numbers) == MAX_PIECE_SEGMENTS else ring.head

    def _read_shared(self, live: Live) -> bytes:
        feed = self._feed
        parts: list[bytes] = []
        size, begin = 0, live.segment
        numbers, end = self._next_segments(begin)
        for number in numbers:
            if size >= self._max_chunk_bytes:
                break
            segment = feed.ring[number]
            frames, events = segment.frames(self._selector)
            parts.append(frames)
            size += len(frames)
            live.segment = number + 1
            self._count_events(events)
            self._id_sent = segment.ends_at_position
        else:
            live.segment = end
        if self._selector is not None and begin < live.segment == feed.ring.head:
            self._read_to(live, feed.position)  # without reading the segments of other clients
        else:
            places = dict(live.places)
            for number in range(begin, live.segment):
                places.update(feed.ring[number].moves)
            live.places = places
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_joining(self, joining: Joining) -> bytes:
        """Return the next frames of the ring that the client has not received, with its own IDs. Go live if possible."""
        feed = self._feed
        frames: list[bytes] = []
        size = 0
        ids = joining.ids
        ids.topic_ids.update(feed.ids.topic_ids)  # topics may have joined the feed
        ring = feed.ring
        rank = ring.rank(ids.offsets)
        numbers, end = self._next_segments(joining.segment)
        max_bytes = min(MAX_PIECE_BYTES, self._max_chunk_bytes)
        for number in numbers:
            if size >= max_bytes:
                break
            segment = ring[number]
            joining.segment = number + 1
            frames += (own := self._own_frames(segment, ids))
            self._count_events(len(own) if segment.gap is None else 0)
            size += sum(map(len, own))
            if self._skip_to(segment.moves, ids) or own:
                rank = ring.rank(ids.offsets)
            if rank == segment.rank:
                self._go_live(ids, joining.segment)
                break
        else:
            joining.segment = end
            if end == ring.head:
                self._join_at_head(joining)
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
                has_id = index == last or self._feed.id_frequency == "event"
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

    def _join_at_head(self, joining: Joining) -> None:
        """Go live if only filtered records are between the reader and the position of the feed."""
        feed = self._feed
        self._skip_to(feed.ids.places().items(), joining.ids)
        if feed.is_at(joining.ids):
            self._go_live(joining.ids, joining.segment)

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
        # Without an ID, an interrupted snapshot starts again.
        if self._id_sent or isinstance(self._last(), WaitingForSnapshot | ReadingSnapshot | Opening):
            return b""
        self._id_sent = True
        return self._feed.wire.position(self.position_id)

    @property
    def position_id(self) -> str:
        """The event ID of everything that read() has returned; "" during a snapshot, which cannot be resumed."""
        if isinstance(self._state, Live):
            self._skip_filtered_records()
            return self._feed.id_at(self._state.places)
        ids = self.ids
        return "" if ids is None else ids.render()

    @property
    def ids(self) -> IdWriter | None:
        """Writes the event ID of everything that read() has returned; None during a snapshot, which cannot be resumed."""
        self._skip_filtered_records()
        last = self._last()
        if isinstance(last, Live):
            return self._feed.ids.copy_at(last.places)
        return last.ids if isinstance(last, WithOwnIds) else None

    @property
    def snapshot_ids(self) -> IdWriter | None:
        """The position of the snapshot that read() returns the rows of; None if it returns no rows."""
        if isinstance(self._state, ReadingSnapshot):
            return self._feed.ids.copy_at(self._state.version.places)
        return None

    @property
    def can_park(self) -> bool:
        """Whether the reader is live and its client has received everything."""
        return isinstance(self._state, Live) and not self.is_stopped and self._feed.can_park(self._state.segment)

    def _skip_filtered_records(self) -> None:
        """Move to the feed's position if only filtered records are between it and the reader's position."""
        # Timestamps and leader epochs may differ from those of the feed, which has read other records before.
        live, feed = self._state, self._feed
        if isinstance(live, Live) and live.segment == feed.ring.head and live.offsets != feed.ids.offsets:
            self._read_to(live, feed.position)

    def _read_to(self, live: Live, position: FeedPosition) -> None:
        live.segment, live.places = position.segment, position.places
        self._id_sent = position.id_sent


def _resources(state: ReaderCoreState) -> Release | None:
    """Return what a reader has in this state and must release when it leaves it."""
    cursors = (state.catch_up,) if isinstance(state, CatchingUp) else ()
    return Release(state.slot, cursors) if isinstance(state, Waiting | OpeningCursor | CatchingUp) else None
