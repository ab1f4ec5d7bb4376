"""The core of a finite read: which records one response contains, and where the next one starts.

    ChunkStart ─▶ plan() ─▶ batches and errors of a cursor ─▶ ChunkCore ─▶ Chunk, next ChunkStart

A partition's block ends at the next multiple of BLOCK_OFFSETS. A *full* chunk contains the records of one partition up to
the end of its block, or the first MAX_CHUNK_BYTES of them. If it starts at a multiple of CHUNK_BLOCKS blocks, and these are
complete, it contains all of them, because a request takes as long as several hundred small records. A full chunk follows
from the position and the log alone, so all servers return the same one, and all clients request the same offsets after
their first ones. The partition is the one with the lowest block, so partitions of different lengths do not lead to
different paths, and one without new records delays none. If the log has not reached the end of any block, the chunk
contains the new records of all partitions. A full chunk whose records are all gone by compaction ends at the next block with
records.

A client that never reaches the end of one partition must not wait for ever for the others. Therefore, one of TURN_BLOCKS
blocks is that of another partition, or the new records of those whose block is incomplete, in turn. The sum of the offsets
counts the blocks. No full chunk skips that turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from kafkasse.feed.core.chunk_start import ChunkStart
from kafkasse.feed.core.stats import RouteStats
from kafkasse.log import Batch, OffsetOutOfRange, OffsetRange, Offsets, Partition, Ranges, Resumption, Topics
from kafkasse.records import frame
from kafkasse.records.encoder import MAX_PIECE_BYTES, Encoder
from kafkasse.records.filter import Selector

BLOCK_OFFSETS = 1000
CHUNK_BLOCKS = 2  # more would need more memory for each client
TURN_BLOCKS = 16
MAX_CHUNK_BYTES = 2_621_440  # two blocks of records of 1 KiB; a chunk exceeds it by at most one record
EMPTY = b"[]"

_OFFSET = attrgetter("offset")


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
    read_at: float = field(compare=False)

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
        from crc32c import crc32c  # here, because it imports sockets, which the core must not

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


class ChunkPlan(NamedTuple):
    """What to read: up to which offset of which partitions, and whether this follows from the position alone."""

    ends: Offsets
    is_full: bool


def plan(offsets: Offsets, offset_ranges: Ranges) -> ChunkPlan:
    """Return what the chunk at a position contains.

    Args:
        offsets: the next offset of each partition.
        offset_ranges: the offsets that the log holds. Partitions that are absent cannot be read now.
    """
    blocks: list[tuple[int, Partition]] = []
    new: dict[Partition, int] = {}
    for partition, offset in offsets.items():
        if partition in offset_ranges and offset < (end := offset_ranges[partition].end):
            block_end = (offset // BLOCK_OFFSETS + 1) * BLOCK_OFFSETS
            if block_end <= end:
                blocks.append((block_end, partition))
            else:
                new[partition] = end
    if not blocks:
        return ChunkPlan(new, is_full=False)
    (end, partition), *rest = sorted(blocks)
    others = [ChunkPlan({partition: end}, is_full=True) for end, partition in rest]
    others += [ChunkPlan(new, is_full=False)] if new else []
    turn, block = divmod(sum(offsets.values()) // BLOCK_OFFSETS, TURN_BLOCKS)
    if others and block == TURN_BLOCKS - 1:
        return others[turn % len(others)]
    several = CHUNK_BLOCKS * BLOCK_OFFSETS
    if offsets[partition] % several == 0 and block + CHUNK_BLOCKS < TURN_BLOCKS:
        last = offsets[partition] + several
        end = last if last <= offset_ranges[partition].end else end
    return ChunkPlan({partition: end}, is_full=True)


def end_without_records(
    end: int, record: int, partition: Partition, offsets: Offsets, offset_range: OffsetRange
) -> int:
    """Return where a full chunk ends if compaction has left no record before its end: at the block of the next record.

    A client would otherwise request each empty block. If a turn of other partitions is before that block, the chunk ends at
    the last one.

    Args:
        end: the planned end.
        record: the offset of the next record.
        partition, offsets: the partition of the chunk, and the position.
        offset_range: the offsets that the log holds.
    """
    if record >= offset_range.end:  # is newer than the lookup
        return end
    last = max(end, record // BLOCK_OFFSETS * BLOCK_OFFSETS)
    if len(offsets) == 1:
        return last
    blocks = (sum(offsets.values()) - offsets[partition] + last) // BLOCK_OFFSETS
    turn = last - (blocks + 1) % TURN_BLOCKS * BLOCK_OFFSETS
    return turn if turn >= end else last


class ChunkCore:
    """Encodes the records of one chunk.

    Args:
        start: where it starts.
        encoder: encodes records.
        selector: the records that the client receives, if the encoder has dimensions.
        stats: the totals of the route.

    Attributes:
        ids: the position, which moves with the frames.
        ends: see ChunkPlan.

    Raises:
        KafkaUnavailable: the only new records may be in a partition without a leader.
    """

    def __init__(self, start: ChunkStart, encoder: Encoder, selector: Selector | None, stats: RouteStats) -> None:
        start.check_leaders()
        self.ids = start.ids.copy_at(start.ids.places())
        self.ends, self._is_full = plan(start.ids.offsets, start.offset_ranges)
        self._start = start
        self._encoder = encoder
        self._selector = selector
        self._stats = stats
        # The parts of a JSON array, without its end. One large value would be copied several times.
        self._parts: list[bytes] = []
        self._elements = 0
        self._size = 0
        self._has_records = False  # if True, the end of the chunk stays the same
        self._polled = start.ids.offsets  # the position after the last poll
        self._is_stopped = False

    @property
    def is_complete(self) -> bool:
        """Whether the chunk contains everything that it should."""
        offsets = self.ids.offsets
        return self._size >= MAX_CHUNK_BYTES or all(offsets[partition] >= end for partition, end in self.ends.items())

    @property
    def can_grow(self) -> bool:
        """Whether the next records belong to the chunk."""
        return not (self._is_stopped or self.is_complete)

    @property
    def is_full(self) -> bool:
        """Whether its start and the log determine the chunk."""
        return self._is_full and self.is_complete

    def add(self, batch: Batch) -> Iterator[None]:
        """Encode the records of a batch that belong to the chunk, a piece in each step.

        Raises:
            FilterError, RegistryUnavailable, DecoderPending: see Encoder.encode_piece(). The position is before the record.
        """
        partition, end = batch.partition, self.ends[batch.partition]
        records, offset = batch.records, self.ids.offsets[partition]
        if batch.next_offset > end or not records or records[0].offset < offset:
            first, last = (bisect_left(records, limit, key=_OFFSET) for limit in (offset, end))
            self._has_records = self._has_records or first < last
            if not self._has_records and self._is_full and last < len(records):
                offset_range = self._start.offset_ranges[partition]
                end = end_without_records(end, records[last].offset, partition, self.ids.offsets, offset_range)
                self.ends = {partition: end}
            batch = batch._replace(records=records[first:last], next_offset=min(batch.next_offset, end))
        else:
            self._has_records = True
        encoded = 0
        while self.ids.offsets[partition] < batch.next_offset and self._size < MAX_CHUNK_BYTES:
            yield
            piece = self._encoder.encode_piece(batch, encoded, self.ids, self._selector)
            encoded, frames = piece.end, piece.frames
            if self._size + sum(map(len, frames)) >= MAX_CHUNK_BYTES:  # cut between two records, wherever pieces end
                sizes = list(accumulate(map(len, frames), initial=self._size))
                frames = frames[: bisect_left(sizes, MAX_CHUNK_BYTES)]
                self.ids.set(partition, piece.offsets[len(frames) - 1] + 1, leader_epoch=batch.leader_epoch)
            self._append(frames)

    def end_poll(self) -> None:
        """End the chunk if a poll has added nothing and the lookup is an old one: the log may have lost the records since.

        Raises:
            TopicsChanged: the chunk is still empty.
        """
        if self._start.is_remembered and self.ids.offsets == self._polled:
            self.stop(TopicsChanged({}))
        self._polled = dict(self.ids.offsets)

    def resume(self, error: OffsetOutOfRange, offset_ranges: Ranges) -> Resumption | None:
        """Return where the cursor continues after unreadable records, or None if the chunk ends before lost ones.

        Args:
            error: what the cursor has raised.
            offset_ranges: the offsets that the log holds.

        Raises:
            OffsetGone: the first records are lost.
        """
        ids = self.ids
        resumption = error.resume(ids.offsets, offset_ranges)
        if lost := [gap for gap in resumption.gaps if gap.partition not in error.unreadable]:
            self.stop(self._start.gone(lost, ids.epochs))
            return None
        for gap in resumption.gaps:
            ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
            self._stats.gaps[gap.reason] += 1
            self._append([frame.gap(self._encoder.wire, gap, "")])
        return resumption

    def stop(self, error: Exception) -> None:
        """End the chunk before the next records, because they cannot be read.

        Raises:
            Exception: `error`, if the chunk is still empty.
        """
        if self.ids.offsets == self._start.ids.offsets:
            raise error
        self._is_stopped = True

    def result(self, read_at: float) -> Chunk:
        """Return the chunk.

        Args:
            read_at: the current time, in seconds since the epoch.
        """
        parts = (*self._parts, b"]") if self._parts else (EMPTY,)
        if sum(map(len, parts)) <= MAX_PIECE_BYTES:
            parts = (b"".join(parts),)  # is sent at once
        is_up_to_date = self._start.at(self.ids).is_at_end
        is_full = self.is_full and not is_up_to_date
        return Chunk(parts, self._start.offset_of(self.ids), is_full, is_up_to_date, self._elements, read_at)

    @property
    def next_start(self) -> ChunkStart | None:
        """The start of the next chunk, or None unless both chunks are full and the next is not the last."""
        if not self.is_full:
            return None
        start = self._start.at(self.ids)
        ends, is_full = plan(self.ids.offsets, start.offset_ranges)
        is_last = all(
            ends.get(partition, self.ids.offsets[partition]) >= offset_range.end
            for partition, offset_range in start.offset_ranges.items()
        )
        return start if is_full and not is_last else None

    def _append(self, frames: list[bytes]) -> None:
        if frames:
            self._size += sum(map(len, frames))
            self._elements += len(frames)
            frames[0] = (b"\n," if self._parts else b"[") + frames[0]
            frames[-1] = frames[-1][:-1]  # without the line break, so that the array can end here
            self._parts.append(b",".join(frames))
