"""From the bytes that one fetch brought of one partition to records: compiled where a wheel fits, else kafka-python's own.

kafka-python decodes records in Python, one 13-field tuple at a time, and hands on nothing where a fetch held only markers.
Both classes here take its place behind the consumer: they hand on runs of records with the offset that follows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError

from kafkasse.frame import Record

try:
    from aiokafka.record._crecords import MemoryRecords as CompiledRecords
except ImportError:  # no wheel for this platform
    CompiledRecords = None

RUN_RECORDS_MAX = 2_000  # records made at once, so that one large fetch does not hold the hub for long
_CONTROL_ABORT = 0
_READ_COMMITTED = 1
_V2 = 2
_MAGIC_AT = 16

Run = tuple[Sequence[Record], int]  # records, and the offset that follows them


class PlainFetched(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python ships no types
    """By kafka-python's own decoder."""

    def take(self, n: int | None = None) -> list[Run]:
        """The next run, as a list of at most one. `n` is kafka-python's count of records and means nothing here."""
        before = self.next_fetch_offset
        records = super().take(RUN_RECORDS_MAX)
        moved = records or self.next_fetch_offset != before
        return [(records, self.next_fetch_offset)] if moved else []


class CompiledFetched(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python ships no types
    """By the compiled decoder in aiokafka's wheel, which reads message format 2; older ones go the plain way."""

    next_fetch_offset: int

    def _unpack_records(self, tp: Any, records: Any, key_deserializer: Any, value_deserializer: Any) -> Iterator[Run]:
        """Runs in place of records: kafka-python's own take() and poll() hand on whatever this yields."""
        try:
            yield from self._runs(records)
        finally:
            self.drain()  # or, after an error, kafka-python would ask this exhausted iterator for ever

    def _runs(self, records: Any) -> Iterator[Run]:
        run: list[Record] = []
        while (batch := records.next_batch()) is not None:
            try:
                found = self._records_of(batch)
            except Exception:
                if run:
                    yield run, self.next_fetch_offset
                raise
            if found and found[0].offset < self.fetch_offset:  # the batch began before the offset that was asked for
                found = [record for record in found if record.offset >= self.fetch_offset]
            run += found
            self.next_fetch_offset = max(
                self.next_fetch_offset, batch.next_offset if batch.magic == _V2 else _after(found)
            )
            if len(run) >= RUN_RECORDS_MAX and records.has_next():
                yield run, self.next_fetch_offset
                run = []
        self.drain()  # before the last run is handed on: the next fetch may go out while it is read
        if run or self.next_fetch_offset != self.fetch_offset:
            yield run, self.next_fetch_offset

    def _maybe_skip_record(self, record: Any) -> bool:
        return False

    def take(self, n: int | None = None) -> list[Run]:
        """The next run, as a list of at most one. `n` is kafka-python's count of records and means nothing here."""
        runs: list[Run] = super().take(1)
        return runs

    def _records_of(self, batch: Any) -> list[Any]:
        if self.check_crcs and not batch.validate_crc():
            raise CorruptRecordError(
                f"Record batch at offset {batch.base_offset} of {self.topic_partition} failed its CRC"
            )
        if batch.magic != _V2:
            return list(batch)
        self.leader_epoch = batch.leader_epoch
        if self._is_hidden(batch):
            return []
        compiled = CompiledRecords(bytes(batch._buffer)).next_batch()
        return list(compiled)

    def _is_hidden(self, batch: Any) -> bool:
        """Markers always are; records of aborted transactions are to those who read committed ones only."""
        if self.isolation_level == _READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


def _after(records: list[Any]) -> int:
    return records[-1].offset + 1 if records else 0


def fetched() -> type[PlainFetched] | type[CompiledFetched]:
    """The faster of the two that this platform has."""
    return PlainFetched if CompiledRecords is None else CompiledFetched
