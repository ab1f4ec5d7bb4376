"""Notices changes of topics that are being read.

A Kafka cursor does not report them, so the watch refreshes the metadata at intervals. See core/topics.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterable, Mapping

from kafkasse.feed.core.topics import NO_CHANGES, KnownTopics, TopicChanges
from kafkasse.feed.lookup import BackgroundLookups
from kafkasse.log import Partition, Topics
from kafkasse.process.event_loop import take_turn


class TopicWatch:
    """Watches the topics of one reader, or of one tail.

    Args:
        describe: returns those topics of a list that exist; it may block.
        interval_s: seconds between two refreshes.
        partial_topics: as in KnownTopics.
        matching: returns the existing topics that match the patterns of the streams; it may block.

    Attributes:
        silent_since: when the first refresh that has no answer yet began; inf if there is none.
    """

    def __init__(
        self,
        describe: Callable[[list[str]], Topics],
        interval_s: float,
        partial_topics: Container[str] = (),
        matching: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._describe = describe
        self._interval_s = interval_s
        self._matching = matching
        self._known = KnownTopics(partial_topics)
        self._next_refresh = time.monotonic() + interval_s
        self._lookups = BackgroundLookups()
        self.silent_since = math.inf

    def check(self, topic_ids: Mapping[str, str]) -> TopicChanges:
        """Return what has changed since the last refresh, if one is due.

        Args:
            topic_ids: the topics that are read, with their topic IDs.
        """
        if time.monotonic() < self._next_refresh:
            return NO_CHANGES
        names = list(topic_ids)

        def look_up() -> tuple[list[str], list[str], Topics]:
            self.silent_since = min(self.silent_since, time.monotonic())
            matching = sorted(set(self._matching()))  # new topics have this order in event IDs
            described = self._describe(list(dict.fromkeys([*names, *matching])))
            self.silent_since = math.inf
            return names, matching, described

        if (response := self._lookups.get("describe", look_up)) is None:
            return NO_CHANGES  # the streams stay open
        self._next_refresh = time.monotonic() + self._interval_s
        return self._known.compare(*response, topic_ids)


def partitions_of(topics: Topics) -> list[Partition]:
    """Return all partitions of these topics."""
    partitions: list[Partition] = []
    for name, topic in topics.items():
        take_turn(urgent=True)  # the tail may read thousands of topics
        partitions += [Partition(name, index) for index in range(topic.partitions)]
    return partitions
