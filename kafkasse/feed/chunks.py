"""Finite reads: read the chunk at a position. core/chunk.py decides what it contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from types import MappingProxyType
from typing import NamedTuple

from crc32c import crc32c

from kafkasse.errors import KafkasseError, KafkaUnavailable, OffsetGone, ServerFull
from kafkasse.feed import truncation_marks
from kafkasse.feed.continuations import MAX_AGE_S, MAX_CURSORS, MAX_STARTS, BufferedCursor, CursorKey, Unused
from kafkasse.feed.core.chunk import ChunkCore, plan
from kafkasse.feed.core.start import ResolvedPosition
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.topics import is_recreated
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.lookup import OffsetRanges, known_offset_ranges
from kafkasse.feed.slots import CatchUpSlots, Clients
from kafkasse.feed.start import resolve
from kafkasse.feed.truncation_marks import Marks
from kafkasse.feed.versions import read_versions, without_outdated
from kafkasse.log import (
    TRUNCATED,
    Batch,
    Cursor,
    Epochs,
    Gap,
    Log,
    OffsetAndEpoch,
    OffsetOutOfRange,
    Offsets,
    Partition,
    PartitionsFailed,
    Ranges,
    Topics,
)
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import MAX_PIECE_BYTES, Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.frame import DecoderPending, gap_members
from kafkasse.records.position import IdWriter, Position
from kafkasse.route import NewestBy, StartAt

MAX_POLL_S = 0.25
EMPTY = b"[]"


@dataclass(frozen=True)
class Chunk:
    """What one response contains.

    Attributes:
        parts: the parts of a JSON array with the lines of JSON of the records.
        next_offset: the offset of the next chunk.
        is_full: the chunk follows from its offset and the log, so that a cache may keep it.
        is_up_to_date: the chunk ends at the end of the log.
        elements: the number of the elements of the array.
        read_at: when the chunk was read, in seconds since the epoch.
    """

    parts: Sequence[bytes]
    next_offset: str
    is_full: bool
    is_up_to_date: bool
    elements: int
    read_at: float = field(default_factory=time.time, compare=False)

    @cached_property
    def size(self) -> int:
        """The number of bytes of the body."""
        return sum(map(len, self.parts))

    @property
    def is_empty(self) -> bool:
        """Whether the chunk contains no records."""
        return self.size == len(EMPTY)

    @cached_property
    def etag(self) -> str:
        """A checksum of the chunk, for the header ETag. Records do not change, so a cryptographic hash is not needed."""
        checksum = reduce(lambda value, part: crc32c(part, value), self.parts, crc32c(self.next_offset.encode()))
        return f"{checksum:x}-{self.size:x}{'e' * self.is_up_to_date}"


class TopicsChanged(Exception):
    """Topics were recreated after they were described, or the log has changed: the position must be resolved again.

    Attributes:
        topics: the new descriptions of the topics.
    """

    def __init__(self, topics: Topics) -> None:
        super().__init__()
        self.topics = topics


class _RecordsLost(Exception):
    """The log has lost the first records of a chunk."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        super().__init__()
        self.gaps = gaps


class Start(NamedTuple):
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
    ) -> Start:
        """Return the start at a position whose partitions all have a known offset."""
        ids = IdWriter(start.offsets, start.topic_ids, start.partial_topics, epochs=start.epochs)
        return cls(ids, start.offset_ranges, marks, looked_up_at, topics)

    def offset_of(self, ids: IdWriter) -> str:
        """Return the text of a position that follows this one."""
        return truncation_marks.offset_of(ids, self.marks)

    def check_marks(self) -> None:
        """Check that the leader epoch before each mark is known, so that a reader can wait there.

        Raises:
            KafkaUnavailable: a partition has no leader, so the epoch is unknown.
        """
        for partition in self.marks.keys() - self.offset_ranges.keys():
            raise _no_leader(partition)

    @property
    def is_before_full_chunk(self) -> bool:
        """Whether the chunk is full, and followed by others, also if the log has grown since the lookup."""
        ends, is_full = plan(self.ids.offsets, self.offset_ranges)
        return is_full and any(
            ends.get(partition, self.ids.offsets[partition]) < offset_range.end
            for partition, offset_range in self.offset_ranges.items()
        )

    @property
    def has_records(self) -> bool:
        """Whether records can be read."""
        return any(self.ids.offsets[partition] < offsets.end for partition, offsets in self.offset_ranges.items())

    @property
    def without_leader(self) -> Partition | None:
        """A partition whose end is not known now, because it has no leader."""
        return next((partition for partition in self.ids.offsets if partition not in self.offset_ranges), None)

    @property
    def is_at_end(self) -> bool:
        """Whether the position is the end of the log."""
        return not self.has_records and self.without_leader is None


class Chunks:
    """Reads the chunks of one log.

    Args:
        log: the log to read.
        epoch_ends, offset_ranges, describe: share lookups with other readers.
        slots: limits the number of cursors.
        timeout_s: how long a read may take.
    """

    def __init__(
        self,
        log: Log,
        epoch_ends: EpochEnds,
        offset_ranges: OffsetRanges,
        describe: Callable[[Collection[str]], Topics],
        slots: CatchUpSlots,
        timeout_s: float,
    ) -> None:
        self._log = log
        self._epoch_ends = epoch_ends
        self._offset_ranges = offset_ranges
        self._describe = describe
        self._slots = slots
        self._timeout_s = timeout_s
        self._starts: Unused[Start] = Unused(MAX_STARTS)
        self._cursors: Unused[BufferedCursor] = Unused(MAX_CURSORS, lambda buffered: buffered.cursor.close())

    def resolve(
        self, position: Position, topics: Topics, start_at: StartAt, since: int | None = None, offset: str = ""
    ) -> Start:
        """Return where a chunk starts.

        Args:
            position, topics, start_at, since: see feed.start.resolve().
            offset: the text of the position, if a chunk may have ended there.

        Raises:
            OffsetGone: the log does not hold the records at the position.
            KafkaUnavailable: a partition has no leader, so its offset is not known.
            KafkasseError: see feed.start.resolve().
        """
        looked_up_at = time.monotonic()
        known = self._starts.take(offset)
        if known is not None and known.looked_up_at > looked_up_at - MAX_AGE_S and known.topics == topics:
            return known
        marks = truncation_marks.of_position(position, topics)
        if marks:
            position = truncation_marks.replace_marks(position, marks, self._epoch_ends)
        resolved = resolve(
            self._log,
            position,
            topics,
            start_at,
            since,
            epoch_ends=self._epoch_ends,
            offset_ranges=self._offset_ranges,
            describe=self._describe,
        )
        if resolved.pending:
            raise _no_leader(next(iter(resolved.pending)))
        start = Start.of(resolved, marks, looked_up_at, topics)
        if resolved.gaps:
            epochs = {partition: place.epoch for partition, place in position.starts.items() if place.epoch is not None}
            raise _gone(resolved.gaps, start, epochs)
        self._set_epochs_at_end(start)
        return start

    def end_offset(self, start: Start) -> str:
        """Return the offset at the end of the log."""
        for partition, offsets in start.offset_ranges.items():
            start.ids.set(partition, offsets.end)
        self._set_epochs_at_end(start)
        return start.offset_of(start.ids)

    def _set_epochs_at_end(self, start: Start) -> None:
        """Add the epochs of the last records, so that a client at the end has the offset of one that has read them."""
        ids = start.ids
        unknown = {
            partition: offsets
            for partition, offsets in start.offset_ranges.items()
            if offsets.end == ids.offsets[partition] and partition not in ids.epochs
        }
        for partition, epoch in self._epoch_ends.last_epochs(unknown).items():
            ids.set(partition, unknown[partition].end, leader_epoch=epoch)

    def read(
        self,
        start: Start,
        encoder: Encoder,
        selector: Selector | None,
        clients: Clients,
        newest_by: NewestBy | None,
        stats: RouteStats,
    ) -> Chunk:
        """Read the chunk at a position.

        Args:
            start: the position. It is not modified.
            encoder: encodes records as lines of JSON.
            selector: the records that the client receives, if the encoder has dimensions.
            clients: the addresses of the clients. Addresses get cursors in turn.
            newest_by: how to recognize outdated records, which are dropped; None: all records are sent.
            stats: the totals of the route.

        Raises:
            OffsetGone: the log has lost the records meanwhile.
            TopicsChanged: a topic was recreated meanwhile.
            KafkaUnavailable: Kafka does not send the records, or the only new ones may be in a partition without a leader.
            KafkasseError: a record cannot be encoded.
        """
        ids = start.ids.copy_at(start.ids.places())
        if not start.has_records and start.without_leader is not None:
            raise _no_leader(start.without_leader)
        ends, is_full = plan(ids.offsets, start.offset_ranges)
        chunk = ChunkCore(ids, ends, start.offset_ranges if is_full else {}, encoder, selector, stats)
        if ends:
            slot = clients.request(self._slots)
            try:
                if not slot.wait(self._timeout_s):
                    raise ServerFull("Too many clients are catching up (max_catch_ups). Retry later.")
                self._fill(chunk, ends, is_full, start, self._versions(newest_by, ids, ends, start.offset_ranges))
            except _RecordsLost as error:
                raise _gone(error.gaps, start._replace(ids=ids), ids.epochs) from error
            finally:
                slot.release()
        end = start._replace(ids=ids)
        is_up_to_date = end.is_at_end
        parts = (*chunk.parts, b"]") if chunk.parts else (EMPTY,)
        if sum(map(len, parts)) <= MAX_PIECE_BYTES:
            parts = (b"".join(parts),)  # is sent at once
        is_full = is_full and chunk.is_complete and not is_up_to_date
        next_offset = start.offset_of(ids)
        if is_full and end.is_before_full_chunk:
            marks = {
                partition: mark for partition, mark in start.marks.items() if mark.offset == ids.offsets[partition]
            }
            self._starts.keep(next_offset, end._replace(marks=marks, is_remembered=True))
        return Chunk(parts, next_offset, is_full, is_up_to_date, chunk.elements)

    def _versions(
        self, newest_by: NewestBy | None, ids: IdWriter, ends: Offsets, offset_ranges: Ranges
    ) -> Versions | None:
        """Return the versions of the records before the chunk, or None if outdated records are not dropped."""
        if newest_by is None:
            return None
        versions = Versions(newest_by)
        read_versions(
            versions,
            self._log,
            {partition: ids.offsets[partition] for partition in ends},
            offset_ranges,
            self._timeout_s,
        )
        return versions

    def _fill(self, chunk: ChunkCore, ends: Offsets, is_full: bool, start: Start, versions: Versions | None) -> None:
        """Read the records of a chunk, as many as there is time for.

        Raises:
            KafkasseError: there are none. See read().
        """
        deadline = time.monotonic() + self._timeout_s
        cursor = self._cursor(start, ends)
        can_continue = False
        try:
            while not chunk.is_complete and time.monotonic() < deadline:
                offsets = dict(chunk.ids.offsets)
                if not self._poll(chunk, cursor, versions):
                    break
                if start.is_remembered and offsets == chunk.ids.offsets:
                    # The log may have lost the records since the lookup.
                    if not chunk.has_moved:
                        raise TopicsChanged({})
                    break
            can_continue = is_full and chunk.is_complete
        finally:
            if can_continue:
                self._cursors.keep(CursorKey.of(chunk.ids, start.looked_up_at, *ends), cursor)
            else:
                cursor.cursor.close()
        if not (chunk.has_moved or chunk.is_complete):
            raise KafkaUnavailable(f"Kafka did not send the records within {self._timeout_s:g} s.")

    def _cursor(self, start: Start, ends: Offsets) -> BufferedCursor:
        """Return a cursor at a position, if possible one that has read the chunk before."""
        ids = start.ids
        if len(ends) == 1:
            kept = self._cursors.take(CursorKey.of(ids, start.looked_up_at, *ends))
            if kept is not None:
                return kept
        offsets = {partition: ids.offsets[partition] for partition in ends}
        return BufferedCursor(self._log.cursor(offsets, epochs=ids.epochs, topic_ids=ids.topic_ids))

    def _poll(self, chunk: ChunkCore, cursor: BufferedCursor, versions: Versions | None) -> bool:
        """Add the next records. Return False if the chunk ends before the others, because they cannot be read.

        Raises:
            KafkasseError: the first records cannot be read.
        """
        try:
            batches = cursor.poll(MAX_POLL_S)
            if not batches:
                self._check_topics(chunk.ids)
            for batch in batches:
                self._encode(chunk, without_outdated(batch, versions))
                if chunk.ids.offsets[batch.partition] < batch.next_offset and chunk.is_complete:
                    cursor.unread(batch)
        except OffsetOutOfRange as error:
            return self._skip(chunk, cursor.cursor, error)
        except PartitionsFailed as error:
            if not chunk.has_moved:
                raise next(iter(error.errors.values())) from error
            return False
        except KafkasseError:
            if not chunk.has_moved:
                raise
            return False
        return True

    def _check_topics(self, ids: IdWriter) -> None:
        """Check that the topics are still the same. A cursor does not read those that were recreated.

        Raises:
            TopicsChanged: a topic was recreated.
        """
        topics = self._describe(list(ids.topic_ids))
        if any(is_recreated(ids.topic_ids[name], topic) for name, topic in topics.items()):
            raise TopicsChanged(topics)

    def _encode(self, chunk: ChunkCore, batch: Batch) -> None:
        while True:
            try:
                for _ in chunk.add(batch):
                    take_turn()
                return
            except DecoderPending:  # the decoder has waited; the chunk has not moved past the record
                continue

    def _skip(self, chunk: ChunkCore, cursor: Cursor, error: OffsetOutOfRange) -> bool:
        """Continue after records that are unreadable. Return False if the chunk ends before records that were lost.

        Raises:
            _RecordsLost: the lost records are the first ones.
        """
        ids = chunk.ids
        resumption = error.resume(ids.offsets, known_offset_ranges(self._log, error.partitions, ids.topic_ids))
        lost = [gap for gap in resumption.gaps if gap.partition not in error.unreadable]
        if lost and not chunk.has_moved:
            raise _RecordsLost(lost)
        if lost:
            return False
        for gap in resumption.gaps:
            chunk.report_gap(gap)
        cursor.seek(resumption.offsets, resumption.epochs)
        return True


def _no_leader(partition: Partition) -> KafkaUnavailable:
    return KafkaUnavailable(f"The partition {partition.partition} of {partition.topic} has no leader now. Retry later.")


def _gone(gaps: Sequence[Gap], start: Start, epochs: Epochs) -> OffsetGone:
    """Return the error of a client whose records are gone, and move the start to where the client may continue.

    Args:
        gaps: the offsets that are gone.
        start: the position.
        epochs: the leader epochs of the client's position.
    """
    ids = start.ids
    lost = {gap.partition: epochs[gap.partition] for gap in gaps if gap.reason == TRUNCATED and gap.partition in epochs}
    for gap in gaps:
        if gap.partition in ids.offsets:
            ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
    marks = {**start.marks, **{at: OffsetAndEpoch(ids.offsets[at], epoch) for at, epoch in lost.items()}}
    topic, number = gaps[0].partition
    detail = f"The records at this offset no longer exist: {gaps[0].reason} ({topic}/{number})."
    return offset_gone(detail, gaps, truncation_marks.offset_of(ids, marks))


def offset_gone(detail: str, gaps: Sequence[Gap], next_offset: str) -> OffsetGone:
    """Return the error of a client that must continue at `next_offset`."""
    error = OffsetGone(
        f"{detail} Continue at next_offset.", gaps=[gap_members(gap) for gap in gaps], next_offset=next_offset
    )
    error.headers["Stream-Next-Offset"] = next_offset
    return error
