"""The core of a finite read: which records one response contains, and where the next one starts.

    position + offsets that the log holds ─▶ plan() ─▶ batches of a cursor ─▶ ChunkCore ─▶ frames, next position

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
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from kafkasse.feed.core.stats import RouteStats
from kafkasse.log import Batch, Gap, OffsetRange, Offsets, Partition, Ranges
from kafkasse.records import frame
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import IdWriter

BLOCK_OFFSETS = 1000
CHUNK_BLOCKS = 2  # more would need more memory for each client
TURN_BLOCKS = 16
MAX_CHUNK_BYTES = 2_621_440  # two blocks of records of 1 KiB; a chunk exceeds it by at most one record

_OFFSET = attrgetter("offset")


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
        ids: the position, which moves with the frames.
        ends: see ChunkPlan.
        offset_ranges: the offsets that the log holds, if the chunk is full.
        encoder: encodes records.
        selector: the records that the client receives, if the encoder has dimensions.
        stats: the totals of the route.

    Attributes:
        parts: the parts of a JSON array with the records and gaps, without its end. One large value would be copied several
            times.
        elements: the number of the records and gaps.
    """

    def __init__(
        self,
        ids: IdWriter,
        ends: Offsets,
        offset_ranges: Ranges,
        encoder: Encoder,
        selector: Selector | None,
        stats: RouteStats,
    ) -> None:
        self.ids = ids
        self.parts: list[bytes] = []
        self.elements = 0
        self._start = dict(ids.offsets)
        self._ends = ends
        self._offset_ranges = offset_ranges
        self._encoder = encoder
        self._selector = selector
        self._stats = stats
        self._size = 0
        self._has_records = False  # if True, the end of the chunk stays the same

    @property
    def is_complete(self) -> bool:
        """Whether the chunk contains everything that it should."""
        offsets = self.ids.offsets
        return self._size >= MAX_CHUNK_BYTES or all(offsets[partition] >= end for partition, end in self._ends.items())

    @property
    def has_moved(self) -> bool:
        """Whether the next position differs from the first one."""
        return self.ids.offsets != self._start

    def add(self, batch: Batch) -> Iterator[None]:
        """Encode the records of a batch that belong to the chunk, a piece in each step.

        Raises:
            FilterError, RegistryUnavailable, DecoderPending: see Encoder.encode_piece(). The position is before the record.
        """
        partition, end = batch.partition, self._ends[batch.partition]
        records, offset = batch.records, self.ids.offsets[partition]
        if batch.next_offset > end or not records or records[0].offset < offset:
            first, last = (bisect_left(records, limit, key=_OFFSET) for limit in (offset, end))
            self._has_records = self._has_records or first < last
            if not self._has_records and partition in self._offset_ranges and last < len(records):
                offset_range = self._offset_ranges[partition]
                end = end_without_records(end, records[last].offset, partition, self.ids.offsets, offset_range)
                self._ends = {partition: end}
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

    def report_gap(self, gap: Gap) -> None:
        """Report records that cannot be read, and continue after them."""
        self.ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        self._stats.gaps[gap.reason] += 1
        self._append([frame.gap(self._encoder.wire, gap, "")])

    def _append(self, frames: list[bytes]) -> None:
        if frames:
            self._size += sum(map(len, frames))
            self.elements += len(frames)
            frames[0] = (b"\n," if self.parts else b"[") + frames[0]
            frames[-1] = frames[-1][:-1]  # without the line break, so that the array can end here
            self.parts.append(b",".join(frames))
