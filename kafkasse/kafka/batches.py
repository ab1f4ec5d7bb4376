"""From the bytes that one fetch brought of one partition to records: compiled where a wheel fits, else kafka-python's own.

kafka-python decodes records in Python, ten times as slowly. Both decoders hand on batches of the same shape.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c  # by the processor's own instruction; the compiled decoder's is in software
from kafka.errors import CorruptRecordError
from kafka.record import MemoryRecords as PlainRecords
from kafka.record.default_records import DefaultRecordBatch as PlainBatch

from kafkasse.kafka.compression import TooLarge, unpack
from kafkasse.kafka.fetch_protocol import ANY_EPOCH, Fetched
from kafkasse.log import Record

try:
    from aiokafka.record._crecords import MemoryRecords as CompiledRecords
except ImportError:  # no wheel for this platform
    CompiledRecords = None

RUN_RECORDS_MAX = 2_000  # records made at once, so that one large fetch does not hold the hub for long

_V2 = 2
# Base offset, length from here on, leader epoch, magic, CRC; in format 2 also attributes, last offset less the base
# offset, first and last timestamp, and producer id.
_HEAD = struct.Struct(">qiibI")
_HEAD_V2 = struct.Struct(">qiibIhiqqq")
_BEFORE_LENGTH = 12
_BATCH_HEAD_BYTES = 61
_CHECKED_FROM = _ATTRIBUTES_AT = _HEAD.size
_LENGTH_AT = 8
_LENGTH, _ATTRIBUTES = struct.Struct(">i"), struct.Struct(">h")
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_MARKER = struct.Struct(">hh")  # version and type
_ABORT = 0


class Run(NamedTuple):
    """Records in order, the offset that follows them, and the leader epoch that they were written in."""

    records: Sequence[Record]
    next_offset: int
    epoch: int


class Unpackable(Exception):
    """A batch of records that would become too large; `next_offset` is what follows it."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset


def runs(fetched: Fetched, offset: int, committed: bool, max_decompressed_bytes: int) -> Iterator[Run]:
    """All records from `offset` on. A run without records moves past markers and hidden records.

    Args:
        fetched: record batches, and which of their transactions were aborted.
        offset: the first one that is wanted; batches may begin before it.
        committed: leave out the records of aborted transactions.
        max_decompressed_bytes: how large a compressed batch may become.

    Raises:
        Unpackable: the next batch would become larger; whatever stands before it was handed on.
        CorruptRecordError: a batch fails its checksum or cannot be read; whatever stands before it was handed on.
    """
    run: list[Record] = []
    begin, handed_on, epoch = offset, offset, ANY_EPOCH
    aborted = _Aborted(fetched.aborted) if committed else None
    batches = _batches(bytes(fetched.records), aborted, max_decompressed_bytes)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            yield Run(run, offset, epoch)
            if isinstance(error, Unpackable):
                raise
            raise CorruptRecordError(f"the records that follow offset {offset} cannot be read: {error!r}") from error
        if batch is None:
            break
        records, next_offset, batch_epoch = batch
        if (batch_epoch != epoch and offset > handed_on) or len(run) >= RUN_RECORDS_MAX:
            yield Run(run, offset, epoch)
            run, handed_on = [], offset
        epoch = batch_epoch
        if records and records[0].offset < begin:  # the batch began before the offset that was asked for
            records = [record for record in records if record.offset >= begin]
        run += records
        offset = max(offset, next_offset)
    yield Run(run, offset, epoch)


def _batches(
    data: bytes, aborted: _Aborted | None, max_decompressed_bytes: int
) -> Iterator[tuple[list[Any], int, int]]:
    """The records of each batch that is there whole, what follows it, and its leader epoch."""
    view = memoryview(data)
    decoder = (CompiledRecords or PlainRecords)(data)
    at = 0
    while (batch := decoder.next_batch()) is not None:
        _, length, epoch, magic, checksum = _HEAD.unpack_from(data, at)
        begin, at = at, at + _BEFORE_LENGTH + length
        if not (batch.validate_crc() if magic < _V2 else crc32c(view[begin + _CHECKED_FROM : at]) == checksum):
            raise CorruptRecordError(f"the batch at offset {batch.base_offset} fails its checksum")
        if magic < _V2:
            records = list(batch)
            yield records, records[-1].offset + 1 if records else 0, ANY_EPOCH
            continue
        base, _, _, _, _, attributes, delta, _, _, producer = _HEAD_V2.unpack_from(data, begin)
        next_offset = base + delta + 1
        is_aborted = aborted is not None and aborted.holds(batch, attributes, producer, base + delta)
        if is_aborted or attributes & _CONTROL:
            yield [], next_offset, epoch
        else:
            try:
                yield _records_of(batch, view[begin:at], attributes, max_decompressed_bytes), next_offset, epoch
            except TooLarge as error:
                raise Unpackable(next_offset) from error


def _records_of(batch: Any, data: memoryview, attributes: int, max_decompressed_bytes: int) -> list[Any]:
    """All records of a batch in format 2."""
    if codec := attributes & _CODEC:
        unpacked = unpack(codec, data[_BATCH_HEAD_BYTES:], max_decompressed_bytes)
        head = bytearray(data[:_BATCH_HEAD_BYTES])
        _LENGTH.pack_into(head, _LENGTH_AT, len(head) + len(unpacked) - _BEFORE_LENGTH)
        _ATTRIBUTES.pack_into(head, _ATTRIBUTES_AT, attributes & ~_CODEC)
        whole = bytes(head) + unpacked
        data, batch = memoryview(whole), (CompiledRecords or PlainRecords)(whole).next_batch()
    try:
        return list(batch)
    except Exception:  # noqa: BLE001 - whatever displeases a decoder: what is really damaged fails here again
        leniently = PlainBatch(data)
        leniently._buffer = _Lenient(data)
        return list(leniently)


class _Lenient(bytearray):
    """For the name of a header that is not UTF-8, although Kafka says it is: no producer shall end a stream by it."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Lenient(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)


class _Aborted:
    """Which batches of one fetch belong to transactions that were aborted."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._to_come = deque(sorted(transactions, key=lambda each: each[1]))
        self._producers: set[int] = set()

    def holds(self, batch: Any, attributes: int, producer: int, last_offset: int) -> bool:
        """To be asked of each batch in turn."""
        while self._to_come and self._to_come[0][1] <= last_offset:
            self._producers.add(self._to_come.popleft()[0])
        if producer not in self._producers:
            return False
        # Compaction may have taken the marker from its batch.
        marker = next(iter(batch), None) if attributes & _CONTROL else None
        if marker is not None and _MARKER.unpack_from(marker.key)[1] == _ABORT:
            self._producers.discard(producer)
        return bool(attributes & _TRANSACTIONAL)
