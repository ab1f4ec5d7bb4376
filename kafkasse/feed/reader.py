"""A reader is one client's view of a feed: what the client has received, and where its next frames come from.

    open, the ring does not cover its position
     │   ┌──────────────────────────────────────────────────────────┐
     ▼   ▼                                                          │ opens a cursor
    CATCHING_UP ──▶ JOINING ──▶ LIVE ◀──▶ PARKED                    │
    the ring covers  ▲   │       │                                  │
    its position     │   └───────┴──▶ BEHIND ───────────────────────┘
                     │                the ring evicted its next segment
    open, the ring covers its position

    every state ──▶ CLOSED

    CATCHING_UP  reads through its own cursor, and encodes frames with its own event IDs
    JOINING      reads from the ring and skips records that the client already has; still writes its own event IDs
    LIVE         follows the feed, so the client can receive the shared frames with the event IDs in them
    PARKED       the client has received everything; the feed sends to it, and no greenlet is needed
    BEHIND       the ring has evicted the segment that the client needs next; read() opens a cursor
    CLOSED       has released everything

A slow client costs other readers nothing: its reader falls behind, and catches up through its own cursor. A stream of
selected partitions cannot share a feed; its reader stays in CATCHING_UP.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import Enum

from kafkasse import frame
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.ring import Segment
from kafkasse.feed.shared_feed import FeedPosition, ParkedClient, SharedFeed
from kafkasse.log import Partition
from kafkasse.position import IdWriter


class ReaderState(Enum):
    """The states in the diagram at the top of this module."""

    CATCHING_UP = "catching up"
    JOINING = "joining"
    LIVE = "live"
    PARKED = "parked"
    BEHIND = "behind"
    CLOSED = "closed"


class StopReason(Enum):
    """Why read() returns no more frames."""

    CLIENT_LEFT = "the client closed its connection"
    ENDED = "the server ends the stream, and the client reconnects"


_NEXT_STATES = {
    ReaderState.CATCHING_UP: {ReaderState.JOINING, ReaderState.CLOSED},
    ReaderState.JOINING: {ReaderState.LIVE, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.LIVE: {ReaderState.PARKED, ReaderState.BEHIND, ReaderState.CLOSED},
    ReaderState.PARKED: {ReaderState.LIVE, ReaderState.CLOSED},
    ReaderState.BEHIND: {ReaderState.CATCHING_UP, ReaderState.CLOSED},
    ReaderState.CLOSED: set[ReaderState](),
}


class Reader:
    """One client's view of a feed. One greenlet calls its methods; other greenlets may call stop() and close().

    Args:
        ids: writes the client's own event IDs, at the client's position.
        feed: the feed to join, whose `readers` already counts this reader. None if the reader never joins a feed.
        open_catch_up: opens a cursor at the position of the ID writer that it receives.
        catch_up: the cursor with which the reader starts. None if the ring covers the client's position.
        max_chunk_bytes: read() returns about this many bytes at most.

    Attributes:
        state: the state of the reader.
        stop_reason: why read() returns no more frames; None until then.
    """

    __slots__ = (
        "_catch_up",
        "_client",
        "_feed",
        "_id_sent",
        "_ids",
        "_max_chunk_bytes",
        "_offsets",
        "_open_catch_up",
        "_segment",
        "_timestamps",
        "state",
        "stop_reason",
    )

    def __init__(
        self,
        ids: IdWriter,
        feed: SharedFeed | None,
        open_catch_up: Callable[[IdWriter], CatchUp],
        catch_up: CatchUp | None,
        max_chunk_bytes: int,
    ) -> None:
        self.state = ReaderState.CATCHING_UP if catch_up is not None else ReaderState.JOINING
        self.stop_reason: StopReason | None = None
        self._feed = feed
        self._max_chunk_bytes = max_chunk_bytes
        self._open_catch_up = open_catch_up
        self._catch_up = catch_up  # CATCHING_UP only
        self._ids: IdWriter | None = ids  # CATCHING_UP, JOINING and BEHIND
        self._offsets: dict[Partition, int] = {}  # LIVE only: the position before the segment `_segment`
        self._timestamps: dict[Partition, int] = {}  # LIVE only: the timestamps of that position
        self._segment = feed.ring.first if feed is not None else 0  # JOINING and LIVE: the next segment to read
        self._id_sent = False  # the last event ID that the client received is its position
        self._client: ParkedClient | None = None  # PARKED only
        if self.state is ReaderState.JOINING and self._shared.is_at(ids):
            self._go_live()

    # State changes.

    def _enter(self, state: ReaderState) -> None:
        if state not in _NEXT_STATES[self.state]:
            raise RuntimeError(f"A reader that is {self.state.value} cannot change to {state.value}.")
        self.state = state

    def _join(self, catch_up: CatchUp) -> None:
        self._enter(ReaderState.JOINING)
        self._id_sent = catch_up.id_sent
        self._catch_up = None
        # Set this before close(), which may switch greenlets. If the ring evicts the segment meanwhile, the reader notices.
        self._segment = self._shared.ring.first
        catch_up.close()

    def _go_live(self) -> None:
        self._enter(ReaderState.LIVE)
        self._ids = None
        self._read_to(self._shared.position._replace(id_sent=self._id_sent))

    def _fall_behind(self) -> None:
        self._enter(ReaderState.BEHIND)
        if self._ids is None:
            self._ids = self._shared.ids.copy_at(self._offsets, self._timestamps)
            self._offsets, self._timestamps = {}, {}
        catch_up = self._open_catch_up(self._ids)  # may wait until a cursor is free
        if self.state is ReaderState.CLOSED:  # another greenlet closed the reader while the cursor was opened
            catch_up.close()
            return
        self._enter(ReaderState.CATCHING_UP)
        self._catch_up = catch_up
        catch_up.id_sent = self._id_sent

    def park(self, client: ParkedClient) -> None:
        """Let the feed send to `client`. Call this only if `can_park` is true."""
        self._enter(ReaderState.PARKED)
        self._client = client
        self._offsets, self._timestamps = {}, {}
        self._shared.park(client)

    def unpark(self) -> None:
        """Take the client back from the feed."""
        self._enter(ReaderState.LIVE)
        client, self._client = self._client, None
        assert client is not None  # noqa: S101 - a parked reader has one
        self._read_to(self._shared.unpark(client))

    def stop(self, reason: StopReason) -> None:
        """Make read() return b"" now and from now on. This never waits, so callbacks in the event loop may call it."""
        if self.stop_reason is not StopReason.CLIENT_LEFT:
            self.stop_reason = reason
        if self.state in (ReaderState.JOINING, ReaderState.LIVE):
            self._shared.wake_readers()

    def close(self) -> None:
        """Release everything. May be called twice."""
        if self.state is ReaderState.CLOSED:
            return
        if self._client is not None:
            self.unpark()
        self._enter(ReaderState.CLOSED)
        self.stop_reason = self.stop_reason or StopReason.CLIENT_LEFT
        catch_up, self._catch_up = self._catch_up, None
        if self._feed is not None:
            self._feed.readers -= 1
            self._feed.idle_since = time.monotonic()
        if catch_up is not None:
            catch_up.close()

    # Reading.

    def begin(self) -> bytes:
        """Return the frames to send before the first record: the first event ID, and gaps."""
        return self._catch_up.begin() if self._catch_up is not None else self.id_if_moved()

    def read(self, timeout_s: float) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as the reader is stopped.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        deadline = time.monotonic() + timeout_s
        while self.stop_reason is None:
            data = self._read_once(deadline)
            if data or time.monotonic() >= deadline:
                return data
        return b""

    def _read_once(self, deadline: float) -> bytes:
        if self._catch_up is not None:
            return self._read_cursor(self._catch_up, deadline)
        feed = self._shared
        if self._segment < feed.ring.first:
            self._fall_behind()
            return b""
        data = self._read_shared(feed) if self._ids is None else self._read_joining(feed, self._ids)
        if not data and self.stop_reason is None:
            self._wait(deadline - time.monotonic())
        return data

    def _wait(self, timeout_s: float) -> None:
        feed = self._shared
        if timeout_s > 0:
            feed.wait(self._segment, timeout_s)
        if feed.failure is not None and feed.ring.head <= self._segment:
            raise feed.failure
        if feed.ended and feed.ring.head <= self._segment and self.stop_reason is None:
            self.stop_reason = StopReason.ENDED

    def _read_cursor(self, catch_up: CatchUp, deadline: float) -> bytes:
        data = catch_up.read(max(0.0, deadline - time.monotonic()), self._stopped_or_may_join)
        if catch_up.ended and self.stop_reason is None:
            self.stop_reason = StopReason.ENDED
        if not data and self.stop_reason is None and self._may_join():
            self._join(catch_up)
        return data

    def _stopped_or_may_join(self) -> bool:
        return self.stop_reason is not None or self._may_join()

    def _may_join(self) -> bool:
        catch_up, feed = self._catch_up, self._feed
        return feed is not None and catch_up is not None and catch_up.idle and feed.covers(catch_up.ids)

    def _read_shared(self, feed: SharedFeed) -> bytes:
        parts: list[bytes] = []
        size = 0
        for segment in feed.ring.segments(self._segment):
            parts.append(segment.data)
            size += len(segment.data)
            self._segment += 1
            self._offsets.update(segment.next_offsets)
            if segment.next_timestamps:
                self._timestamps.update(segment.next_timestamps)
            self._id_sent = segment.ends_at_position
            if size >= self._max_chunk_bytes:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_joining(self, feed: SharedFeed, ids: IdWriter) -> bytes:
        """Return the ring's frames that the client has not received, with its own event IDs. Then go live if possible."""
        frames: list[bytes] = []
        for segment in feed.ring.segments(self._segment):
            frames += self._own_frames(segment, ids)
            self._segment += 1
        for partition, offset in feed.ids.offsets.items():
            if ids.offsets.get(partition, -1) < offset:
                self._move(ids, partition, offset)
        if feed.is_at(ids):
            self._go_live()
        return b"".join(frames)

    def _own_frames(self, segment: Segment, ids: IdWriter) -> Iterator[bytes]:
        position = ids.offsets.get(segment.partition, 0)
        wire = self._shared.wire
        if segment.gap is not None:
            if (gap := segment.gap.from_offset(position)) is not None:
                ids.set(gap.partition, gap.end)
                self._id_sent = True
                yield frame.gap(wire, gap, ids.render())
            return
        if segment.next_offset <= position:
            return
        timestamps: list[int | None] = segment.timestamps or [None] * len(segment.offsets)
        frames = zip(segment.offsets, timestamps, wire.split(segment.data), strict=True)
        for offset, timestamp, (event, body) in frames:
            if offset >= position:
                ids.set(segment.partition, offset + 1, timestamp)
                self._id_sent = True
                yield wire.frame(event, ids.render(), body)
        if ids.offsets.get(segment.partition) != segment.next_offset:
            self._move(ids, segment.partition, segment.next_offset)

    def _move(self, ids: IdWriter, partition: Partition, offset: int) -> None:
        """Move past records that the client does not receive."""
        ids.set(partition, offset)
        self._id_sent = False

    # The position.

    def id_if_moved(self) -> bytes:
        """Return a position event if the client has not received the ID of its position, else b""."""
        if self._catch_up is not None:
            return self._catch_up.id_if_moved()
        self._skip_filtered_records()
        if self._id_sent:
            return b""
        self._id_sent = True
        return self._shared.wire.position(self.position_id)

    @property
    def position_id(self) -> str:
        """The event ID of everything that read() has returned; "" during a snapshot, which cannot be resumed."""
        if self._catch_up is not None:
            return self._catch_up.position_id
        if self._ids is not None:
            return self._ids.render()
        self._skip_filtered_records()
        feed = self._shared
        if self._segment == feed.ring.head:
            return feed.ids.render()
        return feed.ids.copy_at(self._offsets, self._timestamps).render()

    @property
    def can_park(self) -> bool:
        """Whether the reader is live and its client has received everything."""
        return self.state is ReaderState.LIVE and self.stop_reason is None and self._shared.can_park(self._segment)

    def _skip_filtered_records(self) -> None:
        """Move to the feed's position if only filtered records are between it and the reader's position."""
        if self.state is ReaderState.LIVE and self._segment == self._shared.ring.head:
            position = self._shared.position
            if position.offsets != self._offsets or position.timestamps != self._timestamps:
                self._read_to(position)

    def _read_to(self, position: FeedPosition) -> None:
        self._segment, self._id_sent = position.segment, position.id_sent
        self._offsets, self._timestamps = dict(position.offsets), dict(position.timestamps)

    @property
    def _shared(self) -> SharedFeed:
        assert self._feed is not None  # noqa: S101 - only a reader that catches up can be without a feed
        return self._feed
