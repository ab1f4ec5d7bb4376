"""Changes of topics that are being read: deleted and recreated topics, added partitions, and new topics that match."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from kafkasse.errors import TopicGone
from kafkasse.log import Topic, Topics


class TopicChanges(NamedTuple):
    """What has changed.

    Attributes:
        recreated: the names of the topics that were recreated.
        deleted: the names of the topics that were deleted.
        matching: the existing topics that match the patterns of the streams, by name.
        whole: the topics of which the stream contains all partitions, those that were added included.
    """

    recreated: frozenset[str]
    deleted: frozenset[str]
    matching: Topics
    whole: Topics


NO_CHANGES = TopicChanges(frozenset(), frozenset(), {}, {})


class KnownTopics:
    """Compares the topics that are read with new descriptions.

    Args:
        partial_topics: the topics of which the stream contains only selected partitions.
    """

    def __init__(self, partial_topics: Container[str] = ()) -> None:
        self._partial_topics = partial_topics
        self._missing: frozenset[str] = frozenset()  # in the last descriptions

    def compare(
        self, names: Iterable[str], matching: Iterable[str], described: Topics, topic_ids: Mapping[str, str]
    ) -> TopicChanges:
        """Return what has changed.

        A topic about which the cluster reports an error has not changed. A topic is deleted if it is missing twice in a row,
        because a broker that has just started may not know it yet.

        Args:
            names: the topics that were read when the descriptions were requested.
            matching: the topics that matched the patterns of the streams at that time.
            described: the descriptions of the topics that exist.
            topic_ids: the topics that are read now, with their topic IDs.
        """
        before, self._missing = self._missing, frozenset(names) - described.keys()
        topics = {name: topic for name, topic in described.items() if topic.error is None}
        known = {name: topic for name, topic in topics.items() if name in topic_ids}
        recreated = frozenset(name for name, topic in known.items() if topic.topic_id != topic_ids[name])
        return TopicChanges(
            recreated,
            deleted=self._missing & before & topic_ids.keys(),
            matching={name: topics[name] for name in matching if name in topics},
            whole={
                name: topic
                for name, topic in known.items()
                if name not in recreated and name not in self._partial_topics
            },
        )


def is_recreated(topic_id: str | None, topic: Topic) -> bool:
    """Return whether a known topic ID is that of a former topic with the same name."""
    return bool(topic_id) and bool(topic.topic_id) and topic_id != topic.topic_id


def topic_gone(names: Iterable[str]) -> TopicGone:
    """Return the error for deleted topics."""
    listed = sorted(names)
    return TopicGone(f"The topic was deleted: {', '.join(listed)}.", topics=listed)
