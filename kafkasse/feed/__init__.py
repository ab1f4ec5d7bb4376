"""Feeds: from a position to frames. Knows logs, records and frames; knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from kafkasse.config import Config
from kafkasse.feed.contract import Log, Topic
from kafkasse.feed.follower import Follower
from kafkasse.feed.one_at_a_time import OneAtATime
from kafkasse.feed.own import OwnReader
from kafkasse.feed.ring import Bounds, SharedFeed
from kafkasse.feed.shared import SharedReader
from kafkasse.feed.start import Opening, resolve
from kafkasse.feed.topics import TopicWatch
from kafkasse.frame import Encoder
from kafkasse.position import IdWriter, Partition, Position, of_topics
from kafkasse.route import Route, StartAt

__all__ = ["Feeds"]

IDLE_SHARE = 4  # one in so many of a worker's consumers may follow topics that nobody reads at the moment
OPEN_CHECK_S = 1.0  # how old the description of a topic may be for a stream to be opened by it


class Feeds:
    """The feeds and readers of one log in this process.

    Args:
        log: the cluster.
        config: bounds and intervals.
        follow: sets a follower going; tests turn theirs by hand.
    """

    def __init__(self, log: Log, config: Config, follow: Callable[[Follower], None] = Follower.start) -> None:
        self.log = log
        self._config = config
        self._follow = follow
        self._looks: dict[str, tuple[float, Topic]] = {}
        self._looking = OneAtATime()
        self._followers: dict[tuple[str, ...], Follower] = {}
        self._following = OneAtATime()

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
    ) -> OwnReader | SharedReader:
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
        if position.only:  # a stream of a few partitions, asked for by hand, has nobody to share with
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
    ) -> SharedReader:
        if (ids := _ids_in_ring(feed, position, topics, route, since)) is None:
            opening = resolve(self.log, position, topics, route.start, since)
            ids = _ids(opening, route)
            own = self._own(opening, ids, encoder)
        else:
            own = None

        def catch_up(ids: IdWriter) -> OwnReader:
            return self._own(Opening(dict(ids.offsets), dict(ids.incarnations), frozenset(), {}), ids, encoder)

        return SharedReader(feed, ids, catch_up, own, self._config.chunk_bytes_max)

    def close(self) -> None:
        """End all streams and close the log."""
        for follower in self._followers.values():
            follower.close()
        self.log.close()

    def _own(self, opening: Opening, ids: IdWriter, encoder: Encoder) -> OwnReader:
        config = self._config
        watch = self._watch(opening.only)
        return OwnReader(self.log, opening, encoder, ids, watch, config.chunk_bytes_max, config.snapshot_keys_max)

    def _watch(self, only: frozenset[str] = frozenset()) -> TopicWatch:
        every_s = self._config.topic_check_s
        return TopicWatch(lambda topics: self.describe(topics, every_s / 2), every_s, only)

    def _feed(self, route: Route, topics: Mapping[str, Topic], encoder: Encoder) -> SharedFeed:
        follower = self._follower(topics)
        if encoder not in follower.feeds:
            opening = Opening(dict(follower.offsets), follower.incarnations, frozenset(), dict(follower.timestamps))
            config = self._config
            bounds = Bounds(config.ring_bytes_max, config.ring_records_max, config.heartbeat_s)
            follower.feeds[encoder] = SharedFeed(encoder, _ids(opening, route), route.id, bounds)
        return follower.feeds[encoder]

    def _follower(self, topics: Mapping[str, Topic]) -> Follower:
        key = tuple(sorted(topics))
        incarnations = {name: topics[name].incarnation for name in key}

        def living() -> Follower | None:
            follower = self._followers.get(key)
            lives = follower is not None and not follower.closed and follower.incarnations == incarnations
            return follower if lives else None

        def follow() -> Follower:
            if (follower := living()) is not None:
                return follower
            if key in self._followers:
                self._followers[key].close()
            self._make_room()
            ends = resolve(self.log, of_topics(key), topics, StartAt.LATEST)
            config = self._config
            follower = Follower(self.log, ends, self._watch(), config.feed_grace_s, config.heartbeat_s)
            self._followers = {each: old for each, old in self._followers.items() if not old.closed}
            self._followers[key] = follower
            self._follow(follower)
            return follower

        return living() or self._following.run(follow)  # who finds a living one does not wait for other topics

    def _make_room(self) -> None:
        """What nobody reads is kept for who comes back, but must not cost others their consumers: the oldest goes."""
        idle = [each for each in self._followers.values() if each.idle]
        for each in idle[: max(0, len(idle) - self._config.consumers_max // IDLE_SHARE)]:
            each.close()


def _ids(opening: Opening, route: Route) -> IdWriter:
    return IdWriter(
        opening.offsets, opening.incarnations, opening.only, route.id, opening.timestamps, route.compact_ids
    )


def _ids_in_ring(
    feed: SharedFeed, position: Position, topics: Mapping[str, Topic], route: Route, since: int | None
) -> IdWriter | None:
    """The ids of a client that needs nothing but what the feed holds; None where Kafka has to be asked."""
    if not position.starts:
        at_end = since is None and route.start is StartAt.LATEST
        return feed.ids.copy_at(feed.ids.offsets, feed.ids.timestamps) if at_end else None
    if any(position.incarnations.get(name) != topic.incarnation for name, topic in topics.items()):
        return None
    offsets = {each: start.offset for each, start in position.starts.items()}
    known: dict[Partition, int] = {each: offset for each, offset in offsets.items() if offset is not None}
    times = {each: start.timestamp for each, start in position.starts.items() if start.timestamp is not None}
    return feed.ids.copy_at(known, times) if len(known) == len(offsets) and feed.holds(known) else None
