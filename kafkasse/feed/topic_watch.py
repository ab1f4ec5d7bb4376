"""Notices changes of topics that are being read: added partitions, deleted topics and recreated topics.

A Kafka cursor reports none of these, so the watch refreshes the metadata at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

import gevent

from kafkasse.errors import TopicGone, Unavailable
from kafkasse.log import Partition, Topic

MAX_REFRESH_WAIT_S = 0.05  # how long check() waits for a refresh; a later call returns the result of a slower refresh
GONE_AFTER_REFRESHES = 2  # a broker that has just started may not know a topic yet


class TopicChanges(NamedTuple):
    """The partitions that were added, and whether a topic was recreated."""

    added: list[Partition]
    recreated: bool


NO_CHANGES = TopicChanges([], False)


class TopicWatch:
    """Watches the topics of one reader, or of one tail.

    Args:
        describe: returns those topics of a list that exist; it may block.
        interval_s: seconds between two refreshes.
        partial_topics: the topics of which the stream contains only selected partitions; added partitions are ignored.
    """

    def __init__(
        self,
        describe: Callable[[list[str]], Mapping[str, Topic]],
        interval_s: float,
        partial_topics: Container[str] = (),
    ) -> None:
        self._describe = describe
        self._interval_s = interval_s
        self._partial_topics = partial_topics
        self._next_refresh = time.monotonic() + interval_s
        self._missing_count = 0
        self._refresh: gevent.Greenlet | None = None  # a greenlet, because heartbeats must not wait for Kafka

    def check(self, topic_ids: Mapping[str, str], known: Container[Partition]) -> TopicChanges:
        """Return what has changed since the last refresh, if one is due.

        Args:
            topic_ids: the topics that are read, with their topic IDs.
            known: the partitions that are read.

        Raises:
            TopicGone: a topic was deleted.
        """
        if time.monotonic() < self._next_refresh:
            return NO_CHANGES
        if self._refresh is None:
            self._refresh = gevent.spawn(self._describe_if_available, list(topic_ids))
        self._refresh.join(MAX_REFRESH_WAIT_S)
        if not self._refresh.ready():
            return NO_CHANGES
        self._next_refresh = time.monotonic() + self._interval_s
        topics, self._refresh = self._refresh.get(), None
        if topics is None:
            return NO_CHANGES
        self._check_gone([name for name in topic_ids if name not in topics])
        topics = {name: topic for name, topic in topics.items() if topic.error is None}
        if any(topic.topic_id != topic_ids[name] for name, topic in topics.items()):
            return TopicChanges([], recreated=True)
        partitions = (
            Partition(name, index)
            for name, topic in topics.items()
            if name not in self._partial_topics
            for index in range(topic.partitions)
        )
        return TopicChanges([each for each in partitions if each not in known], recreated=False)

    def _describe_if_available(self, names: list[str]) -> Mapping[str, Topic] | None:
        try:
            return self._describe(names)
        except Unavailable:
            return None  # retry at the next refresh; the streams stay open

    def _check_gone(self, missing: list[str]) -> None:
        self._missing_count = self._missing_count + 1 if missing else 0
        if self._missing_count >= GONE_AFTER_REFRESHES:
            raise TopicGone(f"The topic was deleted: {', '.join(missing)}.", topics=missing)
