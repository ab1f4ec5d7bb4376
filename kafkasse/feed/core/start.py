"""The core of the start of a stream: the offset at which it starts in each of its partitions.

    Position (what the client sent) + descriptions + answers to lookups ─▶ ResolvedPosition (an offset for every partition)

The first of these rules that applies decides where a partition starts:

1. at the offset, or else at the timestamp, in the client's event ID;
2. at its first record, if the partition was added after the event ID was issued;
3. at the time that the client requested (`since`);
4. where the route's `start` says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kafkasse.errors import InvalidPosition, TopicGone
from kafkasse.feed.core.topics import is_recreated, topic_gone
from kafkasse.log import (
    RECREATED,
    UNKNOWN_EPOCH,
    Gap,
    OffsetAndEpoch,
    Offsets,
    Partition,
    Ranges,
    Topic,
    Topics,
    gaps_on_resuming,
)
from kafkasse.records.position import LATEST, IdType, Place, Position
from kafkasse.route import StartAt

MAX_CLOCK_DIFFERENCE_MS = 60_000  # between this server and the producers
# The start of a partition that did not exist when the client's event ID was issued.
ADDED_SINCE = Place(offset=0)


class FindRanges(NamedTuple):
    """Look up the offsets that these partitions hold, as log.Log.offset_ranges() does."""

    partitions: Collection[Partition]


class FindTimestamps(NamedTuple):
    """Look up the offsets at these timestamps, as log.Log.offsets_at() does."""

    timestamps: Mapping[Partition, int]


class FindDiverged(NamedTuple):
    """Compare the leader epochs of these positions with those of the log, as EpochEnds.diverged_at() does."""

    positions: Mapping[Partition, OffsetAndEpoch]
    offset_ranges: Ranges


class Describe(NamedTuple):
    """Describe these topics, as log.Log.describe() does. The descriptions must be newer than the other answers."""

    topics: Collection[str]


StartLookup = FindRanges | FindTimestamps | FindDiverged | Describe


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """Where a stream starts.

    Attributes:
        offsets: the next offset of every partition of the stream.
        topics: the topics of the stream. A topic that was recreated during the lookups has its new description.
        partial_topics: the topics of which the stream contains only selected partitions.
        timestamps: the timestamp of each partition, where it is known, in milliseconds, for event IDs with timestamps.
        pending: partitions that have no leader now, with the timestamp at which they start as soon as they have one.
        epochs: the leader epoch of the record before each offset, where it is known.
        gaps: offsets that the client requested and that the log no longer holds.
        snapshot: the stream starts with a snapshot.
        offset_ranges: the offsets that the log held in each partition that has a leader.
    """

    offsets: dict[Partition, int]
    topics: Topics
    partial_topics: frozenset[str]
    timestamps: dict[Partition, int]
    pending: dict[Partition, int] = field(default_factory=dict)
    epochs: dict[Partition, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    snapshot: bool = False
    offset_ranges: Ranges = field(default_factory=dict)

    @property
    def topic_ids(self) -> dict[str, str]:
        """The topic ID of every topic."""
        return {name: topic.topic_id for name, topic in self.topics.items()}


def find_starts(
    position: Position, topics: Topics, start_at: StartAt, since: int | None, id_type: IdType, now_ms: int
) -> Generator[StartLookup, Any, ResolvedPosition]:
    """Find the offset at which a stream starts in each of its partitions. Each step returns the next lookup.

    Args:
        position: the position that the client sent.
        topics: every topic of the position.
        start_at: where partitions start if the client sent no start for them.
        since: start these partitions at this time instead, in milliseconds since the epoch.
        id_type: what the event IDs contain.
        now_ms: the time before the first lookup, so that no record is skipped that is written during the lookups.

    Raises:
        InvalidPosition: a topic does not have a partition of the position, or an offset is beyond the end and the event ID
            was not issued by kafkasse. If kafkasse issued it, the log was truncated, which is reported as a gap.
        TopicGone: a topic was deleted during the lookups, or was recreated without the partitions that the client selected.
    """
    check_partitions(position, topics)
    recreated = {name for name, topic in topics.items() if is_recreated(position.topic_ids.get(name), topic)}
    starts: dict[Partition, Place | None] = {}
    for name in position.topics:
        starts |= _starts(name, topics[name], position, since)
    offset_ranges: Ranges = yield FindRanges(starts)
    timestamps = _timestamps_to_find(starts, recreated)
    epochs = _known_epochs(starts, recreated)
    answers = _Answers(
        offset_ranges,
        timestamps,
        at_timestamps=(yield FindTimestamps({at: time for at, time in timestamps.items() if at in offset_ranges})),
        diverged_at=(
            yield FindDiverged({at: epoch for at, epoch in epochs.items() if at in offset_ranges}, offset_ranges)
        ),
        recreated=recreated,
        issued_for=position.topic_ids.keys(),
        start_at=start_at,
        now_ms=now_ms,
    )
    places = {partition: answers.place(partition, start) for partition, start in starts.items()}
    gaps = [gap for place in places.values() if isinstance(place, list) for gap in place]
    # The log of a recreated topic can look like one that has lost records.
    if suspects := _suspects(gaps, topics):
        newer = _newer(suspects, (yield Describe(suspects)))
        if newer != suspects:
            return (yield from find_starts(position, {**topics, **newer}, start_at, since, id_type, now_ms))
    offsets = {
        partition: place[-1].end if isinstance(place, list) else place
        for partition, place in places.items()
        if not isinstance(place, _Pending)
    }
    at_end = [
        partition
        for partition, offset in offsets.items()
        if partition in offset_ranges and offset == offset_ranges[partition].end
    ]
    return ResolvedPosition(
        offsets=offsets,
        topics={name: topics[name] for name in position.topics},
        partial_topics=position.partial_topics,
        timestamps=timestamps_at_end(at_end, id_type, now_ms)
        | {partition: start.timestamp for partition, start in starts.items() if start and start.timestamp is not None},
        pending={partition: place.timestamp for partition, place in places.items() if isinstance(place, _Pending)},
        epochs={partition: at.epoch for partition, at in epochs.items() if offsets.get(partition) == at.offset}
        | {
            gap.partition: gap.epoch for gap in gaps if gap.epoch != UNKNOWN_EPOCH and gap.end == offsets[gap.partition]
        },
        gaps=gaps + _removed_partitions(position, topics),
        snapshot=start_at is StartAt.SNAPSHOT and not position.starts and since is None,
        offset_ranges=offset_ranges,
    )


def timestamps_at_end(partitions: Iterable[Partition], id_type: IdType, now_ms: int) -> dict[Partition, int]:
    """Return the timestamps of partitions that start at their end, whose last record is unknown.

    With `both`, a client uses the timestamp only at a copy of the topic. Clocks of producers may differ from ours, so the
    timestamp is earlier than now: the client may receive records again, but misses none. With `timestamp`, it would receive
    records again whenever it reconnects, so the event ID contains the offset until the first record arrives.
    """
    return dict.fromkeys(partitions, max(0, now_ms - MAX_CLOCK_DIFFERENCE_MS)) if id_type is IdType.BOTH else {}


def with_whole_topics(position: Position, topics: Topics) -> Position:
    """Return the position with whole topics instead of topics of which it lists all partitions, but no topic ID.

    KafkaSSE's event IDs and many positions that are written by hand are such positions.
    """
    if not position.partial_topics:
        return position
    listed = Counter(partition.topic for partition in position.starts)
    whole = {
        name
        for name in position.partial_topics
        if name not in position.topic_ids and listed[name] == topics[name].partitions
    }
    return replace(position, partial_topics=position.partial_topics - whole)


def check_partitions(position: Position, topics: Topics) -> None:
    """Check that the topics have the partitions that the position lists.

    Raises:
        InvalidPosition: a topic does not have a partition of the position.
        TopicGone: a topic was recreated, and has none of the partitions that the client selected.
    """
    listed: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in position.starts:
        listed[partition.topic].append(partition)
    for name, topic in topics.items():
        missing = [partition for partition in listed[name] if partition.partition >= topic.partitions]
        if missing and not is_recreated(position.topic_ids.get(name), topic):
            raise InvalidPosition(
                f"There is no partition {missing[0].partition} in {name}: it has {topic.partitions}, counted from 0.",
                topic=name,
                partition=missing[0].partition,
            )
        if missing == listed[name] and missing and name in position.partial_topics:
            raise TopicGone(
                f"The topic {name} was deleted and recreated. It has {topic.partitions} partitions now, and none of those"
                " that this client reads.",
                topics=[name],
            )


def contradictions(position: Position, topics: Topics) -> set[str]:
    """Return the topics that have another topic ID in the position, or of which it lists a partition that does not exist."""
    count = {name: topic.partitions for name, topic in topics.items()}
    contradicted = {name for name, number in position.starts if number >= count.get(name, 0)}
    ids = position.topic_ids.items()
    return contradicted | {name for name, topic_id in ids if name not in topics or is_recreated(topic_id, topics[name])}


def _starts(name: str, topic: Topic, position: Position, since: int | None) -> dict[Partition, Place | None]:
    """Return the stream's partitions of this topic, each with its start, or None if the route decides."""
    partitions = [Partition(name, index) for index in range(topic.partitions)]
    if name in position.partial_topics:
        return {partition: position.starts[partition] for partition in partitions if partition in position.starts}
    default: Place | None = ADDED_SINCE
    if name in position.named_topics:
        default = Place(timestamp=since) if since is not None else None
    return {partition: position.starts.get(partition, default) for partition in partitions}


def _timestamps_to_find(starts: Mapping[Partition, Place | None], recreated: set[str]) -> dict[Partition, int]:
    """Return the partitions that start at a timestamp: they have no offset, or their topic was recreated since."""
    return {
        partition: start.timestamp
        for partition, start in starts.items()
        if start is not None and start.timestamp is not None and (start.offset is None or partition.topic in recreated)
    }


def _known_epochs(starts: Mapping[Partition, Place | None], recreated: set[str]) -> dict[Partition, OffsetAndEpoch]:
    """Return the partitions whose start has a leader epoch of the topic that exists now."""
    return {
        partition: OffsetAndEpoch(start.offset, start.epoch)
        for partition, start in starts.items()
        if start and start.offset is not None and start.epoch is not None and partition.topic not in recreated
    }


def _suspects(gaps: Iterable[Gap], topics: Topics) -> dict[str, Topic]:
    """Return the topics that may have been recreated since they were described, because their log lacks records."""
    names = dict.fromkeys(gap.partition.topic for gap in gaps if gap.reason != RECREATED)
    return {name: topics[name] for name in names if topics[name].topic_id}


def _newer(topics: Topics, described: Topics) -> dict[str, Topic]:
    """Return the topics with their new descriptions, if they were recreated.

    Raises:
        TopicGone: a topic was deleted.
    """
    if deleted := topics.keys() - described.keys():
        raise topic_gone(deleted)
    return {
        name: described[name] if is_recreated(topic.topic_id, described[name]) else topic
        for name, topic in topics.items()
    }


def _removed_partitions(position: Position, topics: Topics) -> list[Gap]:
    """Return a gap for each partition of the position that a recreated topic does not have."""
    return [
        Gap(partition, max(start.offset or 0, 0), 0, RECREATED)
        for partition, start in position.starts.items()
        if partition.partition >= topics[partition.topic].partitions
    ]


class _Pending(NamedTuple):
    """The partition has no leader now. As soon as it has one, it starts at this timestamp."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class _Answers:
    """What the log returned, from which the start of each partition follows.

    Attributes:
        offset_ranges: the offsets of each partition that has a leader.
        timestamps: the partitions that start at a timestamp.
        at_timestamps: the offsets at these timestamps, except for partitions without a leader.
        diverged_at: the first offset that differs in the partitions that were truncated, and the newest epoch before it.
        recreated: the topics that were recreated since the event ID was issued.
        issued_for: the topics for which kafkasse issued the event ID.
        start_at: where partitions start that have no start of their own.
        now_ms: the current time.
    """

    offset_ranges: Ranges
    timestamps: Mapping[Partition, int]
    at_timestamps: Offsets
    diverged_at: Mapping[Partition, OffsetAndEpoch]
    recreated: set[str]
    issued_for: Collection[str]
    start_at: StartAt
    now_ms: int

    def place(self, partition: Partition, start: Place | None) -> int | list[Gap] | _Pending:
        """Return the offset at which a partition starts, or the gaps that it starts with.

        Raises:
            InvalidPosition: the offset is beyond the end.
        """
        if partition in self.at_timestamps:
            return self.at_timestamps[partition]
        if partition in self.timestamps:
            return _Pending(self.timestamps[partition])
        available = self.offset_ranges.get(partition)
        if start is None or start.offset == LATEST:
            is_at_end = start is not None or self.start_at is StartAt.LATEST
            if available is None:
                return _Pending(self.now_ms if is_at_end else 0)
            return available.end if is_at_end else available.start
        offset, diverged_at = start.offset or 0, self.diverged_at.get(partition)
        is_recreated = partition.topic in self.recreated
        if is_recreated and start is ADDED_SINCE:  # the gaps of the other partitions say that the topic was recreated
            return available.start if available is not None else offset
        if (
            available is not None
            and offset > available.end
            and not (is_recreated or diverged_at is not None or partition.topic in self.issued_for)
        ):
            raise InvalidPosition(
                f"Offset {offset} of {partition.topic}/{partition.partition} is beyond its end, {available.end}.",
                topic=partition.topic,
                partition=partition.partition,
                end=available.end,
            )
        return gaps_on_resuming(partition, offset, available, diverged_at, is_recreated) or offset
