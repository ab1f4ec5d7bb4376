"""The types of a position: where a client starts or resumes in each partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from kafkasse.log import Partition

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
LATEST = -1  # an offset in event IDs of KafkaSSE that means the end of the partition


class Place(NamedTuple):
    """Where a client or a stream is in one partition.

    Attributes:
        offset: the next offset, or LATEST. None: only the timestamp is known, because the client gave no offset, or because
            the partition has had no leader since the stream started.
        timestamp: the timestamp in the event ID, in milliseconds since the epoch, or None.
        epoch: the leader epoch of the record before the offset, or None if it is unknown.
    """

    offset: int | None = None
    timestamp: int | None = None
    epoch: int | None = None


Places = Mapping[Partition, Place]


class IdType(Enum):
    """What an ID contains for each partition.

    With `both`, a client resumes by offset in the same topic, and by timestamp in a copy of the topic on another cluster.
    """

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest Last-Event-ID that the server accepts."""

    max_bytes: int = 65_536
    max_entries: int = 2_500  # parsing takes 3 µs for each; the IDs of a stream with more could exceed max_bytes


@dataclass(frozen=True, slots=True)
class Position:
    """Where a client wants to start, exactly as it requested. feed/start.py resolves it to offsets.

    Attributes:
        starts: where to start in each partition that the client listed.
        named_topics: topics that the client gave by name. The route decides where their other partitions start.
        topic_ids: the `topic_id` of each topic for which the client sent one. The client's offsets belong to that topic ID.
        partial_topics: the topics of which the client wants only the listed partitions.
        added_topics: topics that have joined the stream since the client left. It receives all of their records.
        is_whole_route: the client reads all topics of a route, including those that are created later.
    """

    starts: Places = field(default_factory=dict)
    named_topics: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    partial_topics: frozenset[str] = frozenset()
    added_topics: tuple[str, ...] = ()
    is_whole_route: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the stream without duplicates: first those with listed partitions, then the others."""
        listed = (partition.topic for partition in self.starts)
        return tuple(dict.fromkeys([*listed, *self.named_topics, *self.added_topics]))

    def without_topics(self, topics: Collection[str]) -> Position:
        """Return the position in the other topics."""
        return replace(
            self,
            starts={partition: start for partition, start in self.starts.items() if partition.topic not in topics},
            named_topics=tuple(topic for topic in self.named_topics if topic not in topics),
            topic_ids={topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in topics},
            partial_topics=self.partial_topics.difference(topics),
            added_topics=tuple(topic for topic in self.added_topics if topic not in topics),
        )


def of_topics(topics: Iterable[str]) -> Position:
    """Return the position of a client that gives only topic names."""
    return Position(named_topics=tuple(dict.fromkeys(topics)))
