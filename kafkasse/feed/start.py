"""Resolve a position: find the offset at which a stream starts in each of its partitions.

    Position (what the client sent) + the offsets that the log holds ─▶ ResolvedPosition (an offset for every partition)

The first of these rules that applies decides where a partition starts:

1. at the offset, or else at the timestamp, in the client's event ID;
2. at its first record, if the partition was added after the event ID was issued;
3. at the time that the client requested (`since`);
4. where the route says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkasse.errors import InvalidPosition, KafkaUnavailable
from kafkasse.log import Gap, Log, OffsetRange, Partition, Topic
from kafkasse.position import PartitionStart, Position
from kafkasse.route import StartAt

# The start of a partition that did not exist when the client's event ID was issued.
ADDED_SINCE = PartitionStart(offset=0)


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """Where a stream starts.

    Attributes:
        offsets: the next offset of every partition of the stream.
        topic_ids: the topic ID of every topic.
        partial_topics: the topics of which the stream contains only selected partitions.
        timestamps: the timestamp of every partition, in milliseconds, for event IDs that contain timestamps.
        gaps: offsets that the client requested and that the log no longer holds.
        snapshot: the stream starts with a snapshot.
    """

    offsets: dict[Partition, int]
    topic_ids: dict[str, str]
    partial_topics: frozenset[str]
    timestamps: dict[Partition, int]
    gaps: list[Gap] = field(default_factory=list)
    snapshot: bool = False


def resolve(
    log: Log, position: Position, topics: Mapping[str, Topic], start_at: StartAt, since: int | None = None
) -> ResolvedPosition:
    """Find the offset at which a stream starts in each of its partitions.

    Args:
        log: the log that holds the topics.
        position: the position that the client sent.
        topics: every topic of the position, as log.describe() returns it.
        start_at: where partitions start if the client sent no start for them.
        since: start these partitions at this time instead, in milliseconds since the epoch.

    Raises:
        InvalidPosition: a topic does not have a partition of the position, or an offset is beyond the end and the event ID
            was not issued by kafkasse. If kafkasse issued it, the log was truncated, which is reported as a gap.
        TopicNotAvailable: a topic was deleted meanwhile.
        KafkaUnavailable: the log does not answer.
    """
    now_ms = time.time_ns() // 1_000_000  # taken before the end offsets, so that no record written meanwhile is skipped
    recreated = {name for name, topic in topics.items() if _is_recreated(position.topic_ids.get(name), topic)}
    starts: dict[Partition, PartitionStart | None] = {}
    for name in position.topics:
        starts |= _starts(name, topics[name], position, since, name in recreated)
    held = log.offset_ranges(starts)
    timestamps = _timestamps_to_find(starts, recreated)
    offsets = log.offsets_at(timestamps)
    if len(held) < len(starts) or len(offsets) < len(timestamps):
        raise KafkaUnavailable("A partition of this stream has no leader now. Retry in a few seconds.")
    gaps: list[Gap] = []
    for partition, start in starts.items():
        if partition in offsets:
            continue
        if start and (gap := _gap(partition, start, held[partition], position, partition.topic in recreated)):
            gaps.append(gap)
            offsets[partition] = gap.end
        else:
            offsets[partition] = _offset(start, held[partition], start_at)
    return ResolvedPosition(
        offsets={partition: offsets[partition] for partition in starts},
        topic_ids={name: topics[name].topic_id for name in position.topics},
        partial_topics=position.partial_topics,
        timestamps={
            partition: start.timestamp
            if start is not None and start.timestamp is not None
            else (now_ms if offsets[partition] == held[partition].end else 0)
            for partition, start in starts.items()
        },
        gaps=gaps,
        snapshot=start_at is StartAt.SNAPSHOT and not position.starts and since is None,
    )


def _is_recreated(topic_id: str | None, topic: Topic) -> bool:
    return bool(topic_id) and bool(topic.topic_id) and topic_id != topic.topic_id


def _starts(
    name: str, topic: Topic, position: Position, since: int | None, recreated: bool
) -> dict[Partition, PartitionStart | None]:
    """Return the stream's partitions of this topic, each with its start, or None if the route decides."""
    sent = {partition: start for partition, start in position.starts.items() if partition.topic == name}
    missing = [partition for partition in sent if partition.partition >= topic.partitions]
    if missing and not recreated:
        raise InvalidPosition(
            f"There is no partition {missing[0].partition} in {name}: it has {topic.partitions}, counted from 0.",
            topic=name,
            partition=missing[0].partition,
        )
    if name in position.partial_topics:
        return {partition: start for partition, start in sent.items() if partition not in missing}
    default: PartitionStart | None = ADDED_SINCE
    if name in position.named_topics:
        default = PartitionStart(timestamp=since) if since is not None else None
    return {(each := Partition(name, index)): sent.get(each, default) for index in range(topic.partitions)}


def _timestamps_to_find(starts: Mapping[Partition, PartitionStart | None], recreated: set[str]) -> dict[Partition, int]:
    """Return the partitions that start at a timestamp: they have no offset, or their topic was recreated since."""
    return {
        partition: start.timestamp
        for partition, start in starts.items()
        if start is not None and start.timestamp is not None and (start.offset is None or partition.topic in recreated)
    }


def _offset(start: PartitionStart | None, held: OffsetRange, start_at: StartAt) -> int:
    if start is None:
        return held.end if start_at is StartAt.LATEST else held.start
    return min(max(start.offset or 0, held.start), held.end)


def _gap(
    partition: Partition, start: PartitionStart, held: OffsetRange, position: Position, recreated: bool
) -> Gap | None:
    if start is ADDED_SINCE:
        return None
    offset = start.offset or 0
    if recreated:
        return Gap(partition, offset, held.start, "the topic was deleted and recreated")
    if offset > held.end and partition.topic not in position.topic_ids:
        raise InvalidPosition(
            f"Offset {offset} of {partition.topic}/{partition.partition} is beyond its end, {held.end}.",
            topic=partition.topic,
            partition=partition.partition,
            end=held.end,
        )
    return Gap.between(partition, offset, held)
