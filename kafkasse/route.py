"""Routes: which topics a client may read, where it starts, and how records become events.

This module does no I/O: the caller passes in the list of existing topics.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from kafkasse.errors import TopicNotAvailable
from kafkasse.position import IdType, Position

INTERNAL_PREFIX = "__"

_PARAMETER = re.compile(r"\{(\w+)\}")


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
        path: the URL path below the blueprint's prefix. A segment `{name}` is a path parameter.
        topics: the topics of a named route; None for the open route, /{topics}, whose topics the client chooses.
        allowed: on the open route, the names and patterns of the topics that clients may read. A pattern may contain `*`,
            `?` and `[abc]` (see fnmatch) and is case-sensitive.
        topic_prefix: the prefix that the topics have in Kafka; see the setting of the same name.
        format: how a record becomes an event: one of frame.FORMATS.
        start: where a client without an event ID starts, unless `start_time_ms` is set.
        start_time_ms: the time at which such a client starts, in milliseconds since the epoch. A negative number is relative
            to the time at which the stream opens.
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
    start_time_ms: int | None = None
    id_type: IdType = IdType.OFFSET
    compact_ids: bool | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path parameters."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def url_rule(self) -> str:
        """The path in werkzeug's syntax: `/prices/<currency>`."""
        return _PARAMETER.sub(r"<\1>", self.path)

    def since(self) -> int | None:
        """Return the time at which a client that connects now starts, in milliseconds since the epoch, or None."""
        if self.start_time_ms is None or self.start_time_ms >= 0:
            return self.start_time_ms
        return max(0, time.time_ns() // 1_000_000 + self.start_time_ms)

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
