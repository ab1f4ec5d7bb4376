"""Feeds: from a position to frames. Knows logs, records and frames; knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from kafkasse.config.settings import FeedSettings
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.reader import Reader
from kafkasse.feed.ring import RingLimits, SharedFeed
from kafkasse.feed.single_flight import SingleFlight
from kafkasse.feed.start import ResolvedPosition, resolve
from kafkasse.feed.tail import Tail
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.frame import Encoder
from kafkasse.log import Log, Partition, Topic
from kafkasse.position import IdWriter, Position, of_topics
from kafkasse.route import Route, StartAt

__all__ = ["Feeds"]

IDLE_SHARE = 4  # one in so many of a worker's consumers may follow topics that nobody reads at the moment
OPEN_CHECK_S = 1.0  # how old the description of a topic may be for a stream to be opened by it


class Feeds:
    """The feeds and readers of one log in this process.

    Args:
        log: the cluster.
        settings: limits and intervals.
        follow: sets a tail going; tests turn theirs by hand.
    """

    def __init__(self, log: Log, settings: FeedSettings, follow: Callable[[Tail], None] = Tail.start) -> None:
        self.log = log
        self._settings = settings
        self._follow = follow
        self._looks: dict[str, tuple[float, Topic]] = {}
        self._looking = SingleFlight()
        self._tails: dict[tuple[str, ...], Tail] = {}
        self._following = SingleFlight()

    def describe(self, topics: Iterable[str], age_max_s: float = OPEN_CHECK_S) -> dict[str, Topic]:
        """As log.describe(), but what is known and not older than `age_max_s` seconds is not asked again."""
        wanted = list(topics)
        known = self._known(wanted, time.monotonic() - age_max_s)
        return known if len(known) == len(wanted) else self._looking.run(lambda: self._look(wanted, age_max_s))

    def _look(self, wanted: list[str], age_max_s: float) -> dict[str, Topic]:
        oldest = time.monotonic() - age_max_s
        known = self._known(wanted, oldest)  # somebody else may have asked meanwhile
        if missing := [each for each in wanted if each not in known]:
            found = self.log.describe(missing)
            now = time.monotonic()
            self._looks = {each: look for each, look in self._looks.items() if look[0] >= oldest}
            self._looks.update({each: (now, topic) for each, topic in found.items()})
            known |= found
        return known

    def _known(self, wanted: list[str], oldest: float) -> dict[str, Topic]:
        return {each: look[1] for each in wanted if (look := self._looks.get(each)) and look[0] >= oldest}

    def open(
        self,
        route: Route,
        position: Position,
        topics: Mapping[str, Topic],
        encoder: Encoder,
        since: int | None = None,
    ) -> CatchUp | Reader:
        """Open a stream.

        Args:
            route: where partitions begin of which the client said nothing, and the kind of ids.
            position: what the client sent.
            topics: its topics, as describe() gives them.
            encoder: turns records into bodies; streams with the same encoder share.
            since: where a client without an id begins, in milliseconds since the epoch.

        Raises:
            InvalidPosition, KafkaUnavailable: before anything was opened.
        """
        if position.partial_topics:  # a stream of a few partitions, asked for by hand, has nobody to share with
            opening = resolve(self.log, position, topics, route.start, since)
            return self._own(opening, _ids(opening, route), encoder)
        feed = self._feed(route, topics, encoder)
        feed.readers += 1  # before anything that waits, or a feed without readers could be closed meanwhile
        try:
            return self._open_shared(feed, route, position, topics, encoder, since)
        except BaseException:
            feed.readers -= 1
            raise

    def _open_shared(
        self,
        feed: SharedFeed,
        route: Route,
        position: Position,
        topics: Mapping[str, Topic],
        encoder: Encoder,
        since: int | None,
    ) -> Reader:
        if (ids := _ids_in_ring(feed, position, topics, route, since)) is None:
            opening = resolve(self.log, position, topics, route.start, since)
            ids = _ids(opening, route)
            own = self._own(opening, ids, encoder)
        else:
            own = None

        def catch_up(ids: IdWriter) -> CatchUp:
            return self._own(ResolvedPosition(dict(ids.offsets), dict(ids.topic_ids), frozenset(), {}), ids, encoder)

        return Reader(feed, ids, catch_up, own, self._settings.max_chunk_bytes)

    def close(self) -> None:
        """End all streams and close the log."""
        for tail in self._tails.values():
            tail.close()
        self.log.close()

    def _own(self, opening: ResolvedPosition, ids: IdWriter, encoder: Encoder) -> CatchUp:
        settings = self._settings
        watch = self._watch(opening.only)
        return CatchUp(self.log, opening, encoder, ids, watch, settings.max_chunk_bytes, settings.max_snapshot_keys)

    def _watch(self, only: frozenset[str] = frozenset()) -> TopicWatch:
        every_s = self._settings.metadata_refresh_s
        return TopicWatch(lambda topics: self.describe(topics, every_s / 2), every_s, only)

    def _feed(self, route: Route, topics: Mapping[str, Topic], encoder: Encoder) -> SharedFeed:
        tail = self._tail(topics)
        if encoder not in tail.feeds:
            opening = ResolvedPosition(dict(tail.offsets), tail.topic_ids, frozenset(), dict(tail.timestamps))
            settings = self._settings
            bounds = RingLimits(settings.max_ring_bytes, settings.max_ring_records, settings.heartbeat_s)
            tail.feeds[encoder] = SharedFeed(encoder, _ids(opening, route), route.id_type, bounds)
        return tail.feeds[encoder]

    def _tail(self, topics: Mapping[str, Topic]) -> Tail:
        key = tuple(sorted(topics))
        topic_ids = {name: topics[name].topic_id for name in key}

        def living() -> Tail | None:
            tail = self._tails.get(key)
            lives = tail is not None and not tail.closed and tail.topic_ids == topic_ids
            return tail if lives else None

        def follow() -> Tail:
            if (tail := living()) is not None:
                return tail
            if key in self._tails:
                self._tails[key].close()
            self._make_room()
            ends = resolve(self.log, of_topics(key), topics, StartAt.LATEST)
            settings = self._settings
            tail = Tail(self.log, ends, self._watch(), settings.idle_feed_timeout_s, settings.heartbeat_s)
            self._tails = {each: old for each, old in self._tails.items() if not old.closed}
            self._tails[key] = tail
            self._follow(tail)
            return tail

        return living() or self._following.run(follow)  # who finds a living one does not wait for other topics

    def _make_room(self) -> None:
        """What nobody reads is kept for who comes back, but must not cost others their consumers: the oldest goes."""
        idle = [each for each in self._tails.values() if each.idle]
        for each in idle[: max(0, len(idle) - self._settings.max_cursors // IDLE_SHARE)]:
            each.close()


def _ids(opening: ResolvedPosition, route: Route) -> IdWriter:
    return IdWriter(
        opening.offsets, opening.topic_ids, opening.only, route.id_type, opening.timestamps, route.compact_ids
    )


def _ids_in_ring(
    feed: SharedFeed, position: Position, topics: Mapping[str, Topic], route: Route, since: int | None
) -> IdWriter | None:
    """The ids of a client that needs nothing but what the feed holds; None where Kafka has to be asked."""
    if not position.starts:
        at_end = since is None and route.start is StartAt.LATEST
        return feed.ids.copy_at(feed.ids.offsets, feed.ids.timestamps) if at_end else None
    if any(position.topic_ids.get(name) != topic.topic_id for name, topic in topics.items()):
        return None
    offsets = {each: start.offset for each, start in position.starts.items()}
    known: dict[Partition, int] = {each: offset for each, offset in offsets.items() if offset is not None}
    times = {each: start.timestamp for each, start in position.starts.items() if start.timestamp is not None}
    return feed.ids.copy_at(known, times) if len(known) == len(offsets) and feed.holds(known) else None
