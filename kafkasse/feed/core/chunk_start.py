"""Where a finite read starts, and where a client continues if the log has lost the records there."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

from kafkasse.errors import KafkaUnavailable, OffsetGone
from kafkasse.feed.core import truncation_marks
from kafkasse.feed.core.start import ResolvedPosition
from kafkasse.feed.core.truncation_marks import Marks
from kafkasse.log import TRUNCATED, Epochs, Gap, OffsetAndEpoch, Partition, Ranges, Topics
from kafkasse.records.frame import gap_members
from kafkasse.records.position import IdWriter


class ChunkStart(NamedTuple):
    """Where a chunk starts: the position, the offsets that the log holds, and the marks in the text of the position.

    Attributes:
        looked_up_at: when the offsets were looked up.
        topics: the topics at that time.
        is_remembered: the lookup was that of an earlier chunk.
    """

    ids: IdWriter
    offset_ranges: Ranges
    marks: Marks = MappingProxyType({})
    looked_up_at: float = 0.0
    topics: Topics = MappingProxyType({})
    is_remembered: bool = False

    @classmethod
    def of(
        cls,
        start: ResolvedPosition,
        marks: Marks = MappingProxyType({}),
        looked_up_at: float = 0.0,
        topics: Topics = MappingProxyType({}),
    ) -> ChunkStart:
        """Return the start at a position.

        Raises:
            KafkaUnavailable: a partition has no leader, so its offset is not known.
        """
        for partition in start.pending:
            raise _no_leader(partition)
        ids = IdWriter(start.offsets, start.topic_ids, start.partial_topics, epochs=start.epochs)
        return cls(ids, start.offset_ranges, marks, looked_up_at, topics)

    @property
    def has_records(self) -> bool:
        """Whether records can be read."""
        return any(self.ids.offsets[partition] < offsets.end for partition, offsets in self.offset_ranges.items())

    @property
    def is_at_end(self) -> bool:
        """Whether the position is the end of the log."""
        return not self.has_records and self._without_leader is None

    @property
    def _without_leader(self) -> Partition | None:
        """A partition whose end is not known now, because it has no leader."""
        return next((partition for partition in self.ids.offsets if partition not in self.offset_ranges), None)

    def check_leaders(self) -> None:
        """Check that a partition without a leader does not hide the only new records.

        Raises:
            KafkaUnavailable: it may hide them.
        """
        if not self.has_records and self._without_leader is not None:
            raise _no_leader(self._without_leader)

    def check_marks(self) -> None:
        """Check that the leader epoch before each mark is known, so that a reader can wait there.

        Raises:
            KafkaUnavailable: a partition has no leader, so the epoch is unknown.
        """
        for partition in self.marks.keys() - self.offset_ranges.keys():
            raise _no_leader(partition)

    def offset_of(self, ids: IdWriter) -> str:
        """Return the text of a position that follows this one."""
        return truncation_marks.offset_of(ids, self.marks)

    def at(self, ids: IdWriter) -> ChunkStart:
        """Return the start at a position that follows this one, from the same lookup."""
        marks = {partition: mark for partition, mark in self.marks.items() if mark.offset == ids.offsets[partition]}
        return self._replace(ids=ids, marks=marks, is_remembered=True)

    def gone(self, gaps: Sequence[Gap], epochs: Epochs) -> OffsetGone:
        """Return the error of a client whose records are gone. It says where the client may continue.

        Args:
            gaps: the offsets that are gone.
            epochs: the leader epochs of the client's position.
        """
        ids = self.ids.copy_at(self.ids.places())
        for gap in gaps:
            if gap.partition in ids.offsets:
                ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        lost = [gap.partition for gap in gaps if gap.reason == TRUNCATED and gap.partition in epochs]
        marks = {at: OffsetAndEpoch(ids.offsets[at], epochs[at]) for at in lost}
        topic, number = gaps[0].partition
        detail = f"The records at this offset no longer exist: {gaps[0].reason} ({topic}/{number})."
        return offset_gone(detail, gaps, truncation_marks.offset_of(ids, {**self.marks, **marks}))


def offset_gone(detail: str, gaps: Sequence[Gap], next_offset: str) -> OffsetGone:
    """Return the error of a client that must continue at `next_offset`."""
    error = OffsetGone(
        f"{detail} Continue at next_offset.", gaps=[gap_members(gap) for gap in gaps], next_offset=next_offset
    )
    error.headers["Stream-Next-Offset"] = next_offset
    return error


def _no_leader(partition: Partition) -> KafkaUnavailable:
    return KafkaUnavailable(f"The partition {partition.partition} of {partition.topic} has no leader now. Retry later.")
