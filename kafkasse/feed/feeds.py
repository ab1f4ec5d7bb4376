"""The feeds of one log in this process. Feeds.open() opens the reader of a stream.

Feeds.open() ─▶ ring covers the position? ── yes ─▶ Reader (joining or live)
                         │ no
                         ▼
                    resolve() ─▶ CatchUp (a cursor) ─▶ Reader (catching up)
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from kafkasse.errors import KafkaUnavailable, TopicGone, TopicNotAvailable
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.chunks import Chunks
from kafkasse.feed.core.feed import FeedKey
from kafkasse.feed.core.reader import ReaderStart
from kafkasse.feed.core.reader_states import FEED_END
from kafkasse.feed.core.ring import RingLimits
from kafkasse.feed.core.start import (
    ResolvedPosition,
    check_partitions,
    contradictions,
    timestamps_at_end,
    with_whole_topics,
)
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.tail import PartitionState, PendingPartition, TailPartition
from kafkasse.feed.core.topics import is_recreated
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.lookup import OffsetRanges, SharedLookup
from kafkasse.feed.reader import Cursors, Reader
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.slots import CatchUpSlots, has_its_share, no_place
from kafkasse.feed.snapshot import Snapshot
from kafkasse.feed.start import resolve
from kafkasse.feed.tail import Tail
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.feed.versions import read_versions
from kafkasse.log import UNKNOWN_EPOCH, Gap, Log, OffsetAndEpoch, Offsets, Partition, Topic, Topics
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import IdType, IdWriter, Position
from kafkasse.route import Route, StartAt
from kafkasse.settings import FeedSettings

MAX_DESCRIPTION_AGE_S = 1.0  # how long describe() returns a cached description by default
MAX_DESCRIPTIONS = 10_000  # in the cache, including those of topics that do not exist
MAX_FEEDS = 1000
TOO_BUSY = "More records arrive than the server can compare with those before them. Try again."
ALL = "all topics"  # the only key of the lookup of topic names


def ring_limits(settings: FeedSettings) -> RingLimits:
    """Return the limits of the rings of one process."""
    return RingLimits(settings.max_ring_bytes, settings.max_ring_records, settings.max_total_ring_bytes)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a client requests."""

    route: Route  # decides where a client without an event ID starts, and what event IDs contain
    # As the client sent it. If it lists all partitions of a topic without a topic ID, the stream contains the whole topic,
    # including partitions that are added later.
    position: Position
    topics: Topics  # those of the position, as describe() returns them
    encoder: Encoder  # encodes records. Streams with the same encoder and topics share a feed.
    since: int | None = None  # the start without an event ID, in ms since the epoch. None: as `route.start` says.
    client: str = ""  # the address of the client. Addresses take turns to catch up.
    # The records that the client receives, if the encoder has dimensions. Different selectors share a feed.
    selector: Selector | None = None


class Feeds:
    """The feeds of one log in this process.

    Args:
        log: the log to read.
        settings: limits and intervals.
        start_tail: starts the greenlet of a tail. Tests pass a function that does nothing, and call Tail.turn() themselves.
        limits: the limits of the rings, if the feeds of several logs share them.

    Attributes:
        stats: the totals of each route that has had a feed.
        chunks: the finite reads of the log.
    """

    def __init__(
        self,
        log: Log,
        settings: FeedSettings,
        start_tail: Callable[[Tail], None] = Tail.start,
        limits: RingLimits | None = None,
    ) -> None:
        self.log = log
        self._settings = settings
        self._start_tail = start_tail
        self._describing = SharedLookup(log.describe, settings.kafka_timeout_s, max_cached=MAX_DESCRIPTIONS)
        self._listing: SharedLookup[str, set[str]] = SharedLookup(
            lambda keys: dict.fromkeys(keys, log.topic_names()), settings.kafka_timeout_s, max_cached=1
        )
        self._epoch_ends = EpochEnds(log, settings.kafka_timeout_s)
        self._offset_ranges = OffsetRanges(log, settings.kafka_timeout_s)
        self._tail: Tail | None = None
        self._opened_by: WeakKeyDictionary[SharedFeed, str] = WeakKeyDictionary()  # the address of the first client
        self.stats: defaultdict[str, RouteStats] = defaultdict(RouteStats)
        self._slots = CatchUpSlots(settings.max_catch_ups)
        self._cursors = Cursors(self._open_catch_up, self._slots, settings.max_chunk_bytes)
        self.chunks = Chunks(
            log, self._epoch_ends, self._offset_ranges, self._describe_again, self._slots, settings.kafka_timeout_s
        )
        self._ring_limits = limits or ring_limits(settings)

    def describe(
        self,
        topics: Sequence[str],
        max_age_s: float = MAX_DESCRIPTION_AGE_S,
        position: Position | None = None,
        since: float = 0.0,
    ) -> dict[str, Topic]:
        """Return those of `topics` that exist and that we may read.

        Args:
            topics: the names of the topics.
            max_age_s: how old cached descriptions may be.
            position: a client's position, or None. The server that issued the event ID may have noticed a change of a topic
                first. If a description contradicts the position, a newer one is returned, for which the client may have to
                wait `max_age_s` seconds.
            since: when the client's request arrived, as in time.monotonic(). Newer descriptions are not replaced.

        Raises:
            Unavailable: the cluster does not answer, or cannot describe a topic now.
        """
        described = self._describing.get(topics, max_age_s)
        if position is not None and (outdated := contradictions(position, described).intersection(topics)):
            described = {name: topic for name, topic in described.items() if name not in outdated}
            described |= self._describing.get(sorted(outdated), max_age_s, since)
        for name, topic in list(described.items()):
            if isinstance(topic.error, TopicNotAvailable):
                del described[name]
            elif topic.error is not None:
                raise copy.copy(topic.error)
        return described

    def _describe_again(self, topics: Collection[str]) -> Topics:
        return self._describing.get(topics, since=time.monotonic())

    def topic_names(self, max_age_s: float = MAX_DESCRIPTION_AGE_S, since: float = 0.0) -> set[str]:
        """Return the names of all topics that we may read. A cached result may be `max_age_s` seconds old.

        If the cached result was requested before `since`, wait until it expires, and return a newer one.

        Raises:
            Unavailable: the cluster does not answer.
        """
        return self._listing.get([ALL], max_age_s, since)[ALL]

    def matching(self, route: Route, position: Position, since: float) -> list[str]:
        """Return the existing topics that match a pattern of the route.

        The result is newer than `since`, the time of the request, if an older list contains no topic of the route or lacks a
        topic of the client's position.

        Raises:
            Unavailable: the cluster does not answer, or cannot describe a topic now.
        """
        if not route.patterns:
            return []
        names = self.topic_names()
        if not names.issuperset(route.matching(position.topic_ids)) or not route.matching(names):
            names = self.topic_names(since=since)
        # describe() omits topics that were deleted after they were listed.
        return [*self.describe(route.matching(names), position=position, since=since)]

    def open(self, request: OpenRequest) -> Reader:
        """Open a reader.

        Raises:
            InvalidPosition: the position is not valid for these topics.
            TopicNotAvailable, TopicGone: a topic was deleted after describe() returned it. Topics that the route does not
                name, but only matches with a pattern, are left out instead.
            Unavailable: Kafka does not answer.
        """
        if (request.selector is None) != (request.encoder.dimensions is None):
            raise ValueError("A stream has a selector if and only if its encoder has dimensions.")
        while True:
            try:
                opened = self._open(request)
            except (TopicNotAvailable, TopicGone):
                if (rest := self.without_deleted(request.route, request.position, request.topics)) is None:
                    raise
                position, opened = rest
                request = replace(request, position=position)
            if isinstance(opened, Reader):
                return opened
            request = replace(request, topics=opened)

    def without_deleted(self, route: Route, position: Position, topics: Topics) -> tuple[Position, Topics] | None:
        """Leave out the topics that were deleted after describe() returned them.

        Return None if there are none, or if a stream cannot continue without them; see Route.matches_all().
        """
        deleted = topics.keys() - self._describe_again(topics).keys()
        if not deleted or deleted == topics.keys() or not (position.is_whole_route and route.matches_all(deleted)):
            return None
        return position.without_topics(deleted), {name: topic for name, topic in topics.items() if name not in deleted}

    def _open(self, request: OpenRequest) -> Reader | Topics:
        """Find the feed, and open a reader. See _open_reader()."""
        check_partitions(request.position, request.topics)
        whole = replace(request, position=with_whole_topics(request.position, request.topics))
        feed = self._feed(whole)
        feed.readers += 1  # before anything that waits, because a feed without readers may be dropped
        opened = None
        try:
            opened = self._open_reader(feed, whole)
        finally:
            if not isinstance(opened, Reader):
                feed.readers -= 1
        return opened

    def _open_reader(self, feed: SharedFeed, request: OpenRequest) -> Reader | Topics:
        """Return the reader, or the new descriptions of the topics if some were recreated after they were described."""
        take_turn()  # with 2,500 partitions, parsing the request and finding the feed take as long as opening the reader
        route, position, topics = request.route, request.position, request.topics

        def reader(start: ReaderStart, gaps: Sequence[Gap] = ()) -> Reader:
            return Reader(start, feed, self._cursors, request.client, gaps, request.selector)

        if not position.starts and request.since is None and route.start is StartAt.LATEST:
            return reader(FEED_END)
        ids = self._ids_in_ring(feed, position, topics) if position.starts else None
        if ids is not None:
            return reader(ids)
        start = resolve(
            self.log,
            position,
            topics,
            route.start,
            request.since,
            route.id_type,
            self._epoch_ends,
            self._offset_ranges,
            self._describe_again,
        )
        if not start.topics.items() <= topics.items():
            return {**topics, **start.topics}
        if start.snapshot:
            snapshot = self._snapshot(feed)
            snapshot.request()
            return reader(snapshot)
        return reader(_ids(start, route), start.gaps)

    def _open_catch_up(self, feed: SharedFeed, ids: IdWriter, selector: Selector | None) -> CatchUp:
        key, max_chunk_bytes = feed.key, self._settings.max_chunk_bytes
        follows = [key.follows] if key.follows is not None else []
        watch = self._watch(key.partial_topics, lambda: follows)
        versions = None
        if key.newest_by is not None:
            versions = Versions(key.newest_by)
            self._read_versions(versions, ids.offsets)
        return CatchUp(
            self.log, ids, key.encoder, watch, max_chunk_bytes, feed.stats, bool(follows), selector, versions
        )

    def _read_versions(self, versions: Versions, offsets: Offsets) -> None:
        """Read the versions of the records before these offsets.

        Raises:
            KafkasseError: Kafka does not send the records.
        """
        read_versions(versions, self.log, offsets, self._offset_ranges.get(offsets), self._settings.kafka_timeout_s)

    def _ids_in_ring(self, feed: SharedFeed, position: Position, topics: Topics) -> IdWriter | None:
        """Return the ID writer of a client that can start from the ring, or None if its position must be resolved."""
        at = feed.ids
        if any(is_recreated(position.topic_ids.get(name), topic) for name, topic in topics.items()):
            return None
        starts = position.starts
        if any(
            start.offset is None and at.pending.get(partition) != start.timestamp for partition, start in starts.items()
        ):
            return None
        ids = at.copy_at(starts)
        if not feed.holds(ids):
            return None
        unequal = {
            partition: OffsetAndEpoch(ids.offsets[partition], epoch)
            for partition, epoch in ids.epochs.items()
            if at.epochs.get(partition) != epoch
        }
        # During the lookup, the feed may move. The reader then falls behind, because the ring does not cover its position.
        return None if unequal and self._epoch_ends.diverged_at(unequal) else ids

    def ring_bytes(self) -> dict[str, int]:
        """Return how many bytes the rings of each route take up."""
        feeds = self._tail.feeds.values() if self._tail is not None else ()
        return {
            route: sum(feed.ring.bytes for feed in feeds if feed.stats is stats) for route, stats in self.stats.items()
        }

    def versions_bytes(self) -> dict[str, int]:
        """Return how many bytes the versions of records take up, in the feeds of each route."""
        feeds = self._tail.feeds.values() if self._tail is not None else ()
        return {
            route: sum(feed.versions_bytes for feed in feeds if feed.stats is stats)
            for route, stats in self.stats.items()
        }

    def close(self) -> None:
        """End all streams, and close the log."""
        if self._tail is not None:
            self._tail.close()
        self.log.close()

    def _snapshot(self, feed: SharedFeed) -> Snapshot:
        if feed.snapshot is None:
            settings = self._settings
            feed.snapshot = Snapshot(
                feed, self.log.recent, self._slots, settings.max_snapshot_bytes, settings.idle_feed_timeout_s
            )
        return feed.snapshot

    def _watch(self, partial_topics: frozenset[str], followed: Callable[[], Iterable[Route]]) -> TopicWatch:
        interval_s = self._settings.metadata_refresh_s

        def describe(topics: list[str]) -> dict[str, Topic]:
            return self._describing.get(topics, interval_s / 2)

        def matching() -> set[str]:
            return {topic for route in followed() for topic in route.matching(self.topic_names(interval_s / 2))}

        return TopicWatch(describe, interval_s, partial_topics, matching)

    # Shared feeds.

    def drop_idle(self, encoders: Iterable[Encoder]) -> Encoder | None:
        """Free the place of the encoder that has been without readers for the longest time, by dropping its feeds.

        Return this encoder, or None if all of them have readers.
        """
        tail = self._open_tail()
        feeds: dict[Encoder, list[SharedFeed]] = {encoder: [] for encoder in encoders}
        for feed in tail.feeds.values():
            if feed.key.encoder in feeds:
                feeds[feed.key.encoder].append(feed)
        idle = [used_by for used_by in feeds.values() if used_by and not any(feed.readers for feed in used_by)]
        if not idle:
            return None
        oldest = min(idle, key=lambda used_by: max(feed.idle_since for feed in used_by))
        for feed in oldest:
            tail.remove(feed)
        return oldest[0].key.encoder

    def _feed(self, request: OpenRequest) -> SharedFeed:
        """Return the feed of a request. In partitions that the tail does not read yet, a new feed starts at the end."""
        route, position, topics = request.route, request.position, request.topics
        partial = (partition for partition in position.starts if partition.topic in position.partial_topics)
        selected = frozenset(
            partition for partition in partial if partition.partition < topics[partition.topic].partitions
        )
        key = FeedKey(request.encoder, tuple(sorted(topics)), selected, newest_by=route.newest_by)
        if route.patterns and position.is_whole_route:
            key = FeedKey(request.encoder, follows=route, newest_by=route.newest_by)
        versions: Versions | None = None
        truncations = 0
        now_ms = time.time_ns() // 1_000_000  # taken before the ends, so that no record written meanwhile is skipped
        deadline = time.monotonic() + self._settings.kafka_timeout_s
        new: dict[Partition, PartitionState[SharedFeed]] = {}
        while True:  # other greenlets may add and remove feeds during a lookup
            tail = self._open_tail()
            tail.end_recreated(topics)
            if key in tail.feeds:
                return tail.feeds[key]
            # Before the states are read, because this may remove partitions from the tail.
            self._make_room(tail, request.client)
            partitions = tail.partitions_of(key, topics)
            unknown = [
                partition for partition in partitions if partition not in tail.partitions and partition not in new
            ]
            if not unknown:
                states = {partition: tail.partitions.get(partition) or new[partition] for partition in partitions}
                offsets = {at: state.offset for at, state in states.items() if isinstance(state, TailPartition)}
                if route.newest_by is not None and (
                    versions is None
                    or truncations != tail.truncations  # the log has lost records, whose versions may be known
                    or any(versions.ends.get(partition, 0) > offset for partition, offset in offsets.items())
                ):
                    versions, truncations = Versions(route.newest_by), tail.truncations
                if versions is None or versions.has_read(offsets):
                    feed = self._add_feed(tail, key, states, route, topics, now_ms, versions)
                    self._opened_by[feed] = request.client
                    return feed
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(TOO_BUSY)
                with tail.recording(key, offsets) as later:
                    self._read_versions(versions, offsets)
                    later.add_to(versions)
                continue
            ranges = self._offset_ranges.get(unknown)
            epochs = self._epoch_ends.last_epochs(ranges)
            for partition in unknown:
                if partition in ranges:
                    epoch = epochs.get(partition, UNKNOWN_EPOCH)
                    new[partition] = TailPartition(ranges[partition].end, epoch=epoch)
                else:
                    new[partition] = PendingPartition(now_ms)

    def _add_feed(
        self,
        tail: Tail,
        key: FeedKey,
        states: Mapping[Partition, PartitionState[SharedFeed]],
        route: Route,
        topics: Topics,
        now_ms: int,
        versions: Versions | None,
    ) -> SharedFeed:
        """Add a feed at the position of these partitions to the tail."""
        settings = self._settings
        add_ms = route.id_type is IdType.TIMESTAMP  # see IdWriter.set()
        reading = {at: state for at, state in states.items() if isinstance(state, TailPartition)}
        start = ResolvedPosition(
            offsets={partition: state.offset for partition, state in reading.items()},
            topics={name: topics[name] for name in sorted(topics)},
            partial_topics=key.partial_topics,
            timestamps=timestamps_at_end(states, route.id_type, now_ms)
            | {
                partition: state.timestamp + add_ms
                for partition, state in reading.items()
                if state.timestamp is not None
            },
            pending={at: state.start_ms for at, state in states.items() if isinstance(state, PendingPartition)},
            epochs={partition: state.epoch for partition, state in reading.items() if state.epoch != UNKNOWN_EPOCH},
        )
        stats = self.stats[route.name]
        heartbeat_s = route.heartbeat_s or settings.heartbeat_s
        feed = SharedFeed(key, _ids(start, route), self._ring_limits, heartbeat_s, stats, versions)
        tail.add(feed, states)
        return feed

    def _make_room(self, tail: Tail, client: str) -> None:
        """While the client has its share of all feeds, drop the feed without readers that has been idle for longest.

        Raises:
            TooManySelections, ServerFull: the client has its share, and all feeds have readers.
        """
        while has_its_share(client, owners := [self._opened_by[feed] for feed in tail.feeds.values()], MAX_FEEDS):
            idle = [feed for feed in tail.feeds.values() if not feed.readers]
            if not idle:
                raise no_place(client, owners, MAX_FEEDS, "different selections of topics")
            tail.remove(min(idle, key=lambda feed: feed.idle_since))

    def _open_tail(self) -> Tail:
        if self._tail is None or self._tail.closed:
            settings = self._settings
            self._tail = tail = Tail(
                self.log,
                self._watch(frozenset(), lambda: tail.followed),
                settings.idle_feed_timeout_s,
                settings.heartbeat_s,
            )
            self._start_tail(self._tail)
        return self._tail


def _ids(start: ResolvedPosition, route: Route) -> IdWriter:
    return IdWriter(
        start.offsets,
        start.topic_ids,
        start.partial_topics,
        route.id_type,
        start.timestamps,
        route.compact_ids,
        start.epochs,
        start.pending,
    )
