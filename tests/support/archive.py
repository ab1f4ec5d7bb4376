"""Archives for tests: copy the records of a log to Parquet files, as the pipeline does for a Kafka cluster."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from kafkasse.archive import parquet
from kafkasse.archive.directory import ArchiveDirectory, TopicDirectory
from kafkasse.archive.manifest import Entry
from kafkasse.log import UNKNOWN_EPOCH, Log, Partition, Record

DAY = "2026-11-22"


def topic_directory(root: Path, log: Log, topic: str) -> TopicDirectory:
    """Return the directory of the archive of a topic."""
    directory = ArchiveDirectory(root)
    directory.create()
    return directory.topic(topic, log.describe([topic])[topic].topic_id)


def archive(root: Path, log: Log, topic: str, end: int | None = None, partition: int = 0) -> None:
    """Archive the next records of a partition, before `end` or those that the log holds now, as one commit.

    Records that the log has lost in a truncation since are removed from the archive.
    """
    directory = topic_directory(root, log, topic)
    manifest = directory.read()
    at = Partition(topic, partition)
    for entry in reversed(manifest.partitions.get(partition, ())):
        lost_from = log.epoch_ends({at: entry.epoch}).get(at) if entry.epoch != UNKNOWN_EPOCH else None
        if lost_from is not None and lost_from.offset < entry.end:
            manifest = manifest.truncate(partition, lost_from.offset)
    held = log.offset_ranges([at])[at]
    start = max(held.start, manifest.end(partition) or 0)
    stop = held.end if end is None else end
    files = []
    for batch in _batches(log, at, start, stop):
        files.append(write_file(directory, partition, *batch))
    if files:
        directory.commit(manifest.append(files))


def write_file(
    directory: TopicDirectory, partition: int, start: int, end: int, epoch: int, records: list[Record]
) -> Entry:
    """Write the records of one leader epoch to a file, and return its entry, which is not committed yet."""
    if not records:
        return Entry(partition, start, end, epoch, DAY)
    directory.staging.mkdir(parents=True, exist_ok=True)
    path, file = directory.new_path(DAY, partition, start), directory.staging / "file.parquet"
    count = parquet.write(file, [table(partition, epoch, records)])
    size = file.stat().st_size
    directory.add_file(file, path)
    newest = max(record.timestamp or 0 for record in records)
    return Entry(partition, start, end, epoch, DAY, records[0].offset, count, newest, size, path)


def table(partition: int, epoch: int, records: list[Record]) -> pa.Table:
    """Return records as a table with the archive's schema."""
    rows = [
        {
            "partition": partition,
            "offset": record.offset,
            "leader_epoch": epoch,
            "timestamp": (record.timestamp or 0) * 1000,
            "timestamp_type": 0,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, schema=parquet.SCHEMA)


def _batches(log: Log, at: Partition, start: int, stop: int) -> list[tuple[int, int, int, list[Record]]]:
    """Return the records `[start, stop)` by leader epoch: first offset, next offset, epoch and records."""
    cursor = log.cursor({at: start})
    parts: list[tuple[int, int, int, list[Record]]] = []
    while start < stop:
        for batch in cursor.poll(0):
            end, epoch = min(batch.next_offset, stop), batch.leader_epoch
            records = [record for record in batch.records if start <= record.offset < end]
            if parts and parts[-1][2] == epoch:
                begin, _, _, former = parts.pop()
                parts.append((begin, end, epoch, [*former, *records]))
            elif start < end:
                parts.append((start, end, epoch, records))
            start = end
    return parts
