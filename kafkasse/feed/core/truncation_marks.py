"""Marks in the offsets of finite reads after a truncation.

The leader epoch before the end of a truncation is that of an offset of the lost history, for which a cache may return lost
records again. Until a client has read the next record of the partition, its offset therefore contains another number: the
epoch of the last lost record that it has read, plus MARK. Kafka's epochs, which grow by one in each election, do not reach
MARK. A new epoch would not do as a number, because Kafka forgets the epochs of leaders that have written no records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafkasse.log import UNKNOWN_EPOCH, OffsetAndEpoch, Partition, Topics
from kafkasse.records.position import IdWriter, Position, stream_offset

MARK = 1 << 30

Marks = Mapping[Partition, OffsetAndEpoch]  # the offset at the end of each truncation, and the epoch of the lost record


def of_position(position: Position, topics: Topics) -> Marks:
    """Return the marks of a position."""
    return {
        partition: OffsetAndEpoch(place.offset, place.epoch - MARK)
        for partition, place in position.starts.items()
        if place.offset is not None and place.epoch is not None and place.epoch >= MARK
        if partition.partition < topics[partition.topic].partitions
    }


def replace_marks(position: Position, marks: Marks, ends: Mapping[Partition, OffsetAndEpoch]) -> Position:
    """Return the position with the leader epoch before each marked offset instead of the mark.

    If the log was truncated before this offset again, the epoch is that of the lost record, which has ended before.

    Args:
        ends: where the epochs of the marks end, as far as the log knows.
    """
    starts = dict(position.starts)
    for partition, (offset, epoch) in marks.items():
        end = ends.get(partition)
        before = epoch if end is None or end.offset < offset else end.epoch
        starts[partition] = starts[partition]._replace(epoch=None if before == UNKNOWN_EPOCH else before)
    return replace(position, starts=starts)


def offset_of(ids: IdWriter, marks: Marks) -> str:
    """Return the text of a position, with the marks of the partitions that have not moved since."""
    marked = {
        partition: MARK + epoch for partition, (offset, epoch) in marks.items() if ids.offsets[partition] == offset
    }
    return stream_offset.render(ids.offsets, ids.topic_ids, {**ids.epochs, **marked}, ids.partial_topics)
