"""Feeds: from a position to frames. Knows logs, records and frames; knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock

from kafkasse.config import Config
from kafkasse.feed.contract import Log, Topic
from kafkasse.feed.own import OwnReader
from kafkasse.feed.start import resolve
from kafkasse.frame import Encoder
from kafkasse.position import IdWriter, Position
from kafkasse.route import Route

__all__ = ["Feeds"]


class Feeds:
    """The readers of one log in this process.

    Args:
        log: the cluster.
        config: bounds and intervals.
    """

    def __init__(self, log: Log, config: Config) -> None:
        self.log = log
        self._config = config
        self._looks: dict[str, tuple[float, Topic | None]] = {}
        self._looking = Lock()

    def open(
        self,
        route: Route,
        position: Position,
        topics: Mapping[str, Topic],
        encoder: Encoder,
        since: int | None = None,
    ) -> OwnReader:
        """Open a stream.

        Args:
            route: where partitions begin of which the client said nothing, and the kind of ids.
            position: what the client sent.
            topics: its topics, as the log describes them.
            encoder: turns records into bodies.
            since: where a client without an id begins, in milliseconds since the epoch.

        Raises:
            InvalidPosition, KafkaUnavailable: before anything was opened.
        """
        opening = resolve(self.log, position, topics, route.start, since)
        ids = IdWriter(
            opening.offsets, opening.incarnations, opening.only, route.id, opening.timestamps, route.compact_ids
        )
        return OwnReader(
            self.log,
            opening,
            encoder,
            ids,
            self.look,
            self._config.topic_check_s,
            self._config.chunk_bytes_max,
            self._config.snapshot_keys_max,
        )

    def look(self, topics: list[str]) -> dict[str, Topic]:
        """As log.describe(), but at most once in topic_check_s seconds for each topic, however many streams ask."""
        with self._looking:
            now = time.monotonic()
            stale = [each for each in topics if self._looks.get(each, (0.0, None))[0] <= now]
            if stale:
                found = self.log.describe(stale)
                self._forget_old(now)
                due = now + self._config.topic_check_s
                self._looks.update({each: (due, found.get(each)) for each in stale})
            return {each: topic for each in topics if (topic := self._looks[each][1]) is not None}

    def _forget_old(self, now: float) -> None:
        self._looks = {topic: look for topic, look in self._looks.items() if look[0] > now}
