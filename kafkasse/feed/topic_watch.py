"""What becomes of topics while they are read: partitions are added, topics are deleted, or deleted and made again.

Kafka's consumers are silent about all three, so the metadata is looked at, at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

import gevent

from kafkasse.errors import TopicGone, Unavailable
from kafkasse.log import Partition, Topic

LOOK_WAIT_S = 0.05  # that a reader waits for what a look finds; else it hears of it the next time
GONE_AFTER_LOOKS = 2  # a broker that has just started may not know a topic yet


class News(NamedTuple):
    """What a look found: partitions that are new, and whether a topic was made again."""

    added: list[Partition]
    remade: bool


NO_NEWS = News([], False)


class TopicWatch:
    """Watches the topics of one reader, or of all readers that share.

    Args:
        describe: the topics that exist, from a cache.
        every_s: seconds between looks.
        only: topics of which just some partitions are read: new ones are no news.
    """

    def __init__(
        self, describe: Callable[[list[str]], Mapping[str, Topic]], every_s: float, only: Container[str] = ()
    ) -> None:
        self._describe = describe
        self._every_s = every_s
        self._only = only
        self._due = time.monotonic() + every_s
        self._missing_looks = 0
        self._looking: gevent.Greenlet | None = None  # of its own: it may take longer than a heartbeat may wait

    def look(self, topic_ids: Mapping[str, str], known: Container[Partition]) -> News:
        """Look, where a look is due.

        Raises:
            TopicGone: a topic has been deleted.
        """
        if time.monotonic() < self._due:
            return NO_NEWS
        if self._looking is None:
            self._looking = gevent.spawn(self._topics, list(topic_ids))
        self._looking.join(LOOK_WAIT_S)
        if not self._looking.ready():
            return NO_NEWS
        self._due = time.monotonic() + self._every_s
        topics, self._looking = self._looking.get(), None
        if topics is None:
            return NO_NEWS
        self._check_gone([topic for topic in topic_ids if topic not in topics])
        remade = any(topic.topic_id != topic_ids[name] for name, topic in topics.items())
        every = (Partition(n, i) for n, topic in topics.items() if n not in self._only for i in range(topic.partitions))
        return News([] if remade else [each for each in every if each not in known], remade)

    def _topics(self, names: list[str]) -> Mapping[str, Topic] | None:
        try:
            return self._describe(names)
        except Unavailable:
            return None  # patience: heartbeats go on until Kafka is back

    def _check_gone(self, gone: list[str]) -> None:
        self._missing_looks = self._missing_looks + 1 if gone else 0
        if self._missing_looks >= GONE_AFTER_LOOKS:
            raise TopicGone(f"Deleted while it was read: {', '.join(gone)}.", topics=gone)
