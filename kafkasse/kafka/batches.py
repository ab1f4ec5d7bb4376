"""Decodes one partition's record batches from a Fetch response, in pieces of about a millisecond.

aiokafka's compiled decoder does most of the work. On platforms for which aiokafka has no wheel, this module uses
kafka-python's decoder, which is written in Python and takes ten times as long. Both decoders have the same interface. This
module does no I/O.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from crc32c import crc32c  # uses the processor's CRC instruction; the compiled decoder computes the CRC in software
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch as PythonDecoder

from kafkasse.kafka.client import lenient_records
from kafkasse.kafka.compression import PIECE_BYTES, DecompressedTooLarge, LargeBlock, block_bytes, decompress
from kafkasse.kafka.errors import OldMessageFormat, message
from kafkasse.kafka.fetch_protocol import PartitionData
from kafkasse.log import UNKNOWN_EPOCH, Record

try:
    from aiokafka.record._crecords import DefaultRecordBatch as CompiledDecoder
except ImportError:  # no wheel for this platform
    CompiledDecoder = None

# The cost of a piece of work is the number of records, plus one for each 512 bytes.
MAX_COST = 1_000
MAX_COST_IN_PYTHON = 100  # with the slow decoder
_BYTES_PER_COST = 512
MAX_CRC_BYTES = 1 << 20
MEDIUM_BATCH_BYTES = 1 << 20  # a batch up to this decompressed size is medium, a larger one is large

_V2 = 2
# The start of a batch header: base offset, length of the rest of the batch, leader epoch, magic, CRC. In format 2 (magic 2),
# these follow: attributes, last offset delta, first and last timestamp, producer ID and epoch, sequence, number of records.
_HEADER = struct.Struct(">qiibI")
_HEADER_V2 = struct.Struct(">qiibIhiqqqhii")
_LENGTH_END = 12  # where the length field ends and the bytes that it counts begin
_CRC_FROM = _ATTRIBUTES_AT = _HEADER.size
_LENGTH_AT = 8
_OFFSET, _LENGTH, _ATTRIBUTES = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">h")
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_MARKER = struct.Struct(">hh")  # version and type
_ABORT = 0


_Step = tuple[list[Any], int]  # a list of records, which may be empty and which the receiver clears, and the cost


class BatchSlot:
    """Lets a cursor have at most one decompressed batch of a size in memory."""

    def __init__(self) -> None:
        self._owner: _Buffer | None = None

    @property
    def taken(self) -> bool:
        """Whether a batch has the slot."""
        return self._owner is not None

    def take(self, batch: _Buffer) -> bool:
        """Take the slot if it is free. Return whether `batch` has it."""
        self._owner = self._owner or batch
        return self._owner is batch

    def release(self) -> None:
        """Let another batch take the slot."""
        self._owner = None


class BatchSlots(NamedTuple):
    """Limits the memory of one cursor, whose partitions take turns. Small batches need no slot: see RecordRun.keeps_turn.

    There are two slots because a batch of many megabytes may take seconds to decode, and must not delay smaller ones.
    """

    medium: BatchSlot
    large: BatchSlot

    @classmethod
    def create(cls) -> BatchSlots:
        return cls(BatchSlot(), BatchSlot())

    def needed(self, size: int) -> BatchSlot | None:
        """Return the slot that a batch of this size needs."""
        if size <= PIECE_BYTES:
            return None
        return self.medium if size <= MEDIUM_BATCH_BYTES else self.large


class RecordRun(NamedTuple):
    """Records of one leader epoch in offset order, and the offset after them. `records` may be empty."""

    records: Sequence[Record]
    next_offset: int
    epoch: int
    cost: int = 0  # their number, plus one for each 512 bytes
    is_last: bool = False  # the response has no more records of this partition
    # A small batch is in memory. The caller must decode it completely before it decodes another partition.
    keeps_turn: bool = False
    # The slot that the next batch waits for, or None. Until it is free, the next runs have no records.
    waits_for: BatchSlot | None = None
    block: LargeBlock | None = None  # a block that the next run decompresses, unless a thread has done so, or None


class BatchTooLarge(Exception):
    """A batch is too large when decompressed. `next_offset` is the offset after it."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset


UNREADABLE = (CorruptRecordError, BatchTooLarge)  # what decode() raises


class _Piece(NamedTuple):
    """Some records, the offset after them, and the cost of decoding them. `next_offset` is 0 if it is not known yet.

    The receiver empties the list of records. The cost of work that returns no records is in pieces without records.
    """

    records: list[Record]
    next_offset: int
    epoch: int
    cost: int


class _Buffer:
    """The decompressed batch of one partition, and its slot.

    Args:
        slots: those of the cursor.

    Attributes:
        data: the batch; empty if there is none.
        waits_for: the slot that the batch waits for, or None.
        block: a block that the next step decompresses, or None.
    """

    def __init__(self, slots: BatchSlots) -> None:
        self.data = bytearray()
        self.block: LargeBlock | None = None
        self.waits_for: BatchSlot | None = None
        self._slots = slots
        self._slot: BatchSlot | None = None

    @property
    def is_small(self) -> bool:
        """Whether there is a batch that needs no slot."""
        return bool(self.data) and self._slot is None

    def fill(self, header: memoryview, codec: int, data: memoryview, max_bytes: int) -> Iterator[_Step]:
        """Set `data` to the header and the decompressed batch. Yield no records.

        If the batch must wait for a slot, drop what was decompressed, and start again when the batch has the slot. This
        decompresses at most 128 KiB twice for the medium slot, and 1 MiB for the large one.
        """
        needed = self._slots.needed(block_bytes(codec, data))
        while True:
            if needed is not None:
                self.waits_for = needed
                while not needed.take(self):
                    yield [], MAX_COST
                self._slot, self.waits_for = needed, None
            self.data = bytearray(header)
            for piece in decompress(codec, data, max_bytes):
                if isinstance(piece, LargeBlock):
                    self.block = piece
                    yield [], MAX_COST
                    self.block = None
                    continue
                self.data += piece
                del piece  # it would take up memory while the batch waits
                needed = self._slots.needed(len(self.data) - len(header))
                if needed is None:
                    continue
                if self._slot not in (needed, self._slots.large):
                    if not needed.take(self):
                        break
                    self._release_slot()
                    self._slot = needed
                yield [], MAX_COST
            else:
                return
            self.clear()

    def clear(self) -> None:
        """Free the memory and the slot."""
        self.data, self.waits_for, self.block = bytearray(), None, None
        self._release_slot()

    def _release_slot(self) -> None:
        if self._slot is not None:
            self._slot.release()
            self._slot = None


def decode(
    fetched: PartitionData, offset: int, read_committed: bool, max_decompressed_bytes: int, slots: BatchSlots
) -> Iterator[RecordRun]:
    """Decode all records from `offset` on. Each step of the iterator takes at most about a millisecond.

    A run without records moves the reader past offsets that have no record to return: transaction markers, records of
    aborted transactions, and records that compaction has removed. If its `next_offset` is unchanged, a batch is being
    checked or decompressed, waits for a slot, or has ended.

    Args:
        fetched: the record batches, and the aborted transactions among them. The bytes must not change meanwhile.
        offset: the first offset to return. Batches may start before it.
        read_committed: omit the records of aborted transactions.
        max_decompressed_bytes: the maximum decompressed size of a batch.
        slots: shared by all partitions of a cursor.

    Raises:
        BatchTooLarge: the next batch is too large. All records before it have been yielded.
        CorruptRecordError: the checksum of the next batch is wrong, or the batch cannot be decoded. All records before it
            have been yielded.
        OldMessageFormat: the next batch has a format from before Kafka 0.11. All records before it have been yielded.
    """
    if (small := _small_run(fetched, offset)) is not None:
        yield small
        return
    run: list[Record] = []
    first_offset, run_start, epoch, cost, work = offset, offset, UNKNOWN_EPOCH, 0, 0
    max_work = _max_cost()
    buffer = _Buffer(slots)
    had_batch = False  # whether the buffer had a batch when the last run ended
    pieces = _pieces(fetched, read_committed, max_decompressed_bytes, buffer)

    def end_run(is_last: bool = False, waits_for: BatchSlot | None = None) -> RecordRun:
        nonlocal run, run_start, cost, work, had_batch
        ended = RecordRun(run, offset, epoch, cost, is_last, buffer.is_small, waits_for, buffer.block)
        run, run_start, cost, work, had_batch = [], offset, 0, 0, bool(buffer.data)
        return ended

    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:
            yield end_run()
            if isinstance(error, BatchTooLarge | OldMessageFormat):
                raise
            cause = message(error) if isinstance(error, CorruptRecordError) else repr(error)
            raise CorruptRecordError(f"the records after offset {offset} cannot be decoded: {cause}") from error
        if piece is None:
            break
        if piece.epoch != epoch and offset > run_start:
            yield end_run()
        records, next_offset, epoch, piece_work = piece
        cost += piece_work if records else 0
        work += piece_work
        if records and records[0].offset < first_offset:
            run += [record for record in records if record.offset >= first_offset]
        else:
            run += records
        records.clear()  # suspended generators refer to it, and there may be thousands of partitions
        offset = max(offset, next_offset)
        # At the end of a batch, end the run, so that another partition can take the slot.
        if work >= max_work or (had_batch and not buffer.data):
            yield end_run(waits_for=buffer.waits_for)
    yield end_run(is_last=True)


def _small_run(fetched: PartitionData, offset: int) -> RecordRun | None:
    """Decode the only batch of a response, which is the most frequent one, without further generators.

    Return None if decode() must take smaller steps, or has to report an error.
    """
    batch = fetched.records
    if fetched.aborted or len(batch) < _HEADER_V2.size:
        return None
    base, length, epoch, magic, checksum, attributes, delta, *_, count = _HEADER_V2.unpack_from(batch)
    cost = _cost(count, len(batch))
    if length != len(batch) - _LENGTH_END or magic != _V2 or attributes & _CONTROL or cost > MAX_COST_IN_PYTHON:
        return None
    if crc32c(batch[_CRC_FROM:]) != checksum or (records := _small_batch(batch, attributes)) is None:
        return None
    if base < offset:
        records = [record for record in records if record.offset >= offset]
    return RecordRun(records, max(offset, base + delta + 1), epoch, cost, is_last=True)


def _max_cost() -> int:
    return MAX_COST if CompiledDecoder else MAX_COST_IN_PYTHON


def _pieces(
    fetched: PartitionData, read_committed: bool, max_decompressed_bytes: int, buffer: _Buffer
) -> Iterator[_Piece]:
    """Decode each complete batch, in one or more pieces."""
    aborted = _AbortedTransactions(fetched.aborted if read_committed else ())
    for batch in _split(fetched.records):
        _, _, epoch, magic, checksum = _HEADER.unpack_from(batch)
        if magic < _V2:
            raise OldMessageFormat(f"the batch at offset {_OFFSET.unpack_from(batch)[0]} has message format {magic}")
        base, _, _, _, _, attributes, delta, _, _, producer, _, _, count = _HEADER_V2.unpack_from(batch)
        computed = crc32c(batch[_CRC_FROM:MAX_CRC_BYTES])
        for at in range(MAX_CRC_BYTES, len(batch), MAX_CRC_BYTES):
            yield _Piece([], 0, epoch, MAX_COST)
            computed = crc32c(batch[at : at + MAX_CRC_BYTES], computed)
        if computed != checksum:
            raise CorruptRecordError(f"the checksum of the batch at offset {base} is wrong")
        next_offset = base + delta + 1
        if aborted.hides(batch, attributes, producer, base + delta) or attributes & _CONTROL:
            yield _Piece([], next_offset, epoch, 1)
            continue
        cost = _cost(count, len(batch))
        if cost <= MAX_COST_IN_PYTHON and (small := _small_batch(batch, attributes)) is not None:
            yield _Piece(small, next_offset, epoch, cost)
            continue
        try:
            for records, cost in _records(batch, attributes, count, max_decompressed_bytes, buffer):
                yield _Piece(records, records[-1].offset + 1 if records else 0, epoch, cost)
        except DecompressedTooLarge as error:
            raise BatchTooLarge(next_offset) from error
        yield _Piece([], next_offset, epoch, 1)


def _split(data: memoryview) -> Iterator[memoryview]:
    """Yield each complete batch. The last one in a response may be incomplete."""
    at = 0
    while at + _LENGTH_END <= len(data):
        (length,) = _LENGTH.unpack_from(data, at + _LENGTH_AT)
        end = at + _LENGTH_END + length
        if end - at < _HEADER.size:
            raise CorruptRecordError("a batch is shorter than its header")
        if end > len(data):
            return
        yield data[at:end]
        at = end


def _small_batch(batch: memoryview, attributes: int) -> list[Any] | None:
    """Decode a small uncompressed batch in one piece. Return None if _records() has to decode it."""
    if attributes & _CODEC:
        return None
    try:
        return list((CompiledDecoder or PythonDecoder)(batch))
    except Exception:  # noqa: BLE001 - decoders raise many types; _records() uses the lenient decoder, or raises again
        return None


def _records(
    batch: memoryview, attributes: int, count: int, max_decompressed_bytes: int, buffer: _Buffer
) -> Iterator[_Step]:
    """Decode a batch in format 2."""
    if not attributes & _CODEC:
        yield from _uncompressed_records(batch, count)
        return
    header, data = batch[: _HEADER_V2.size], batch[_HEADER_V2.size :]
    try:
        yield from buffer.fill(header, attributes & _CODEC, data, max_decompressed_bytes)
        _LENGTH.pack_into(buffer.data, _LENGTH_AT, len(buffer.data) - _LENGTH_END)
        _ATTRIBUTES.pack_into(buffer.data, _ATTRIBUTES_AT, attributes & ~_CODEC)
        yield from _uncompressed_records(memoryview(buffer.data), count)
    finally:
        buffer.clear()


def _uncompressed_records(batch: memoryview, count: int) -> Iterator[_Step]:
    bytes_per_record = len(batch) // max(1, count)
    size = max(1, _max_cost() // _cost(1, bytes_per_record))
    records = chain((CompiledDecoder or PythonDecoder)(batch))  # a batch supports only one call of iter()
    decoded = 0
    while True:
        piece: list[Any] = []
        try:
            piece.extend(islice(records, size))
        except Exception:  # noqa: BLE001 - decoders raise many types; for a damaged batch, the next line raises again
            yield from _lenient_records(batch, piece, decoded, bytes_per_record)
            return
        if not piece:
            return
        decoded += len(piece)
        yield piece, _cost(len(piece), len(piece) * bytes_per_record)


def _lenient_records(batch: memoryview, piece: list[Any], decoded: int, bytes_per_record: int) -> Iterator[_Step]:
    """Yield `piece`, then the remaining records. The caller has yielded `decoded` records before `piece`."""
    skip = decoded + len(piece)
    yield piece, _cost(len(piece), len(piece) * bytes_per_record)
    records = lenient_records(batch)
    while piece := list(islice(records, MAX_COST_IN_PYTHON)):
        skipped = min(skip, len(piece))
        del piece[:skipped]
        skip -= skipped
        yield piece, _cost(len(piece), len(piece) * bytes_per_record)
        yield [], MAX_COST


def _cost(records: int, size: int) -> int:
    return records + size // _BYTES_PER_COST


class _AbortedTransactions:
    """Decides which batches of one Fetch response belong to aborted transactions."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._pending = deque(sorted(transactions, key=lambda transaction: transaction[1]))
        self._producers: set[int] = set()

    def hides(self, batch: memoryview, attributes: int, producer: int, last_offset: int) -> bool:
        """Return whether the batch belongs to an aborted transaction. Call it for all batches, in order."""
        while self._pending and self._pending[0][1] <= last_offset:
            self._producers.add(self._pending.popleft()[0])
        if producer not in self._producers:
            return False
        # A control batch contains one transaction marker, unless compaction has removed it.
        marker = next(iter((CompiledDecoder or PythonDecoder)(batch)), None) if attributes & _CONTROL else None
        if marker is not None and _MARKER.unpack_from(marker.key)[1] == _ABORT:
            self._producers.discard(producer)
        return bool(attributes & _TRANSACTIONAL)
