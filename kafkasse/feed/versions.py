"""Drop outdated records, and read the versions of the records before a position. See core/versions.py."""

from __future__ import annotations

import time

from kafkasse.errors import KafkaUnavailable
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.versions import Versions
from kafkasse.log import (
    Batch,
    Cursor,
    Log,
    OffsetOutOfRange,
    OffsetRange,
    Offsets,
    Partition,
    PartitionsFailed,
    Ranges,
    Record,
)
from kafkasse.process.event_loop import take_turn

MAX_PIECE_RECORDS = 1000
MAX_POLL_S = 0.25


def without_outdated(batch: Batch, versions: Versions | None, stats: RouteStats | None = None) -> Batch:
    """Return the batch without its outdated records, and count these."""
    if versions is None:
        return batch
    newest: list[Record] = []
    for start in range(0, len(batch.records), MAX_PIECE_RECORDS):
        take_turn()
        newest += versions.newest(batch.partition, batch.records[start : start + MAX_PIECE_RECORDS])
    versions.ends[batch.partition] = batch.next_offset
    outdated = len(batch.records) - len(newest)
    if stats is not None:
        stats.outdated += outdated
    return batch._replace(records=newest) if outdated else batch


def read_versions(versions: Versions, log: Log, ends: Offsets, offset_ranges: Ranges, timeout_s: float) -> None:
    """Read the versions of the records before these offsets.

    Args:
        versions: receives the versions.
        log: the log to read.
        ends: for each partition, the offset before which to read.
        offset_ranges: the offsets that the partitions hold. Partitions that are absent are not read.
        timeout_s: how long to wait at most.

    Raises:
        KafkasseError: the log cannot be read, or not within the timeout.
    """
    missing = versions.missing(ends, offset_ranges)
    if missing:
        _read(versions, log, missing, timeout_s)
    versions.ends |= {partition: max(versions.ends.get(partition, 0), end) for partition, end in ends.items()}


def _read(versions: Versions, log: Log, missing: dict[Partition, OffsetRange], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    cursor = log.cursor({partition: offsets.start for partition, offsets in missing.items()})
    try:
        while missing:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"Kafka did not send the records before the position within {timeout_s:g} s.")
            for batch in _poll(cursor, missing):
                end = missing[batch.partition].end if batch.partition in missing else 0
                records = [record for record in batch.records if record.offset < end]
                before_end = batch._replace(records=records, next_offset=min(batch.next_offset, end))
                without_outdated(before_end, versions)
                if batch.next_offset >= end:
                    missing.pop(batch.partition, None)
                    cursor.remove([batch.partition])
    finally:
        cursor.close()


def _poll(cursor: Cursor, missing: dict[Partition, OffsetRange]) -> list[Batch]:
    try:
        return cursor.poll(MAX_POLL_S)
    except OffsetOutOfRange as error:  # retention or a truncation has just removed the records
        cursor.remove(error.partitions)
        for partition in error.partitions:
            missing.pop(partition, None)
        return []
    except PartitionsFailed as error:
        raise next(iter(error.errors.values())) from error
