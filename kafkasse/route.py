"""Routes: which topics a client may read, where it starts, and how records become events.

This module does no I/O: the caller passes in the list of existing topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from kafkasse.errors import TopicNotAvailable
from kafkasse.position import IdType, Position

INTERNAL_PREFIX = "__"


class StartAt(Enum):
    """Where a client without an event ID starts."""

    LATEST = "latest"
    EARLIEST = "earliest"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Route:
    """A stream's settings.

    Args:
        name: the name in the configuration.
        path: the URL path below the blueprint's prefix.
        topics: the topics of a named route; None for the open route, /{topics}, whose topics the client chooses.
        allowed: on the open route, the names and patterns of the topics that clients may read. A pattern may contain `*`,
            `?` and `[abc]` (see fnmatch) and is case-sensitive.
        topic_prefix: the prefix that the topics have in Kafka; see the setting of the same name.
        format: how a record becomes an event: one of frame.FORMATS.
        start: where a client without an event ID starts.
        id_type: what event IDs contain.
        compact_ids: whether event IDs have the compact form. None: only if the JSON form would be long.
    """

    name: str
    path: str
    topics: tuple[str, ...] | None
    allowed: tuple[str, ...] = ()
    topic_prefix: str = ""
    format: str = "kafkasse"
    start: StartAt = StartAt.LATEST
    id_type: IdType = IdType.OFFSET
    compact_ids: bool | None = None

    def allows(self, topic: str) -> bool:
        """Return whether clients may read `topic` on this route. A pattern never matches an internal topic."""
        if self.topics is not None:
            return topic in self.topics
        if (self.topic_prefix + topic).startswith(INTERNAL_PREFIX):
            return topic in self.allowed
        return any(fnmatchcase(topic, pattern) for pattern in self.allowed)

    def adapt(self, position: Position) -> Position:
        """Adapt the position of a client that returns after the topics of this route were edited.

        Only event IDs that the server issued contain topic IDs. Entries of topics that were removed from the route are
        dropped, unless no entry would remain; check() rejects such a position. Topics that were added start where the route
        starts new clients, unless the client reads only selected partitions.
        """
        if self.topics is None or not position.topic_ids:
            return position
        removed = position.topic_ids.keys() - set(self.topics)
        added = [] if position.partial_topics else [topic for topic in self.topics if topic not in position.topics]
        if not added and removed.issuperset(position.topics):
            return position
        return Position(
            {partition: start for partition, start in position.starts.items() if partition.topic not in removed},
            (*position.named_topics, *added),
            {topic: topic_id for topic, topic_id in position.topic_ids.items() if topic not in removed},
            position.partial_topics - removed,
        )

    def check(self, topics: Sequence[str], existing: Iterable[str]) -> None:
        """Check that this route allows each of `topics` and that each exists.

        Raises:
            TopicNotAvailable: names all topics that fail, and does not reveal which of them exist.
        """
        known = set(existing)
        missing = [topic for topic in topics if topic not in known or not self.allows(topic)]
        if missing:
            raise TopicNotAvailable(_not_available(missing), topics=missing)


def _not_available(topics: Sequence[str]) -> str:
    """Return the same sentence for topics that do not exist and for topics that the server does not allow."""
    if len(topics) == 1:
        return f"The topic {topics[0]} does not exist, or the server does not allow it."
    return f"Each of these topics does not exist, or the server does not allow it: {', '.join(topics)}."
