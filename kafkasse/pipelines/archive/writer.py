"""One commit of an archive: plan which offsets to archive, let Spark write them, check the files, and commit them.

    newest commit + offsets that Kafka holds ─▶ segments ─▶ Spark ─▶ staged files ─▶ check ─▶ move ─▶ commit

A segment is a range of offsets with one leader epoch and one day, so it becomes one entry of the manifest, or several if its
records fill several files. The day is that of the highest timestamp so far, so that the offsets of two days never overlap.

A commit contains each offset once, because the manifest rejects offsets that it already contains. If the process is killed
before the commit, the next run plans the same offsets again, and the files of the killed one are removed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from kafkasse.archive import parquet
from kafkasse.archive.directory import RUN, Conflict, TopicDirectory
from kafkasse.archive.manifest import Entry, InvalidManifest, Manifest
from kafkasse.errors import CommandError
from kafkasse.log import UNKNOWN_EPOCH
from kafkasse.pipelines.archive.offsets import Available, KafkaOffsets, Removed, Seen, Truncated
from kafkasse.pipelines.kafka.topics import READ_COMMITTED, connector
from kafkasse.pipelines.supervisor import Crashed

MAX_COMMIT_OFFSETS = 100_000  # of a partition
MAX_FILE_RECORDS = 1_000_000
MAX_CONFLICTS = 10
MAX_DAYS = 400  # segments of a partition in one commit
DAY_MS = 86_400_000
WRITE_OPTIONS = {
    "compression": "zstd",
    # Small row groups limit the memory of clients. Their size must be that of the records in memory, so they have no
    # dictionary and no page that is compressed before its end. Check it after each record, because one may have 1 MB.
    "parquet.block.size": str(parquet.ROW_GROUP_BYTES),
    "parquet.page.size.row.check.min": "1",
    "parquet.page.size.row.check.max": "1",
    "parquet.page.size": str(4 * parquet.ROW_GROUP_BYTES),
    "parquet.page.row.count.limit": str(parquet.ROW_GROUP_BYTES),
    "parquet.enable.dictionary": "false",
    "parquet.page.write-checksum.enabled": "true",
    "maxRecordsPerFile": str(MAX_FILE_RECORDS),
}

T = TypeVar("T")
logger = logging.getLogger("kafkasse.pipeline")


class ArchiveRange(NamedTuple):
    """Offsets `[start, end)` of a partition with one leader epoch and one day."""

    partition: int
    start: int
    end: int
    epoch: int
    day: str


class Written(NamedTuple):
    """A file that Spark wrote: its first and last offset, the number of its records, and their highest timestamp."""

    first: int
    last: int
    records: int
    max_timestamp: int
    file: Path


@dataclass(frozen=True)
class Plan:
    """What a commit will contain."""

    manifest: Manifest  # the newest manifest, without the offsets that Kafka lost in a truncation
    segments: Sequence[ArchiveRange]  # what to archive, in the order of partitions and offsets
    seen: Mapping[int, tuple[Seen, Seen]]  # the first and the last record of each partition with records
    is_complete: bool  # whether Kafka holds no more committed records now


class Committed(NamedTuple):
    """What a commit contained."""

    records: int
    lost: int  # the number of offsets that Kafka removed before they were archived
    is_complete: bool  # see Plan


def archive(spark: SparkSession, kafka: Mapping[str, str], directory: TopicDirectory) -> Committed:
    """Archive the next records of a topic, as one commit.

    Raises:
        CommandError: another process archives the same topic.
        Crashed: the log was truncated while Spark read it. Another attempt may succeed.
        Removed: Kafka removed records meanwhile. Another attempt may succeed.
        InvalidManifest: the newest commit is damaged.
    """
    before = directory.read()
    with KafkaOffsets(spark, kafka, directory.topic) as offsets:
        plan = make_plan(before, offsets)
        if not plan.segments and plan.manifest is before:
            return Committed(0, 0, is_complete=True)
        with directory.staging_for(RUN) as staging:
            if plan.seen:
                _write(spark, kafka, directory.topic, plan.segments, staging / "files")
            _check_unchanged(offsets, plan)
            files = {segment: _describe(segment, staging / "files") for segment in plan.segments}
            _check_complete(plan, files)
            entries = [entry for segment, written in files.items() for entry in _add_files(directory, segment, written)]
            directory.keep(before.paths - plan.manifest.paths)
            _commit(directory, before, plan, entries)
            _log_truncated(before, plan.manifest)
    return Committed(sum(entry.records for entry in entries), _lost(plan), plan.is_complete)


# The plan.


def make_plan(manifest: Manifest, offsets: KafkaOffsets) -> Plan:
    """Return what to archive next."""
    segments: list[ArchiveRange] = []
    seen = {}
    is_complete = True
    for partition, available in sorted(offsets.available().items()):
        manifest, start, first = _start(manifest, offsets, partition, available)
        end = min(available.end, start + MAX_COMMIT_OFFSETS)
        last = offsets.last(partition, first.offset, end) if first else None
        is_complete = is_complete and end == available.end
        if first is not None and last is not None:
            seen[partition] = first, last
            segments += _segments(manifest, offsets, partition, start, end, first, last)
        elif start < end:  # only transaction markers and records that Kafka compacted
            segments.append(ArchiveRange(partition, start, end, *_last(manifest, partition)))
    return Plan(manifest, segments, seen, is_complete)


def _start(
    manifest: Manifest, offsets: KafkaOffsets, partition: int, available: Available
) -> tuple[Manifest, int, Seen | None]:
    """Return the manifest without lost records, the offset to start at, and the first record from there on."""
    while True:
        archived = manifest.end(partition)
        start = max(available.start, archived if archived is not None else available.start)
        epoch = _last(manifest, partition)[0] if archived == start else UNKNOWN_EPOCH
        try:
            if start > available.end:
                raise Truncated(available.end)
            first = offsets.first(partition, start, available.end, epoch) if start < available.end else None
            return manifest, start, first
        except Truncated as truncated:
            manifest = manifest.truncate(partition, min(truncated.end, start - 1))


def _last(manifest: Manifest, partition: int) -> tuple[int, str]:
    """Return the leader epoch and the day at the end of a partition of the archive."""
    entries = manifest.partitions.get(partition)
    return (entries[-1].epoch, entries[-1].day) if entries else (UNKNOWN_EPOCH, _day_of(0))


def _segments(
    manifest: Manifest, offsets: KafkaOffsets, partition: int, start: int, end: int, first: Seen, last: Seen
) -> Iterator[ArchiveRange]:
    """Yield the segments of the offsets `[start, end)`, whose first and last records are known."""
    epochs = {record.offset: record.epoch for record in offsets.epoch_starts(partition, first, last)}
    epochs = {start: first.epoch} | {at: epoch for at, epoch in epochs.items() if at > first.offset}
    days = {start: max(_last(manifest, partition)[1], _day_of(first.timestamp))}
    while len(days) < MAX_DAYS:
        later = offsets.at_time(partition, _midnight_after(days[max(days)]))
        if later is None or later.offset >= end or later.timestamp > _now_ms():
            break
        days[max(start, later.offset)] = _day_of(later.timestamp)
    cuts = sorted({*epochs, *days})
    for low, high in pairwise([*cuts, end]):
        yield ArchiveRange(partition, low, high, _at(epochs, low), _at(days, low))


def _at(starts: Mapping[int, T], offset: int) -> T:
    return starts[max(start for start in starts if start <= offset)]


def _day_of(timestamp_ms: int) -> str:
    """Return the UTC day of a timestamp, today at the latest. Kafka's producers may set any timestamp."""
    at_ms = min(max(timestamp_ms, 0), _now_ms())
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)).date().isoformat()


def _midnight_after(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000) + DAY_MS


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def _check_unchanged(offsets: KafkaOffsets, plan: Plan) -> None:
    """Check that the log was not truncated while Spark read it.

    The records after a truncation have a newer leader epoch. If the last record still has its offset and epoch, all records
    before it are unchanged.

    Raises:
        Crashed: the log was truncated.
    """
    for partition, (_, last) in plan.seen.items():
        with suppress(Removed):  # by retention, which does not change the records before
            if offsets.first(partition, last.offset, last.offset + 1) != last:
                raise Crashed(f"the log of partition {partition} was truncated while it was archived")


# The files.


def _write(
    spark: SparkSession, kafka: Mapping[str, str], topic: str, segments: Sequence[ArchiveRange], staged: Path
) -> None:
    """Let Spark copy the records of the segments to staged files, one directory for each segment."""
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for segment in segments:
        starts.setdefault(str(segment.partition), segment.start)
        ends[str(segment.partition)] = segment.end
    records = (
        spark.read.format("kafka")
        .options(**connector({**kafka, **READ_COMMITTED}))
        .option("assign", json.dumps({topic: [int(partition) for partition in starts]}))
        .option("startingOffsets", json.dumps({topic: starts}))
        .option("endingOffsets", json.dumps({topic: ends}))
        .option("includeHeaders", "true")
        .load()
    )
    rows = records.select(
        "partition",
        "offset",
        _of_segment(segments, "epoch").cast("int").alias("leader_epoch"),
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        F.col("partition").alias("_partition"),
        _of_segment(segments, "start").cast("long").alias("_segment"),
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    ordered = rows.sortWithinPartitions("_partition", "_segment", "offset")
    target = f"file://{staged.absolute()}"  # Spark does not decode a URI
    ordered.write.options(**WRITE_OPTIONS).partitionBy("_partition", "_segment").parquet(target)


def _of_segment(segments: Iterable[ArchiveRange], name: str) -> Column:
    """Return a number of the segment of each record."""
    cases: dict[int, str] = {}  # of each partition; as text, because thousands of Column objects take a minute
    for segment in sorted(segments, key=lambda segment: segment.start, reverse=True):
        case = f" WHEN offset >= {segment.start} THEN {getattr(segment, name)}"
        cases[segment.partition] = cases.get(segment.partition, "") + case
    of_partitions = " ".join(f"WHEN {partition} THEN CASE{case} END" for partition, case in cases.items())
    return F.expr(f"CASE partition {of_partitions} END")


def _describe(segment: ArchiveRange, staged: Path) -> list[Written]:
    """Return the files of a segment in the order of their offsets."""
    files = staged.glob(f"_partition={segment.partition}/_segment={segment.start}/*.parquet")
    return sorted(Written(*parquet.describe(file), file) for file in files)


def _check_complete(plan: Plan, files: Mapping[ArchiveRange, Sequence[Written]]) -> None:
    """Check that the files contain the first and the last record of each partition. Raise Crashed if they do not."""
    for partition, (first, last) in plan.seen.items():
        written = [
            file for segment, of_segment in files.items() if segment.partition == partition for file in of_segment
        ]
        if not written or (written[0].first, written[-1].last) != (first.offset, last.offset):
            raise Crashed(f"Spark did not write all records of partition {partition}")


def _add_files(directory: TopicDirectory, segment: ArchiveRange, files: Sequence[Written]) -> Iterator[Entry]:
    """Move the files of a segment to their final paths, and yield an entry for each. They account for all offsets."""
    if not files:
        yield Entry(*segment)  # only transaction markers, and records that Kafka compacted
        return
    start = segment.start
    for written, following in zip(files, [*files[1:], None], strict=True):
        end = following.first if following else segment.end
        path = directory.new_path(segment.day, segment.partition, start)
        size = written.file.stat().st_size
        # Until the commit, the file has a second link, because erase() removes uncommitted files with one link.
        os.link(written.file, written.file.with_suffix(".added"))
        directory.add_file(written.file, path)
        entry = segment._replace(start=start, end=end)
        yield Entry(*entry, written.first, written.records, written.max_timestamp, size, path)
        start = end


def _commit(directory: TopicDirectory, before: Manifest, plan: Plan, entries: Sequence[Entry]) -> None:
    """Commit the entries. If compaction or erasure has committed meanwhile, add them to its commit.

    Raises:
        CommandError: another process has archived the same offsets.
    """
    manifest = plan.manifest
    for _ in range(MAX_CONFLICTS):
        try:
            directory.commit(manifest.append(entries))
            return
        except Conflict:
            if plan.manifest is not before:  # the other process may have changed the offsets that were lost
                break
            manifest = directory.read()
        except InvalidManifest as error:
            raise CommandError(
                f"another process archives {directory.topic} to {directory.path}; stop one of them"
            ) from error
    raise Crashed(f"another process changes the archive of {directory.topic}")


def _log_truncated(before: Manifest, after: Manifest) -> None:
    for partition in before.partitions:
        end, start = before.end(partition) or 0, after.end(partition) or 0
        if start < end:
            logger.error(
                "The log of %s/%d was truncated or lost, so the archive no longer contains its former offsets %d to %d.",
                before.topic, partition, start, end - 1,
            )  # fmt: skip


def _lost(plan: Plan) -> int:
    """Return how many offsets Kafka removed between those that are archived and those of the plan."""
    starts: dict[int, int] = {}
    for segment in plan.segments:
        starts.setdefault(segment.partition, segment.start)
    return sum(start - (plan.manifest.end(partition) or start) for partition, start in starts.items())
