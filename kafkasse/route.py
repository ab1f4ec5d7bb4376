"""Which topics a client may read, and how their records become events. Pure: it is told, it asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from kafkasse.errors import ConfigurationError, TopicNotAvailable
from kafkasse.position import IdType

INTERNAL_PREFIX = "__"


class StartAt(Enum):
    """Where a client without an id begins."""

    LATEST = "latest"
    EARLIEST = "earliest"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Route:
    """A named stream, or, with `topics` None, the open one at /{topics}."""

    name: str
    path: str
    topics: tuple[str, ...] | None
    allowed: tuple[str, ...] | None = None
    format: str = "kafkasse"
    start: StartAt = StartAt.LATEST
    id_type: IdType = IdType.OFFSET
    compact_ids: bool | None = None

    def allows(self, topic: str) -> bool:
        """Whether this route shows `topic`. Internal topics must be named, not just matched by a glob."""
        if self.topics is not None:
            return topic in self.topics
        if self.allowed is None:
            return not topic.startswith(INTERNAL_PREFIX)
        if topic.startswith(INTERNAL_PREFIX):
            return topic in self.allowed
        return any(fnmatchcase(topic, pattern) for pattern in self.allowed)

    def check(self, topics: Sequence[str], existing: Iterable[str]) -> None:
        """Pass `topics` only if this route allows each and each exists.

        Raises:
            ConfigurationError: the configuration allows nothing at all.
            TopicNotAvailable: with all bad ones, and no hint whether they exist.
        """
        if self.topics is None and self.allowed is not None and not self.allowed:
            raise ConfigurationError("This server's configuration allows no topic at all: its allowed_topics is empty.")
        there = set(existing)
        missing = [topic for topic in topics if topic not in there or not self.allows(topic)]
        if missing:
            raise TopicNotAvailable(f"Not available: {', '.join(missing)}.", topics=missing)
