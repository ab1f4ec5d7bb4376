"""From what a client asked for to real offsets: the one place where a position meets what the log holds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkasse.errors import InvalidPosition
from kafkasse.log import Gap, Log, OffsetRange, Partition, Topic
from kafkasse.position import PartitionStart, Position
from kafkasse.route import StartAt

FROM_FIRST = PartitionStart(offset=0)


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """Where a stream begins, resolved: every partition of it has a real offset, and what is lost is declared."""

    offsets: dict[Partition, int]
    topic_ids: dict[str, str]
    only: frozenset[str]
    timestamps: dict[Partition, int]
    gaps: list[Gap] = field(default_factory=list)
    snapshot: bool = False


def resolve(
    log: Log, position: Position, topics: Mapping[str, Topic], start_at: StartAt, since: int | None = None
) -> ResolvedPosition:
    """Find the offset to begin at in every partition of the stream.

    Args:
        log: asked for bounds and times.
        position: what the client sent.
        topics: every topic of the position, as the log describes it.
        start_at: where partitions begin of which the client said nothing but the topic.
        since: begin these at this time instead, in milliseconds since the epoch.

    Raises:
        InvalidPosition: a partition that the topic does not have, or an offset beyond its end that no id of ours ever
            told. An id of ours that now lies beyond the end means that the log was truncated: a gap.
    """
    now = (
        time.time_ns() // 1_000_000
    )  # before the ends are asked for: what is written in between must not lie before it
    default = PartitionStart(timestamp=since) if since is not None else None
    wanted: dict[Partition, PartitionStart | None] = {}
    remade = {topic for topic in topics if _is_remade(position.topic_ids.get(topic), topics[topic])}
    for topic in position.topics:
        wanted |= _wanted_of(topic, topics[topic], position, default, topic in remade)
    bounds = log.offset_ranges(wanted)
    times = {each: start.timestamp for each, start in wanted.items() if start and _goes_by_time(start, each, remade)}
    found = log.offsets_at({each: when for each, when in times.items() if when is not None})
    offsets: dict[Partition, int] = {}
    gaps: list[Gap] = []
    for each, start in wanted.items():
        told = position.topic_ids.get(each.topic)
        if each in found:
            offsets[each] = found[each]
        elif start and (gap := _gap(each, start, bounds[each], told, each.topic in remade)):
            offsets[each] = gap.end
            gaps.append(gap)
        else:
            offsets[each] = _offset(start, bounds[each], start_at)
    at_end = {each for each in wanted if offsets[each] == bounds[each].end}
    return ResolvedPosition(
        offsets=offsets,
        topic_ids={topic: topics[topic].topic_id for topic in position.topics},
        only=position.partial_topics,
        timestamps={each: _timestamp(start, now if each in at_end else 0) for each, start in wanted.items()},
        gaps=gaps,
        snapshot=start_at is StartAt.SNAPSHOT and not position.starts and since is None,
    )


def _is_remade(told: str | None, topic: Topic) -> bool:
    return bool(told) and bool(topic.topic_id) and told != topic.topic_id


def _wanted_of(
    name: str, topic: Topic, position: Position, default: PartitionStart | None, remade: bool
) -> dict[Partition, PartitionStart | None]:
    """Every partition that the stream has of one topic, with what the client said of it."""
    listed = {each: start for each, start in position.starts.items() if each.topic == name}
    if not remade:
        for each in listed:
            if each.partition >= topic.partitions:
                raise InvalidPosition(
                    f"There is no partition {each.partition} in {name}: it has {topic.partitions}, counted from 0.",
                    topic=name,
                    partition=each.partition,
                )
    listed = {each: start for each, start in listed.items() if each.partition < topic.partitions}
    if name in position.partial_topics:
        return dict(listed)
    # Named by the client: where the route says. Missing from a whole id of ours: added since, so from its first record.
    unsaid = default if name in position.named_topics else FROM_FIRST
    every = [Partition(name, index) for index in range(topic.partitions)]
    return {each: listed.get(each, unsaid) for each in every}


def _goes_by_time(start: PartitionStart, partition: Partition, remade: set[str]) -> bool:
    return start.timestamp is not None and (start.offset is None or partition.topic in remade)


def _offset(start: PartitionStart | None, bounds: OffsetRange, start_at: StartAt) -> int:
    if start is None:
        return bounds.end if start_at is StartAt.LATEST else bounds.start
    return min(max(start.offset or 0, bounds.start), bounds.end)


def _timestamp(start: PartitionStart | None, unsaid: int) -> int:
    return unsaid if start is None or start.timestamp is None else start.timestamp


def _gap(
    partition: Partition, start: PartitionStart, bounds: OffsetRange, told: str | None, remade: bool
) -> Gap | None:
    offset = start.offset or 0
    if remade:
        return (
            Gap(partition, offset, bounds.start, "the topic was deleted and made again")
            if start is not FROM_FIRST
            else None
        )
    if start is FROM_FIRST:
        return None
    if offset > bounds.end and told is None:
        raise InvalidPosition(
            f"Offset {offset} of {partition.topic}/{partition.partition} is beyond its end, {bounds.end}.",
            topic=partition.topic,
            partition=partition.partition,
            end=bounds.end,
        )
    return Gap.between(partition, offset, bounds)
