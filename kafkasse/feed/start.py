"""Resolve a position: find the offset at which a stream starts in each of its partitions.

    Position (what the client sent) + the offsets that the log holds ─▶ ResolvedPosition (an offset for every partition)

The first of these rules that applies decides where a partition starts:

1. at the offset, or else at the timestamp, in the client's event ID;
2. at its first record, if the partition was added after the event ID was issued;
3. at the time that the client requested (`since`);
4. where the route's `start` says.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kafkasse.errors import InvalidPosition, TopicGone
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.lookup import OffsetRanges
from kafkasse.log import UNKNOWN_EPOCH, Gap, Log, OffsetAndEpoch, OffsetRange, Partition, Topic
from kafkasse.records.position import LATEST, IdType, Place, Position
from kafkasse.route import StartAt

MAX_CLOCK_DIFFERENCE_MS = 60_000  # between this server and the producers
RECREATED = "the topic was deleted and recreated"
# The start of a partition that did not exist when the client's event ID was issued.
ADDED_SINCE = Place(offset=0)


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """Where a stream starts.

    Attributes:
        offsets: the next offset of every partition of the stream.
        topic_ids: the topic ID of every topic.
        partial_topics: the topics of which the stream contains only selected partitions.
        timestamps: the timestamp of each partition, where it is known, in milliseconds, for event IDs with timestamps.
        pending: partitions that have no leader now, with the timestamp at which they start as soon as they have one.
        epochs: the leader epoch of the record before each offset, where it is known.
        gaps: offsets that the client requested and that the log no longer holds.
        snapshot: the stream starts with a snapshot.
    """

    offsets: dict[Partition, int]
    topic_ids: dict[str, str]
    partial_topics: frozenset[str]
    timestamps: dict[Partition, int]
    pending: dict[Partition, int] = field(default_factory=dict)
    epochs: dict[Partition, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    snapshot: bool = False


def resolve(
    log: Log,
    position: Position,
    topics: Mapping[str, Topic],
    start_at: StartAt,
    since: int | None = None,
    id_type: IdType = IdType.OFFSET,
    epoch_ends: EpochEnds | None = None,
    offset_ranges: OffsetRanges | None = None,
) -> ResolvedPosition:
    """Find the offset at which a stream starts in each of its partitions.

    Args:
        log: the log that holds the topics.
        position: the position that the client sent.
        topics: every topic of the position, as log.describe() returns it.
        start_at: where partitions start if the client sent no start for them.
        since: start these partitions at this time instead, in milliseconds since the epoch.
        id_type: what the event IDs contain.
        epoch_ends: compares the leader epochs of the position with those of the log. None: do not compare them.
        offset_ranges: shares lookups with other callers. None: ask the log.

    Raises:
        InvalidPosition: a topic does not have a partition of the position, or an offset is beyond the end and the event ID
            was not issued by kafkasse. If kafkasse issued it, the log was truncated, which is reported as a gap.
        TopicGone: a topic was recreated, and has none of the partitions that the client selected.
        TopicNotAvailable: a topic was deleted meanwhile.
        KafkaUnavailable: the log does not answer.
    """
    check_partitions(position, topics)
    now_ms = time.time_ns() // 1_000_000  # taken before the end offsets, so that no record written meanwhile is skipped
    recreated = {name for name, topic in topics.items() if is_recreated(position.topic_ids.get(name), topic)}
    starts: dict[Partition, Place | None] = {}
    for name in position.topics:
        starts |= _starts(name, topics[name], position, since)
    held = log.offset_ranges(starts) if offset_ranges is None else offset_ranges.get(starts)
    timestamps = _timestamps_to_find(starts, recreated)
    epochs = _known_epochs(starts, recreated)
    answers = _Answers(
        held,
        timestamps,
        at_timestamps=log.offsets_at(
            {partition: timestamp for partition, timestamp in timestamps.items() if partition in held}
        ),
        diverged_at=_diverged_at(epochs, held, epoch_ends),
        recreated=recreated,
        issued_for=position.topic_ids.keys(),
        start_at=start_at,
        now_ms=now_ms,
    )
    places = {partition: answers.place(partition, start) for partition, start in starts.items()}
    gaps = [place for place in places.values() if isinstance(place, Gap)]
    offsets = {
        partition: place.end if isinstance(place, Gap) else place
        for partition, place in places.items()
        if not isinstance(place, _Pending)
    }
    at_end = [partition for partition, offset in offsets.items() if partition in held and offset == held[partition].end]
    return ResolvedPosition(
        offsets=offsets,
        topic_ids={name: topics[name].topic_id for name in position.topics},
        partial_topics=position.partial_topics,
        timestamps=timestamps_at_end(at_end, id_type, now_ms)
        | {partition: start.timestamp for partition, start in starts.items() if start and start.timestamp is not None},
        pending={partition: place.timestamp for partition, place in places.items() if isinstance(place, _Pending)},
        epochs={partition: at.epoch for partition, at in epochs.items() if offsets.get(partition) == at.offset}
        | {gap.partition: gap.epoch for gap in gaps if gap.epoch != UNKNOWN_EPOCH},
        gaps=gaps + _removed_partitions(position, topics),
        snapshot=start_at is StartAt.SNAPSHOT and not position.starts and since is None,
    )


def timestamps_at_end(partitions: Iterable[Partition], id_type: IdType, now_ms: int) -> dict[Partition, int]:
    """Return the timestamps of partitions that start at their end, whose last record is unknown.

    With `both`, a client uses the timestamp only at a copy of the topic. Clocks of producers may differ from ours, so the
    timestamp is earlier than now: the client may receive records again, but misses none. With `timestamp`, it would receive
    records again whenever it reconnects, so the event ID contains the offset until the first record arrives.
    """
    return dict.fromkeys(partitions, max(0, now_ms - MAX_CLOCK_DIFFERENCE_MS)) if id_type is IdType.BOTH else {}


def with_whole_topics(position: Position, topics: Mapping[str, Topic]) -> Position:
    """Return the position with whole topics instead of topics of which it lists all partitions, but no topic ID.

    KafkaSSE's event IDs and many positions that are written by hand are such positions.
    """
    listed = Counter(partition.topic for partition in position.starts)
    whole = {
        name
        for name in position.partial_topics
        if name not in position.topic_ids and listed[name] == topics[name].partitions
    }
    return replace(position, partial_topics=position.partial_topics - whole)


def check_partitions(position: Position, topics: Mapping[str, Topic]) -> None:
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


def contradictions(position: Position, topics: Mapping[str, Topic]) -> set[str]:
    """Return the topics that have another topic ID in the position, or of which it lists a partition that does not exist."""
    count = {name: topic.partitions for name, topic in topics.items()}
    contradicted = {name for name, number in position.starts if number >= count.get(name, 0)}
    ids = position.topic_ids.items()
    return contradicted | {name for name, topic_id in ids if name not in topics or is_recreated(topic_id, topics[name])}


def is_recreated(topic_id: str | None, topic: Topic) -> bool:
    """Return whether a topic ID of an event ID is that of a former topic with the same name."""
    return bool(topic_id) and bool(topic.topic_id) and topic_id != topic.topic_id


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


def _diverged_at(
    epochs: Mapping[Partition, OffsetAndEpoch], held: Mapping[Partition, OffsetRange], epoch_ends: EpochEnds | None
) -> dict[Partition, OffsetAndEpoch]:
    """Return the partitions that were truncated since, with the first offset that differs and the newest epoch before it."""
    if epoch_ends is None:
        return {}
    return epoch_ends.diverged_at(
        {partition: position for partition, position in epochs.items() if partition in held}, held
    )


def _removed_partitions(position: Position, topics: Mapping[str, Topic]) -> list[Gap]:
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
        held: the offsets of each partition that has a leader.
        timestamps: the partitions that start at a timestamp.
        at_timestamps: the offsets at these timestamps, except for partitions without a leader.
        diverged_at: the first offset that differs in the partitions that were truncated, and the newest epoch before it.
        recreated: the topics that were recreated since the event ID was issued.
        issued_for: the topics for which kafkasse issued the event ID.
        start_at: where partitions start that have no start of their own.
        now_ms: the current time.
    """

    held: Mapping[Partition, OffsetRange]
    timestamps: Mapping[Partition, int]
    at_timestamps: Mapping[Partition, int]
    diverged_at: Mapping[Partition, OffsetAndEpoch]
    recreated: set[str]
    issued_for: Collection[str]
    start_at: StartAt
    now_ms: int

    def place(self, partition: Partition, start: Place | None) -> int | Gap | _Pending:
        """Return the offset at which a partition starts, or the gap that it starts with.

        Raises:
            InvalidPosition: the offset is beyond the end.
        """
        if partition in self.at_timestamps:
            return self.at_timestamps[partition]
        if partition in self.timestamps:
            return _Pending(self.timestamps[partition])
        if partition not in self.held:
            return self._place_without_leader(partition, start)
        held = self.held[partition]
        if start is None:
            return held.end if self.start_at is StartAt.LATEST else held.start
        if start.offset == LATEST:
            return held.end
        offset = start.offset or 0
        if partition in self.diverged_at and held.start <= offset:
            return Gap.truncated(partition, offset, self.diverged_at[partition], held)
        return self._gap(partition, start, held) or min(max(offset, held.start), held.end)

    def _place_without_leader(self, partition: Partition, start: Place | None) -> int | Gap | _Pending:
        if start is None:
            return _Pending(self.now_ms if self.start_at is StartAt.LATEST else 0)
        if start.offset == LATEST:
            return _Pending(self.now_ms)
        if partition.topic in self.recreated and start is not ADDED_SINCE:
            return Gap(partition, start.offset or 0, 0, RECREATED)
        return start.offset or 0

    def _gap(self, partition: Partition, start: Place, held: OffsetRange) -> Gap | None:
        if start is ADDED_SINCE:
            return None
        offset = start.offset or 0
        if partition.topic in self.recreated:
            return Gap(partition, offset, held.start, RECREATED)
        if offset > held.end and partition.topic not in self.issued_for:
            raise InvalidPosition(
                f"Offset {offset} of {partition.topic}/{partition.partition} is beyond its end, {held.end}.",
                topic=partition.topic,
                partition=partition.partition,
                end=held.end,
            )
        return Gap.between(partition, offset, held)
