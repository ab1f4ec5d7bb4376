"""Resolve a position: find the offset at which a stream starts in each of its partitions.

    Position (what the client sent) + the offsets that the log holds ─▶ ResolvedPosition (an offset for every partition)

A partition starts, in this order of precedence, at the offset or the timestamp that the client sent; at its first record,
if it was added after the client's event ID was issued; at the time that the client asked for (`since`); or where the route
says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkasse.errors import InvalidPosition
from kafkasse.log import Gap, Log, OffsetRange, Partition, Topic
from kafkasse.position import PartitionStart, Position
from kafkasse.route import StartAt

ADDED_SINCE = PartitionStart(
    offset=0
)  # the start of a partition that did not exist when the client's event ID was issued


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """Where a stream starts.

    Attributes:
        offsets: the next offset of every partition of the stream.
        topic_ids: the topic ID of every topic.
        partial_topics: topics of which the stream holds only the listed partitions.
        timestamps: for event IDs that contain timestamps.
        gaps: records that the client asked for and that the log no longer holds.
        snapshot: whether the stream starts with a snapshot.
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
        position: what the client sent.
        topics: every topic of the position, as log.describe() returns it.
        start_at: where partitions start for which the client sent nothing.
        since: start these partitions at this time instead, in milliseconds since the epoch.

    Raises:
        InvalidPosition: the topic does not have a partition of the position, or an offset that kafkasse did not issue is
            beyond the end. If kafkasse issued the offset, the log was truncated, which is a gap.
    """
    now_ms = time.time_ns() // 1_000_000  # before the ends are read, so that records written meanwhile are not skipped
    recreated = {name for name, topic in topics.items() if _is_recreated(position.topic_ids.get(name), topic)}
    starts: dict[Partition, PartitionStart | None] = {}
    for name in position.topics:
        starts |= _starts(name, topics[name], position, since, name in recreated)
    held = log.offset_ranges(starts)
    offsets = log.offsets_at(_timestamps_to_find(starts, recreated))
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
    """Return every partition of the stream that belongs to this topic, with the start that the client sent, or None."""
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
    """Return the partitions that start at a timestamp: those without an offset, or whose offset is of a deleted topic."""
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
