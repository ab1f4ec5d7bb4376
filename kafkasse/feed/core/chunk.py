"""The core of a finite read: which records one response contains, and where the next one starts.

    position + offsets that the log holds ─▶ plan() ─▶ batches of a cursor ─▶ ChunkCore ─▶ frames, next position

A partition's block ends at the next multiple of BLOCK_OFFSETS. A *full* chunk contains the records of one partition up to
the end of its block, or the first MAX_CHUNK_BYTES of them. It follows from the position and the log alone, so all servers
return the same one, and all clients request the same offsets after their first one. The partition is the one with the lowest
block, so partitions of different lengths do not lead to different paths, and one without new records delays none. The *last*
chunk, if the log has not reached the end of any block, contains the new records of all partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kafkasse.log import Batch, Gap, OffsetRange, Partition
from kafkasse.records import frame
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import IdWriter

BLOCK_OFFSETS = 1000
MAX_CHUNK_BYTES = 2_097_152  # a chunk exceeds it by at most one record


class Plan(NamedTuple):
    """What to read: up to which offset of which partitions, and whether this follows from the position alone."""

    ends: Mapping[Partition, int]
    is_full: bool


def plan(offsets: Mapping[Partition, int], held: Mapping[Partition, OffsetRange]) -> Plan:
    """Return what the chunk at a position contains.

    Args:
        offsets: the next offset of each partition.
        held: the offsets that the log holds. Partitions that are absent cannot be read now.
    """
    block_ends = {
        partition: end
        for partition, offset in offsets.items()
        if partition in held and (end := (offset // BLOCK_OFFSETS + 1) * BLOCK_OFFSETS) <= held[partition].end
    }
    if block_ends:
        partition = min(block_ends, key=lambda partition: (block_ends[partition], partition))
        return Plan({partition: block_ends[partition]}, is_full=True)
    ends = {partition: held[partition].end for partition in offsets if partition in held}
    return Plan({partition: end for partition, end in ends.items() if offsets[partition] < end}, is_full=False)


class ChunkCore:
    """Encodes the records of one chunk.

    Args:
        ids: the position, which moves with the frames.
        ends: see Plan.
        encoder: encodes records.
        selector: the records that the client receives, if the encoder has dimensions.

    Attributes:
        frames: the frames of the records, and of gaps.
    """

    def __init__(
        self, ids: IdWriter, ends: Mapping[Partition, int], encoder: Encoder, selector: Selector | None
    ) -> None:
        self.ids = ids
        self.frames: list[bytes] = []
        self._start = dict(ids.offsets)
        self._ends = ends
        self._encoder = encoder
        self._selector = selector
        self._size = 0

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
        records = [record for record in batch.records if self.ids.offsets[partition] <= record.offset < end]
        batch = batch._replace(records=records, next_offset=min(batch.next_offset, end))
        encoded = 0
        while self.ids.offsets[partition] < batch.next_offset and self._size < MAX_CHUNK_BYTES:
            yield
            piece = self._encoder.encode_piece(batch, encoded, self.ids, self._selector)
            encoded = piece.end
            for encoded_frame, offset in zip(piece.frames, piece.offsets, strict=True):
                self._append(encoded_frame)
                if self._size >= MAX_CHUNK_BYTES:  # cut between two records, wherever pieces and batches end
                    self.ids.set(partition, offset + 1, leader_epoch=batch.leader_epoch)
                    break

    def declare(self, gap: Gap) -> None:
        """Report records that cannot be read, and continue after them."""
        self.ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        self._append(frame.gap(self._encoder.wire, gap, ""))

    def _append(self, encoded_frame: bytes) -> None:
        self.frames.append(encoded_frame)
        self._size += len(encoded_frame)
