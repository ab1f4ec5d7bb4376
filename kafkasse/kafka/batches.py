"""Decodes one partition's record batches from a Fetch response.

aiokafka's compiled decoder does most of the work. On platforms for which aiokafka has no wheel, this module uses
kafka-python's decoder, which is written in Python and takes ten times as long. Both decoders have the same interface. This
module does no I/O.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c  # uses the processor's CRC instruction; the compiled decoder computes the CRC in software
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords as PythonDecoder

from kafkasse.kafka.client import lenient_records
from kafkasse.kafka.compression import DecompressedTooLarge, decompress
from kafkasse.kafka.fetch_protocol import UNKNOWN_EPOCH, PartitionData
from kafkasse.log import Record

try:
    from aiokafka.record._crecords import MemoryRecords as CompiledDecoder
except ImportError:  # no wheel for this platform
    CompiledDecoder = None

MAX_RUN_RECORDS = 2_000  # decoded at once, so that a large response does not block the event loop for long

_V2 = 2
# The start of a batch header: base offset, length of the rest of the batch, leader epoch, magic, CRC. In format 2 (magic 2),
# these follow: attributes, last offset delta, first and last timestamp, and producer ID.
_HEADER = struct.Struct(">qiibI")
_HEADER_V2 = struct.Struct(">qiibIhiqqq")
_LENGTH_END = 12  # where the length field ends and the bytes that it counts begin
_HEADER_BYTES_V2 = 61
_CRC_FROM = _ATTRIBUTES_AT = _HEADER.size
_LENGTH_AT = 8
_LENGTH, _ATTRIBUTES = struct.Struct(">i"), struct.Struct(">h")
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_MARKER = struct.Struct(">hh")  # version and type
_ABORT = 0


class RecordRun(NamedTuple):
    """Records of one leader epoch in offset order, and the offset after them. `records` may be empty."""

    records: Sequence[Record]
    next_offset: int
    epoch: int


class BatchTooLarge(Exception):
    """A batch is too large when decompressed. `next_offset` is the offset after it."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset


def decode(
    fetched: PartitionData, offset: int, read_committed: bool, max_decompressed_bytes: int
) -> Iterator[RecordRun]:
    """Decode all records from `offset` on.

    A run without records moves the reader past offsets that have no record to return: transaction markers, records of
    aborted transactions, and records that compaction has removed.

    Args:
        fetched: the record batches, and the aborted transactions among them.
        offset: the first offset to return. Batches may start before it.
        read_committed: omit the records of aborted transactions.
        max_decompressed_bytes: the maximum decompressed size of a batch.

    Raises:
        BatchTooLarge: the next batch is too large. All records before it have been yielded.
        CorruptRecordError: the checksum of the next batch is wrong, or the batch cannot be decoded. All records before it
            have been yielded.
    """
    run: list[Record] = []
    first_offset, run_start, epoch = offset, offset, UNKNOWN_EPOCH
    aborted = _AbortedTransactions(fetched.aborted) if read_committed else None
    batches = _batches(bytes(fetched.records), aborted, max_decompressed_bytes)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            yield RecordRun(run, offset, epoch)
            if isinstance(error, BatchTooLarge):
                raise
            raise CorruptRecordError(f"the records after offset {offset} cannot be decoded: {error!r}") from error
        if batch is None:
            break
        records, next_offset, batch_epoch = batch
        if (batch_epoch != epoch and offset > run_start) or len(run) >= MAX_RUN_RECORDS:
            yield RecordRun(run, offset, epoch)
            run, run_start = [], offset
        epoch = batch_epoch
        if records and records[0].offset < first_offset:
            records = [record for record in records if record.offset >= first_offset]
        run += records
        offset = max(offset, next_offset)
    yield RecordRun(run, offset, epoch)


def _batches(
    data: bytes, aborted: _AbortedTransactions | None, max_decompressed_bytes: int
) -> Iterator[tuple[list[Any], int, int]]:
    """Yield the records of each complete batch, the offset after the batch, and its leader epoch."""
    view = memoryview(data)
    decoder = (CompiledDecoder or PythonDecoder)(data)
    at = 0
    while (batch := decoder.next_batch()) is not None:
        _, length, epoch, magic, checksum = _HEADER.unpack_from(data, at)
        begin, at = at, at + _LENGTH_END + length
        if not (batch.validate_crc() if magic < _V2 else crc32c(view[begin + _CRC_FROM : at]) == checksum):
            raise CorruptRecordError(f"the checksum of the batch at offset {batch.base_offset} is wrong")
        if magic < _V2:
            records = list(batch)
            yield records, records[-1].offset + 1 if records else 0, UNKNOWN_EPOCH
            continue
        base, _, _, _, _, attributes, delta, _, _, producer = _HEADER_V2.unpack_from(data, begin)
        next_offset = base + delta + 1
        is_aborted = aborted is not None and aborted.hides(batch, attributes, producer, base + delta)
        if is_aborted or attributes & _CONTROL:
            yield [], next_offset, epoch
        else:
            try:
                yield _records_of(batch, view[begin:at], attributes, max_decompressed_bytes), next_offset, epoch
            except DecompressedTooLarge as error:
                raise BatchTooLarge(next_offset) from error


def _records_of(batch: Any, data: memoryview, attributes: int, max_decompressed_bytes: int) -> list[Any]:
    """Return all records of a batch in format 2. A compressed batch is rewritten as an uncompressed one first."""
    if codec := attributes & _CODEC:
        decompressed = decompress(codec, data[_HEADER_BYTES_V2:], max_decompressed_bytes)
        header = bytearray(data[:_HEADER_BYTES_V2])
        _LENGTH.pack_into(header, _LENGTH_AT, len(header) + len(decompressed) - _LENGTH_END)
        _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, attributes & ~_CODEC)
        rewritten = bytes(header) + decompressed
        data, batch = memoryview(rewritten), (CompiledDecoder or PythonDecoder)(rewritten).next_batch()
    try:
        return list(batch)
    except Exception:  # noqa: BLE001 - decoders raise many types; if the batch is damaged, the next line raises again
        return lenient_records(data)


class _AbortedTransactions:
    """Decides which batches of one Fetch response belong to aborted transactions."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._pending = deque(sorted(transactions, key=lambda each: each[1]))
        self._producers: set[int] = set()

    def hides(self, batch: Any, attributes: int, producer: int, last_offset: int) -> bool:
        """Return whether the batch belongs to an aborted transaction. Call it for all batches, in order."""
        while self._pending and self._pending[0][1] <= last_offset:
            self._producers.add(self._pending.popleft()[0])
        if producer not in self._producers:
            return False
        # A control batch contains one transaction marker, unless compaction has removed it.
        marker = next(iter(batch), None) if attributes & _CONTROL else None
        if marker is not None and _MARKER.unpack_from(marker.key)[1] == _ABORT:
            self._producers.discard(producer)
        return bool(attributes & _TRANSACTIONAL)
