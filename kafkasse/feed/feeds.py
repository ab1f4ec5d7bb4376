"""The feeds of one log in this process. Feeds.open() opens the reader of a stream.

Feeds.open() ─▶ ring covers the position? ── yes ─▶ Reader (joining or live)
                         │ no
                         ▼
                    resolve() ─▶ CatchUp (a cursor) ─▶ Reader (catching up)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from kafkasse.config.settings import FeedSettings
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.reader import Reader
from kafkasse.feed.ring import RingLimits
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.single_flight import SingleFlight
from kafkasse.feed.start import ResolvedPosition, resolve
from kafkasse.feed.tail import Tail
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.frame import Encoder
from kafkasse.log import Log, Partition, Topic
from kafkasse.position import IdWriter, Position, of_topics
from kafkasse.route import Route, StartAt

MAX_IDLE_TAILS_RATIO = 1 / 4  # the share of max_cursors that tails without readers may use
MAX_DESCRIPTION_AGE_S = 1.0  # how long describe() returns a cached description by default


class Feeds:
    """The feeds of one log in this process.

    Args:
        log: the log to read.
        settings: limits and intervals.
        start_tail: starts the greenlet of a tail. Tests pass a function that does nothing, and call Tail.turn() themselves.
    """

    def __init__(self, log: Log, settings: FeedSettings, start_tail: Callable[[Tail], None] = Tail.start) -> None:
        self.log = log
        self._settings = settings
        self._start_tail = start_tail
        self._descriptions: dict[str, tuple[float, Topic]] = {}  # with the time of the description
        self._describing = SingleFlight()
        self._tails: dict[tuple[str, ...], Tail] = {}
        self._tailing = SingleFlight()

    def describe(self, topics: Iterable[str], max_age_s: float = MAX_DESCRIPTION_AGE_S) -> dict[str, Topic]:
        """Return those of `topics` that exist. Cached descriptions may be `max_age_s` seconds old.

        Raises:
            KafkaUnavailable: the cluster does not answer.
        """
        names = list(topics)
        cached = self._cached(names, max_age_s)
        return cached if len(cached) == len(names) else self._describing.run(lambda: self._describe(names, max_age_s))

    def _describe(self, names: list[str], max_age_s: float) -> dict[str, Topic]:
        described = self._cached(names, max_age_s)  # another greenlet may have described them meanwhile
        if missing := [name for name in names if name not in described]:
            found = self.log.describe(missing)
            now = time.monotonic()
            fresh = {name: entry for name, entry in self._descriptions.items() if entry[0] >= now - max_age_s}
            self._descriptions = fresh | {name: (now, topic) for name, topic in found.items()}
            described |= found
        return described

    def _cached(self, names: list[str], max_age_s: float) -> dict[str, Topic]:
        oldest = time.monotonic() - max_age_s
        entries = {name: entry for name in names if (entry := self._descriptions.get(name))}
        return {name: topic for name, (described_at, topic) in entries.items() if described_at >= oldest}

    def open(
        self,
        route: Route,
        position: Position,
        topics: Mapping[str, Topic],
        encoder: Encoder,
        since: int | None = None,
    ) -> Reader:
        """Open a reader.

        Args:
            route: decides where a client without an event ID starts, and what event IDs contain.
            position: the position that the client sent.
            topics: the topics of the position, as describe() returns them.
            encoder: encodes records. Streams with the same encoder and topics share a feed.
            since: where a client without an event ID starts, in milliseconds since the epoch. None: where the route says.

        Raises:
            InvalidPosition: the position is not valid for these topics.
            TopicNotAvailable: a topic was deleted after describe() returned it.
            Unavailable: Kafka does not answer, or the log has too many open cursors.
        """
        if position.partial_topics:  # a stream of selected partitions cannot share a feed
            return self._open_reader(None, route, position, topics, encoder, since)
        feed = self._feed(route, topics, encoder)
        feed.readers += 1  # count the reader before anything that waits, because a feed without readers may be dropped
        try:
            return self._open_reader(feed, route, position, topics, encoder, since)
        except BaseException:
            feed.readers -= 1
            raise

    def _open_reader(
        self,
        feed: SharedFeed | None,
        route: Route,
        position: Position,
        topics: Mapping[str, Topic],
        encoder: Encoder,
        since: int | None,
    ) -> Reader:
        settings = self._settings
        ids = _ids_in_ring(feed, route, position, topics, since) if feed is not None else None
        catch_up: CatchUp | None = None
        if ids is None:
            start = resolve(self.log, position, topics, route.start, since)
            ids = _ids(start, route)
            catch_up = CatchUp(
                self.log,
                ids,
                encoder,
                self._watch(start.partial_topics),
                settings.max_chunk_bytes,
                start.gaps,
                settings.max_snapshot_keys if start.snapshot else None,
                tail=feed is None,
            )

        def open_catch_up(ids: IdWriter) -> CatchUp:
            return CatchUp(self.log, ids, encoder, self._watch(), settings.max_chunk_bytes)

        return Reader(ids, feed, open_catch_up, catch_up, settings.max_chunk_bytes)

    def close(self) -> None:
        """End all streams, and close the log."""
        for tail in self._tails.values():
            tail.close()
        self.log.close()

    def _watch(self, partial_topics: frozenset[str] = frozenset()) -> TopicWatch:
        interval_s = self._settings.metadata_refresh_s
        return TopicWatch(lambda topics: self.describe(topics, interval_s / 2), interval_s, partial_topics)

    def _feed(self, route: Route, topics: Mapping[str, Topic], encoder: Encoder) -> SharedFeed:
        tail = self._tail(topics)
        if encoder not in tail.feeds:
            settings = self._settings
            start = ResolvedPosition(dict(tail.offsets), tail.topic_ids, frozenset(), dict(tail.timestamps))
            limits = RingLimits(settings.max_ring_bytes, settings.max_ring_records)
            tail.feeds[encoder] = SharedFeed(encoder, _ids(start, route), route.id_type, limits, settings.heartbeat_s)
        return tail.feeds[encoder]

    def _tail(self, topics: Mapping[str, Topic]) -> Tail:
        key = tuple(sorted(topics))
        topic_ids = {name: topics[name].topic_id for name in key}

        def open_tail() -> Tail:
            return self._open_tail_of(key, topic_ids) or self._start_tail_of(key, topics)

        # If these topics have a tail already, do not wait until the tails of other topics are open.
        return self._open_tail_of(key, topic_ids) or self._tailing.run(open_tail)

    def _open_tail_of(self, key: tuple[str, ...], topic_ids: Mapping[str, str]) -> Tail | None:
        tail = self._tails.get(key)
        return tail if tail is not None and not tail.closed and tail.topic_ids == topic_ids else None

    def _start_tail_of(self, key: tuple[str, ...], topics: Mapping[str, Topic]) -> Tail:
        if key in self._tails:
            self._tails[key].close()  # a topic was recreated
        self._close_idle_tails()
        settings = self._settings
        end = resolve(self.log, of_topics(key), topics, StartAt.LATEST)
        tail = Tail(self.log, end, self._watch(), settings.idle_feed_timeout_s, settings.heartbeat_s)
        self._tails = {each: other for each, other in self._tails.items() if not other.closed}
        self._tails[key] = tail
        self._start_tail(tail)
        return tail

    def _close_idle_tails(self) -> None:
        """Close the oldest tails without readers, above a limit. The others stay open for clients that reconnect."""
        idle = [tail for tail in self._tails.values() if tail.idle]
        excess = len(idle) - int(self._settings.max_cursors * MAX_IDLE_TAILS_RATIO)
        for tail in idle[: max(0, excess)]:
            tail.close()


def _ids(start: ResolvedPosition, route: Route) -> IdWriter:
    return IdWriter(
        start.offsets, start.topic_ids, start.partial_topics, route.id_type, start.timestamps, route.compact_ids
    )


def _ids_in_ring(
    feed: SharedFeed, route: Route, position: Position, topics: Mapping[str, Topic], since: int | None
) -> IdWriter | None:
    """Return the ID writer of a client that can start from the ring, or None if its position must be resolved."""
    if not position.starts:
        at_end = since is None and route.start is StartAt.LATEST
        return feed.ids.copy_at(feed.ids.offsets, feed.ids.timestamps) if at_end else None
    if any(position.topic_ids.get(name) != topic.topic_id for name, topic in topics.items()):
        return None
    offsets: dict[Partition, int] = {}
    timestamps: dict[Partition, int] = {}
    for partition, start in position.starts.items():
        if start.offset is None:
            return None
        offsets[partition] = start.offset
        if start.timestamp is not None:
            timestamps[partition] = start.timestamp
    return feed.ids.copy_at(offsets, timestamps) if feed.holds(offsets) else None
