"""Routes: which topics a client may read, where it starts, and how records become events.

This module does no I/O: the caller passes in the list of existing topics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase

from kafkasse.access.grant import Grant
from kafkasse.errors import TopicNotAvailable
from kafkasse.records.filter.where import EVERY_RECORD, Where
from kafkasse.records.position import IdType, Position, of_topics

INTERNAL_PREFIX = "__"
_GLOB = frozenset("*?[")

_PARAMETER = re.compile(r"\{(\w+)\}")


def is_pattern(topic: str) -> bool:
    """Return whether this is a pattern instead of a name."""
    return not _GLOB.isdisjoint(topic)


class StartAt(Enum):
    """Where a client without an event ID starts."""

    LATEST = "latest"
    EARLIEST = "earliest"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class NewestBy:
    """How to recognize records that are older than a record before them."""

    header: str  # with the version of the record, a decimal integer
    look_back: int  # how many offsets to look back for a newer record of the key


@dataclass(frozen=True, slots=True)
class Route:
    """A stream's settings."""

    name: str
    path: str  # the URL path below the blueprint's prefix; a segment {name} is a path parameter
    # The names and patterns of the topics of a named route; None for the open route, /{topics}, whose topics the client
    # chooses. A pattern may contain `*`, `?` and `[abc]` (see fnmatch) and is case-sensitive.
    topics: tuple[str, ...] | None
    allowed: tuple[str, ...] = ()  # on the open route, the names and patterns of the topics that clients may read
    topic_prefix: str = ""  # of the topics in Kafka; see the setting of the same name
    format: str = "kafkasse"  # one of frame.FORMATS
    start: StartAt = StartAt.LATEST  # where a client without an event ID starts, unless start_time_ms is set
    start_time_ms: int | None = None  # since the epoch; a negative number is relative to the time when the stream opens
    decoder: str = "json"  # `json`: values are JSON; `registry`: decode with the schema registry
    validate_values: bool = False  # whether values are validated against their JSON Schema in the registry
    id_type: IdType = IdType.OFFSET
    compact_ids: bool | None = None  # None: event IDs have the compact form only if the JSON form would be long
    fields: tuple[str, ...] = ()  # the paths of the members of the value that clients receive; empty: all
    redact: tuple[str, ...] = ()  # the paths of the members of the value that clients do not receive
    cluster: str = ""  # the cluster that has the topics; "" for that of the setting `kafka`
    heartbeat_s: float | None = None  # None: that of the server
    access: tuple[Grant, ...] = ()  # the visitors who may read the route; empty if everyone may
    cors_origins: tuple[str, ...] = ()  # the origins whose pages may read the route, or *
    cors_credentials: bool = False  # whether these pages may send cookies
    where: Where = EVERY_RECORD  # which records of its topics the route contains
    client_filters: tuple[str, ...] = ()  # that clients may set in their queries
    newest_by: NewestBy | None = None  # drop the records that are older than a record before them; None: send all
    description: str = ""  # what the stream contains, in words
    # True: in the catalog for everyone; False: for no one; None: for visitors who may open the route.
    listed: bool | None = None
    # On the open route, the names that clients can use instead of a list of topics, each with its topics.
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path parameters."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def url_rule(self) -> str:
        """The path in werkzeug's syntax: `/prices/<currency>`."""
        return _PARAMETER.sub(r"<\1>", self.path)

    def resolve_start_time(self, now_ms: int) -> int | None:
        """Return the time at which a client that connects now starts, or None. Times are in milliseconds since the epoch."""
        if self.start_time_ms is None or self.start_time_ms >= 0:
            return self.start_time_ms
        return max(0, now_ms + self.start_time_ms)

    def sends(self, names: tuple[str, ...]) -> bool:
        """Return whether clients receive the complete field at a path of member names, such as (customer, id).

        The path () is that of the value. `fields: [customer]` does not send a member with the name `customer.id`.
        """
        starts = {".".join(names[: count + 1]) for count in range(len(names))}
        path = ".".join(names)
        hidden = (
            field
            for field in self.redact
            if not path or f"{path}.".startswith(f"{field}.") or field.startswith(f"{path}.")
        )
        return (not self.fields or not starts.isdisjoint(self.fields)) and not any(hidden)

    def expand(self, names: Iterable[str]) -> list[str]:
        """Return these topics, with the topics of each group in place of its name."""
        groups = dict(self.groups)
        return [topic for name in names for topic in groups.get(name, (name,))]

    def allows(self, topic: str) -> bool:
        """Return whether clients may read `topic` on this route. A pattern never matches an internal topic."""
        return any(self._matches(topic, pattern) for pattern in (self.allowed if self.topics is None else self.topics))

    def _matches(self, topic: str, pattern: str) -> bool:
        is_internal = (self.topic_prefix + topic).startswith(INTERNAL_PREFIX)
        return topic == pattern if is_internal else fnmatchcase(topic, pattern)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns among the topics of a named route. Topics that match and are created later join its streams."""
        return tuple(topic for topic in self.topics or () if is_pattern(topic))

    def matching(self, existing: Iterable[str]) -> list[str]:
        """Return those of the existing topics that match a pattern of this route."""
        return sorted(topic for topic in existing if any(self._matches(topic, pattern) for pattern in self.patterns))

    def matches_all(self, topics: Iterable[str]) -> bool:
        """Return whether each topic matches a pattern and none is named, so that a stream continues without them."""
        names = set(topics)
        return names.issubset(self.matching(names)) and names.isdisjoint(self.topics or ())

    def adapt(self, position: Position, matching: Sequence[str] = ()) -> Position:
        """Complete the position of a client of a named route.

        Only event IDs that the server issued contain topic IDs. Entries of topics that were removed from the route are
        dropped, unless no entry would remain; check() rejects such a position. Topics that were added to the route start
        where the route starts new clients, and topics that match a pattern at their first record: they were created after
        the event ID was issued. If the client reads only selected partitions, no topic is added.

        Args:
            position: the position that the client sent.
            matching: the existing topics that match a pattern of this route.
        """
        if self.topics is None:
            return position
        named = [topic for topic in self.topics if not is_pattern(topic)]
        if not position.topics:
            return replace(of_topics([*named, *matching]), is_whole_route=True)
        if not position.topic_ids:
            return position
        topics = {*named, *matching}
        removed = position.topic_ids.keys() - topics
        added = (
            [] if position.partial_topics else [topic for topic in [*named, *matching] if topic not in position.topics]
        )
        if not added and removed.issuperset(position.topics):
            return position
        return Position(
            {partition: start for partition, start in position.starts.items() if partition.topic not in removed},
            (*position.named_topics, *(topic for topic in added if topic in named)),
            {topic: topic_id for topic, topic_id in position.topic_ids.items() if topic not in removed},
            position.partial_topics - removed,
            tuple(topic for topic in added if topic not in named),
            not position.partial_topics,
        )

    def check(self, topics: Sequence[str], existing: Iterable[str]) -> None:
        """Check that this route allows each of `topics` and that each exists.

        Raises:
            TopicNotAvailable: names all topics that fail, and does not reveal which of them exist.
        """
        known = set(existing)
        if not topics:
            raise TopicNotAvailable(f"No topic matches this stream's patterns: {', '.join(self.patterns)}.", topics=[])
        missing = [topic for topic in topics if topic not in known or not self.allows(topic)]
        if missing:
            raise TopicNotAvailable(_not_available(missing), topics=missing)


def _not_available(topics: Sequence[str]) -> str:
    """Return the same sentence for topics that do not exist and for topics that the server does not allow."""
    if len(topics) == 1:
        return f"The topic {topics[0]} does not exist, or the server does not allow it."
    return f"Each of these topics does not exist, or the server does not allow it: {', '.join(topics)}."
