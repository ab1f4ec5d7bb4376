"""One client of a shared feed: it catches up with a cursor of its own, joins the ring, and takes the shared bytes.

    Tail   one cursor at the end of some topics, for all selections over them          (tail.py)
      └─ SharedFeed   the frames of one selection: encoded once, kept in a bounded ring     (ring.py)
           └─ Reader   one client                                                     (here)

A reader's position equals the feed's from the moment when it takes shared bytes: so the ids in them are its own. Readers
that fall out of the ring go back to catching up by themselves; nobody's slowness costs another reader anything.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from kafkasse import frame
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.ring import Place, Segment, SharedFeed
from kafkasse.log import Partition
from kafkasse.position import IdWriter, Limits, parse

OUR_OWN = Limits(sys.maxsize, sys.maxsize)  # an ID of ours may have any size


class Reader:
    """One client of a shared feed. The same face as CatchUp.

    Args:
        feed: what it is to join; this reader is already counted in it.
        ids: where it begins, with ids of its own until it has joined.
        catch_up: opens a reader of its own at the ids it is given; None in `own` for one that can join at once.
        own: the reader that catches up.
        max_chunk_bytes: about how many bytes read() returns at once.
    """

    __slots__ = (
        "_catch_up",
        "_ids",
        "_left",
        "_max_chunk_bytes",
        "_next",
        "_own",
        "_place",
        "_sent_id",
        "closed",
        "ended",
        "feed",
    )

    def __init__(
        self,
        feed: SharedFeed,
        ids: IdWriter,
        catch_up: Callable[[IdWriter], CatchUp],
        own: CatchUp | None,
        max_chunk_bytes: int,
    ) -> None:
        self.feed = feed
        self._own = own
        self._ids: IdWriter | None = ids  # None once its position is the feed's
        self._catch_up = catch_up
        self._max_chunk_bytes = max_chunk_bytes
        self._next = feed.first
        self._place: str | dict[Partition, int] = ""  # the position before segment `_next`, once `_ids` is None
        self._sent_id = ""  # the last id that the client was given
        self._left = False
        self.closed = False
        self.ended = False
        if own is None and feed.is_at(ids):
            self._ids, self._next, self._place = None, feed.head, feed.place

    def begin(self) -> bytes:
        """What can be said before the first record."""
        return self._own.begin() if self._own is not None else self.id_if_moved()

    def read(self, timeout_s: float) -> bytes:
        """Frames that are ready, b"" when none came within `timeout_s` seconds or the client has gone.

        Raises:
            KafkasseError: the stream cannot go on, and why.
        """
        deadline = time.monotonic() + timeout_s
        while not (self.closed or self.ended):
            data = self._read_own(deadline) if self._own is not None else self._read_shared()
            if data or time.monotonic() >= deadline:
                return data
            if self._own is None and not (self.closed or self.ended):  # giving the cursor back may have taken a while
                self.feed.wait(self._next, deadline - time.monotonic())
                if self.feed.failure is not None:
                    raise self.feed.failure
                self.ended = self.ended or self.feed.ended
        return b""

    def stop_waiting(self) -> None:
        """Make a read() that waits return, after `closed` or `ended` was set."""
        self.feed.poke()

    def id_if_moved(self) -> bytes:
        """The id alone, where it is not the last one sent."""
        if self._own is not None:
            return self._own.id_if_moved()
        now = self.position_id
        if now == self._sent_id:
            return b""
        self._sent_id = now
        return self.feed.wire.id_alone(now)

    @property
    def position_id(self) -> str:
        """The id of all that read() has returned so far."""
        if self._own is not None:
            return self._own.position_id
        if self._ids is not None:
            return self._ids.render()
        return self.feed.ids.render() if self._next == self.feed.head else self._sent_id

    @property
    def may_park(self) -> bool:
        """Whether it has all there is, by the feed's own ids."""
        feed = self.feed
        return (
            self._own is None
            and self._ids is None
            and self._next == feed.head == feed.pushed
            and feed.failure is None
            and not (feed.ended or self.closed or self.ended)
        )

    def unparked(self, place: Place) -> None:
        """It was served by the feed up to here."""
        self._next, self._sent_id, self._place = place

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self.closed = True
        if not self._left:
            self._left = True
            self.feed.readers -= 1
            self.feed.idle_since = time.monotonic()
        own, self._own = self._own, None
        if own is not None:
            own.close()

    def _read_own(self, deadline: float) -> bytes:
        own = self._own
        assert own is not None  # noqa: S101 - for the type checker
        own.ended, own.closed = self.ended, self.closed
        data = own.read(max(0.0, deadline - time.monotonic()), self._may_join)
        self.ended = self.ended or own.ended
        if not data and self._may_join():
            self._join(own)
        return data

    def _may_join(self) -> bool:
        own = self._own
        return self.closed or self.ended or (own is not None and own.idle and self.feed.covers(own.ids.offsets))

    def _join(self, own: CatchUp) -> None:
        """Go on from the ring, skipping what was had. The cursor goes back."""
        if self.closed or self.ended:
            return
        self._ids, self._sent_id = own.ids, own.sent_id
        self._own = None
        self._next = self.feed.first  # before anything that waits: what leaves the ring from now on is not lost unseen
        own.close()

    def _read_shared(self) -> bytes:
        if self._next < self.feed.first:
            self._fall_behind()
            return b""
        if self._ids is not None:
            return self._read_joining(self._ids)
        parts: list[bytes] = []
        size = 0
        for segment in self.feed.segments(self._next):
            parts.append(segment.data)
            size += len(segment.data)
            self._next += 1
            self._sent_id = segment.id_sent
            self._place = segment.place_after or segment.id_after
            if size >= self._max_chunk_bytes:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_joining(self, ids: IdWriter) -> bytes:
        """Frames of the ring that were not had, under ids of its own, until its position is the feed's."""
        frames: list[bytes] = []
        for segment in self.feed.segments(self._next):
            frames += self._own_frames(segment, ids)
            self._next += 1
        for partition, offset in self.feed.ids.offsets.items():
            if ids.offsets.get(partition, -1) < offset:
                ids.set(partition, offset)
        if self.feed.is_at(ids):
            self._ids = None
            self._place = self.feed.place
        return b"".join(frames)

    def _own_frames(self, segment: Segment, ids: IdWriter) -> Iterator[bytes]:
        had = ids.offsets.get(segment.partition, 0)
        wire = self.feed.wire
        if segment.gap is not None:
            if (gap := segment.gap.from_offset(had)) is not None:
                ids.set(gap.partition, gap.end)
                self._sent_id = ids.render()
                yield frame.gap(wire, gap.partition, gap.start, gap.end, gap.reason, self._sent_id)
            return
        if segment.next_offset <= had:
            return
        times: list[int | None] = segment.timestamps or [None] * len(segment.offsets)
        for offset, timestamp, (event, body) in zip(segment.offsets, times, wire.split(segment.data), strict=True):
            if offset >= had:
                ids.set(segment.partition, offset + 1, timestamp)
                self._sent_id = ids.render()
                yield wire.frame(event, self._sent_id, body)
        ids.set(segment.partition, segment.next_offset)

    def _fall_behind(self) -> None:
        """The ring has moved past this reader: it reads on with a cursor of its own."""
        if self._ids is None:
            self._ids = self.feed.ids.copy_at(*_offsets_and_times(self._place))
        self._own = self._catch_up(self._ids)
        self._own.sent_id = self._sent_id


def _offsets_and_times(place: str | dict[Partition, int]) -> tuple[dict[Partition, int], dict[Partition, int]]:
    if isinstance(place, dict):
        return place, {}
    starts = parse(place, OUR_OWN).starts
    return (
        {each: start.offset or 0 for each, start in starts.items()},
        {each: start.timestamp for each, start in starts.items() if start.timestamp is not None},
    )
