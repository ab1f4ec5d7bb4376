"""Notices changes of topics that are being read: added partitions, deleted and recreated topics, and new topics that match.

A Kafka cursor reports none of these, so the watch refreshes the metadata at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from kafkasse.errors import TopicGone
from kafkasse.feed.lookup import BackgroundLookups
from kafkasse.log import Partition, Topic
from kafkasse.process.event_loop import take_turn


class TopicChanges(NamedTuple):
    """What has changed.

    Attributes:
        added: the partitions that were added.
        recreated: the names of the topics that were recreated.
        deleted: the names of the topics that were deleted.
        matching: the existing topics that match the patterns of the streams, by name.
    """

    added: list[Partition]
    recreated: frozenset[str]
    deleted: frozenset[str]
    matching: Mapping[str, Topic]


NO_CHANGES = TopicChanges([], frozenset(), frozenset(), {})


class TopicWatch:
    """Watches the topics of one reader, or of one tail.

    Args:
        describe: returns those topics of a list that exist; it may block.
        interval_s: seconds between two refreshes.
        partial_topics: the topics of which the stream contains only selected partitions; added partitions are ignored.
        matching: returns the existing topics that match the patterns of the streams; it may block.
    """

    def __init__(
        self,
        describe: Callable[[list[str]], Mapping[str, Topic]],
        interval_s: float,
        partial_topics: Container[str] = (),
        matching: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._describe = describe
        self._interval_s = interval_s
        self._partial_topics = partial_topics
        self._matching = matching
        self._next_refresh = time.monotonic() + interval_s
        self._missing: frozenset[str] = frozenset()  # at the last refresh
        self._lookups = BackgroundLookups()

    def check(self, topic_ids: Mapping[str, str], known: Container[Partition]) -> TopicChanges:
        """Return what has changed since the last refresh, if one is due.

        A topic about which the cluster reports an error has not changed. A topic is deleted if it is missing twice in a row,
        because a broker that has just started may not know it yet.

        Args:
            topic_ids: the topics that are read, with their topic IDs.
            known: the partitions that are read.
        """
        if time.monotonic() < self._next_refresh:
            return NO_CHANGES
        names = list(topic_ids)

        def look_up() -> tuple[list[str], list[str], Mapping[str, Topic]]:
            matching = sorted(set(self._matching()))  # new topics have this order in event IDs
            return names, matching, self._describe(list(dict.fromkeys([*names, *matching])))

        if (found := self._lookups.get("describe", look_up)) is None:
            return NO_CHANGES  # the streams stay open
        self._next_refresh = time.monotonic() + self._interval_s
        names, matching, described = found
        before = self._missing
        self._missing = frozenset(names) - described.keys()
        topics = {
            name: topic
            for name, topic in described.items()
            if topic.error is None and name in topic_ids  # a topic may have been removed during the lookup
        }
        recreated = frozenset(name for name, topic in topics.items() if topic.topic_id != topic_ids[name])
        deleted = self._missing & before & topic_ids.keys()
        existing = {name: described[name] for name in matching if name in described and described[name].error is None}
        whole = {
            name: topic for name, topic in topics.items() if name not in recreated and name not in self._partial_topics
        }
        added = [each for each in partitions_of(whole) if each not in known]
        return TopicChanges(added, recreated, deleted, existing)


def partitions_of(topics: Mapping[str, Topic]) -> list[Partition]:
    """Return all partitions of these topics. May switch greenlets."""
    partitions: list[Partition] = []
    for name, topic in topics.items():
        take_turn(urgent=True)  # the tail may read thousands of topics
        partitions += [Partition(name, index) for index in range(topic.partitions)]
    return partitions


def topic_gone(names: Iterable[str]) -> TopicGone:
    """Return the error for deleted topics."""
    listed = sorted(names)
    return TopicGone(f"The topic was deleted: {', '.join(listed)}.", topics=listed)
