"""One fetch, one decode, one encode for all live readers of a selection in a worker.

    Follower   one cursor at the end of some topics, for all selections over them
      └─ SharedFeed   the frames of one selection: encoded once, kept in a bounded ring of segments
           └─ SharedReader   one client: catches up with a cursor of its own, joins the ring, takes the shared bytes

A reader's position equals the feed's from the moment when it takes shared bytes: so the ids in them are its own. Readers
that fall out of the ring go back to catching up by themselves; nobody's slowness costs another reader anything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import gevent
from gevent.event import Event

from kafkasse import frame
from kafkasse.errors import KafkasseError, KafkaUnavailable
from kafkasse.feed.contract import Batch, Log, OffsetOutOfRange
from kafkasse.feed.own import OwnReader
from kafkasse.feed.start import Gap, Opening
from kafkasse.feed.topics import TopicWatch
from kafkasse.frame import Encoder
from kafkasse.position import IdKind, IdWriter, Partition, parse

POLL_S = 1.0  # how often a follower looks up from a silent log: at heartbeats, topics, and whether it is still needed
BROKEN_PAUSE_S = 0.5
PUSH_SHARE = 2.0  # rest this many times as long as a push took, so that records gather while there are many readers
PUSH_REST_MAX_S = 0.02


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a feed may keep, and how long it may be silent."""

    ring_bytes_max: int
    ring_records_max: int
    heartbeat_s: float


class Segment:
    """The frames that one batch became. Segments are numbered; a reader's place is the number of the next one."""

    __slots__ = ("data", "id_after", "next_offset", "offsets", "partition", "place_after", "timestamps")

    def __init__(self, partition: Partition, next_offset: int) -> None:
        self.partition = partition
        self.next_offset = next_offset
        self.offsets: list[int] = []  # of the record of each frame
        self.timestamps: list[int | None] = []  # likewise; only kept where ids tell times
        self.data = b""
        self.id_after = ""
        self.place_after: dict[Partition, int] | None = None  # where ids tell no offsets


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

    def __init__(self, encoder: Encoder, ids: IdWriter, kind: IdKind, bounds: Bounds) -> None:
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
        self._parked: dict[Parked, None] = {}
        self._pushed = 0
        self._beat_due = time.monotonic() + bounds.heartbeat_s
        self.pushed_id = ids.render()  # the id of all that parked readers have been given
        self._changed = Event()

    # Appending: the follower's side.

    def append(self, batch: Batch) -> None:
        """Encode a batch once, for everybody."""
        partition, records, next_offset = batch
        segment = Segment(partition, next_offset)
        frames, segment.offsets = self._encoder.encode_run(partition, records, self.ids)
        if self._kind is not IdKind.OFFSET:
            times = {record.offset: record.timestamp for record in records}
            segment.timestamps = [times[offset] for offset in segment.offsets]
        self.ids.set(partition, next_offset)
        segment.data = b"".join(frames)
        self._add(segment)

    def declare(self, gap: Gap) -> None:
        """Tell all readers of records that are lost."""
        self.ids.set(gap.partition, gap.to)
        segment = Segment(gap.partition, gap.to)
        segment.offsets.append(gap.first)
        segment.timestamps.append(None)
        segment.data = frame.gap(self.wire, gap.partition, gap.first, gap.to, gap.reason, self.ids.render())
        self._add(segment)

    def add_partitions(self, firsts: Mapping[Partition, int]) -> None:
        """The topic has grown: new partitions are read from their first record."""
        for partition, first in firsts.items():
            self.ids.set(partition, first)
            self._ring_from[partition] = first

    def _add(self, segment: Segment) -> None:
        if not segment.data:
            return  # filtered, or markers: the position has moved, and a heartbeat tells it
        segment.id_after = self.ids.render()
        if self._kind is IdKind.TIMESTAMP:
            segment.place_after = dict(self.ids.offsets)
        self._ring.append(segment)
        self.head += 1
        self._ring_bytes += len(segment.data)
        self._ring_records += len(segment.offsets)

    def _trim(self) -> None:
        """Only once what is new has been given to all who wait: the ring may exceed its bounds by one fetch until then."""
        bounds = self._bounds
        while self._ring and (self._ring_bytes > bounds.ring_bytes_max or self._ring_records > bounds.ring_records_max):
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
            self._push(self.joined(self._pushed))
            self._pushed = self.head
            self.pushed_id = self._ring[-1].id_after
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
        moved, self.pushed_id = now != self.pushed_id, now
        return (self.wire.id_alone(now) if moved else b"") or self.wire.heartbeat

    def _push(self, data: bytes) -> None:
        self._beat_due = time.monotonic() + self._bounds.heartbeat_s
        wrapped: bytes | None = None
        for parked in list(self._parked):
            wrapped = parked.wrap(data) if wrapped is None else wrapped
            if not parked.deliver(wrapped):
                self._parked.pop(parked, None)

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

    def unpark(self, parked: Parked) -> None:
        self._parked.pop(parked, None)

    @property
    def place(self) -> str | dict[Partition, int]:
        """The feed's position, in the form in which a reader keeps it."""
        return dict(self.ids.offsets) if self._kind is IdKind.TIMESTAMP else self.ids.render()

    @property
    def pushed(self) -> int:
        """The number of the segment that parked readers get next."""
        return self._pushed

    @property
    def parked(self) -> int:
        return len(self._parked)


class Follower:
    """Follows the end of some topics for all feeds over them, in a greenlet of its own.

    Args:
        log: the log to read.
        opening: where all partitions of the topics end.
        watch: notices what becomes of the topics.
        grace_s: how long it goes on without readers.
    """

    def __init__(self, log: Log, opening: Opening, watch: TopicWatch, grace_s: float) -> None:
        self._log = log
        self._watch = watch
        self._grace_s = grace_s
        self.incarnations = opening.incarnations
        self.offsets = dict(opening.offsets)  # the next offset to fetch, whether or not there is a feed to hear of it
        self.timestamps = dict(
            opening.timestamps
        )  # of the record before it, for the ids of feeds that are opened later
        self.feeds: dict[object, SharedFeed] = {}
        self.closed = False
        self._cursor = log.cursor(opening.offsets, follow=True)

    def start(self) -> None:
        """Follow from now on, in a greenlet."""
        gevent.spawn(self._run)

    def close(self) -> None:
        """Stop following, and end all readers politely."""
        self.closed = True
        for feed in self.feeds.values():
            feed.fail(None)

    def _run(self) -> None:
        try:
            while not self.closed:
                began = self.turn(POLL_S)
                # Many readers: let records gather while they read, so that one write carries more than one record.
                gevent.sleep(min(PUSH_REST_MAX_S, (time.monotonic() - began) * PUSH_SHARE))
                self._look_around()
        except KafkasseError as error:
            self._fail(error)
        except Exception as error:
            self._fail(KafkaUnavailable("Reading from Kafka failed. Come back with your last id."))
            raise error
        finally:
            self.closed = True
            self._cursor.close()

    def turn(self, timeout_s: float) -> float:
        """Give what the log has to all feeds. Returns when it began to write to readers (time.monotonic())."""
        for batch in self._poll(timeout_s):
            self.offsets[batch.partition] = batch.next_offset
            if batch.records:
                self.timestamps[batch.partition] = (batch.records[-1].timestamp or 0) + 1
            for feed in self.feeds.values():
                feed.append(batch)
        began = time.monotonic()
        for feed in self.feeds.values():
            feed.flush()
        return began

    def _poll(self, timeout_s: float) -> list[Batch]:
        try:
            return self._cursor.poll(timeout_s)
        except OffsetOutOfRange as error:
            self._recover(error.partitions)
        except KafkaUnavailable:
            gevent.sleep(BROKEN_PAUSE_S)  # patience: readers get heartbeats until Kafka is back
        return []

    def _recover(self, partitions: tuple[Partition, ...]) -> None:
        for each, bounds in self._log.bounds(partitions).items():
            if gap := Gap.between(each, self.offsets[each], bounds):
                self.offsets[each] = gap.to
                for feed in self.feeds.values():
                    feed.declare(gap)
            self._cursor.seek({each: self.offsets[each]})

    def _look_around(self) -> None:
        for feed in [feed for feed in self.feeds.values() if not feed.readers]:
            if time.monotonic() - feed.idle_since > self._grace_s:
                self.feeds = {key: each for key, each in self.feeds.items() if each is not feed}
        if not self.feeds:
            self.closed = True
            return
        news = self._watch.look(self.incarnations, self.offsets)
        if news.remade:
            self.close()
        elif news.added:
            firsts = {each: bounds.first for each, bounds in self._log.bounds(news.added).items()}
            self.offsets |= firsts
            for feed in self.feeds.values():
                feed.add_partitions(firsts)
            self._cursor.seek(firsts)

    def _fail(self, error: KafkasseError) -> None:
        for feed in self.feeds.values():
            feed.fail(error)


class SharedReader:
    """One client of a shared feed. The same face as OwnReader.

    Args:
        feed: what it is to join.
        ids: where it begins, with ids of its own until it has joined.
        catch_up: opens a reader of its own at the ids it is given; None in `own` for one that can join at once.
        own: the reader that catches up.
        chunk_bytes_max: about how many bytes read() returns at once.
    """

    def __init__(
        self,
        feed: SharedFeed,
        ids: IdWriter,
        catch_up: Callable[[IdWriter], OwnReader],
        own: OwnReader | None,
        chunk_bytes_max: int,
    ) -> None:
        self.feed = feed
        self._own = own
        self._ids: IdWriter | None = ids  # None once its position is the feed's
        self._catch_up = catch_up
        self._chunk_bytes_max = chunk_bytes_max
        self._next = feed.first
        self._place: str | dict[Partition, int] = ""  # the position before segment `_next`, once `_ids` is None
        self._sent_id = ""  # the last id that the client was given
        self._left = False
        self.closed = False
        self.ended = False
        feed.readers += 1
        if own is None and ids.offsets == feed.ids.offsets:
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
            if self._own is None:
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

    def unparked(self) -> None:
        """It was served by the feed up to what the feed has pushed."""
        self._next = self.feed.pushed
        self._sent_id = self.feed.pushed_id
        self._place = self.feed.place

    def close(self) -> None:
        """Give everything back. May be called twice."""
        self.closed = True
        if self._own is not None:
            self._own.close()
            self._own = None
        if not self._left:
            self._left = True
            self.feed.readers -= 1
            self.feed.idle_since = time.monotonic()

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

    def _join(self, own: OwnReader) -> None:
        """Go on from the ring, skipping what was had. The cursor goes back."""
        if self.closed or self.ended:
            return
        self._ids, self._sent_id = own.ids, own.sent_id
        self._own = None
        own.close()
        self._next = self.feed.first

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
            self._sent_id = segment.id_after
            self._place = segment.place_after or segment.id_after
            if size >= self._chunk_bytes_max:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_joining(self, ids: IdWriter) -> bytes:
        """Frames of the ring that were not had, under ids of its own, until its position is the feed's."""
        frames: list[bytes] = []
        for segment in self.feed.segments(self._next):
            frames += self._own_frames(segment, ids)
            self._next += 1
        theirs = self.feed.ids.offsets
        for partition, offset in theirs.items():
            if ids.offsets.get(partition, -1) < offset:
                ids.set(partition, offset)
        if all(ids.offsets[each] == offset for each, offset in theirs.items()):
            self._ids = None
            self._place = self.feed.place
        return b"".join(frames)

    def _own_frames(self, segment: Segment, ids: IdWriter) -> Iterator[bytes]:
        had = ids.offsets.get(segment.partition, 0)
        if segment.next_offset <= had:
            return
        wire = self.feed.wire
        times: list[int | None] = segment.timestamps or [None] * len(segment.offsets)
        for offset, timestamp, (event, body) in zip(segment.offsets, times, wire.split(segment.data), strict=True):
            if offset >= had:
                ids.set(segment.partition, offset + 1 if event != "gap" else segment.next_offset, timestamp)
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
    starts = parse(place).starts
    return (
        {each: start.offset or 0 for each, start in starts.items()},
        {each: start.timestamp for each, start in starts.items() if start.timestamp is not None},
    )
