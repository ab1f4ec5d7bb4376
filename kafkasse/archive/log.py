"""ArchivedLog: a cluster with an archive. Readers receive the records that Kafka has removed from the archive, then Kafka's.

    cursor at an offset ─▶ Kafka holds it ── yes ─▶ Kafka's cursor
                            ▲         │ no: out of range
         at Kafka's start   │         ▼
                            └─── the archive holds it ── no ─▶ OffsetOutOfRange with the exact end of the hole

A cursor asks Kafka first, so that an archive costs nothing where Kafka holds the records. Offsets from Kafka's start on are
never read from the archive. Kafka compares the leader epoch of the last archived record with its own, and each archive
belongs to one topic ID. So records of a truncated log or of a recreated topic are never mixed with those of the current log.

Files are read in threads. While the archive cannot be read, its readers wait, and other readers are not affected. A damaged
file counts as a hole.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

import gevent
from gevent.lock import RLock

from kafkasse.archive import parquet
from kafkasse.archive.directory import ArchiveDirectory, NotAnArchive
from kafkasse.archive.manifest import Entry, InvalidManifest, Manifest
from kafkasse.archive.parquet import DamagedFile
from kafkasse.errors import ArchiveUnavailable, KafkaUnavailable, Unavailable
from kafkasse.log import (
    UNKNOWN_EPOCH,
    Batch,
    Cursor,
    Epochs,
    Log,
    OffsetAndEpoch,
    OffsetOutOfRange,
    OffsetRange,
    Offsets,
    Partition,
    Record,
    Topic,
    Total,
)
from kafkasse.process.limited_log import LimitedLog
from kafkasse.process.threads import Threads

REMOVED = "removed by retention"
DAMAGED = "the archive is damaged"
MAX_MANIFEST_AGE_S = 1.0  # how long a manifest is used, unless a reader needs an offset that it does not list
RETRY_S = 1.0  # how long readers wait after the archive could not be read
READ_TIMEOUT_S = 5.0  # a file system that hangs must not block a stream for longer
MAX_LOOKUP_S = 1.0  # a lookup also delays clients that need only Kafka's records
MAX_THREADS = 4

Result = TypeVar("Result")
log = logging.getLogger(__name__)

# Each is a metric and the value of its label `reason`.
FILES_READ, BYTES_READ = ("archive_files_read", ""), ("archive_bytes_read", "")  # bytes of uncompressed records
UNAVAILABLE_ERRORS, DAMAGED_ERRORS = ("archive_errors", "unavailable"), ("archive_errors", "damaged")


class ArchiveReader:
    """Reads an archive in threads, for all clients of a process. A call blocks its greenlet at most for READ_TIMEOUT_S.

    Args:
        topic_prefix: the prefix that the names of topics have in Kafka.

    Attributes:
        totals: the files and bytes read and the errors, by metric and reason.
    """

    def __init__(self, directory: ArchiveDirectory, topic_prefix: str = "") -> None:
        self.totals: Counter[tuple[str, str]] = Counter(
            dict.fromkeys((FILES_READ, BYTES_READ, UNAVAILABLE_ERRORS, DAMAGED_ERRORS), 0)
        )
        self._directory = directory
        self._topic_prefix = topic_prefix
        self._threads = Threads(MAX_THREADS)
        self._lock = RLock()
        self._manifests: dict[tuple[str, str], tuple[float, Manifest]] = {}
        self._hung_at = self._late_at = float("-inf")
        self._limited = LimitedLog()

    def manifest(
        self, topic: str, topic_id: str, since: float | None = None, timeout_s: float | None = None
    ) -> Manifest:
        """Return the manifest of a topic, at most MAX_MANIFEST_AGE_S old, or older if it cannot be read now.

        It is empty if the topic has no archive. A topic without an ID has none, because it may have been recreated.

        Args:
            topic: the name of the topic without the prefix.
            topic_id: the first characters of the topic ID, or "".
            since: if given, return only a manifest that was read at or after this time of time.monotonic().
            timeout_s: the maximum wait. In the RETRY_S after a timeout, calls with a timeout do not wait.

        Raises:
            ArchiveUnavailable: the archive cannot be read now, or not within `timeout_s`.
        """
        key = topic, topic_id
        if not topic_id:
            return Manifest(*key)
        oldest = time.monotonic() - MAX_MANIFEST_AGE_S if since is None else since
        read_at, known = self._manifests.get(key, (float("-inf"), None))
        if known is not None and read_at >= oldest:
            return known
        result: Manifest | ArchiveUnavailable | None = None
        if timeout_s is None or time.monotonic() >= self._late_at + RETRY_S:
            reading = gevent.spawn(self._new_manifest, topic, topic_id, oldest)  # continues after the timeout
            reading.join(timeout_s)
            result = reading.value
            if not reading.ready():
                self._late_at = time.monotonic()
                result = self._unavailable(f"no answer within {timeout_s:g} s")
        if isinstance(result, Manifest):
            return result
        if known is None or since is not None:
            raise result or self._unavailable()
        return known

    def _new_manifest(self, topic: str, topic_id: str, oldest: float) -> Manifest | ArchiveUnavailable:
        """Return the manifest as it was at `oldest` or later, or an error."""
        with self._lock:  # of the callers that wait, the first reads the manifest for all
            read_at, known = self._manifests.get((topic, topic_id), (float("-inf"), None))
            if known is not None and read_at >= oldest:
                return known
            began_at = time.monotonic()
            try:
                manifest = self._run(lambda: self._read_manifest(topic, topic_id, known))
            except ArchiveUnavailable as error:
                return error
            self._manifests[topic, topic_id] = began_at, manifest
            return manifest

    def _read_manifest(self, topic: str, topic_id: str, known: Manifest | None) -> Manifest:
        directory = self._directory.find(self._topic_prefix + topic, topic_id)
        version = known.version if known is not None else 0
        newest = directory.newest_version() if directory is not None else 0
        if newest < version:
            raise NotAnArchive(f"the commits of the topic {topic} have disappeared")
        if directory is None:
            return Manifest(topic, topic_id)
        return known if known is not None and newest == version else directory.read()

    def read(self, manifest: Manifest, entry: Entry, offset: int) -> tuple[Sequence[Record], int]:
        """Return the next records of an entry, and the next offset.

        Raises:
            DamagedFile: the file is damaged.
            FileNotFoundError: the file does not exist. Another process may have replaced it.
            ArchiveUnavailable: the archive cannot be read now.
        """
        if not entry.path:
            return (), entry.end
        path = self._path(manifest, entry)
        records, end = self._run(lambda: parquet.read(path, entry, offset))
        self.totals[BYTES_READ] += records.nbytes
        return records, end

    def find_timestamp(self, manifest: Manifest, entry: Entry, timestamp_ms: int) -> int | None:
        """Return the first offset of an entry with a timestamp at or after `timestamp_ms`, or None. Raises as read()."""
        path = self._path(manifest, entry)
        return self._run(lambda: parquet.find_timestamp(path, entry, timestamp_ms))

    def _path(self, manifest: Manifest, entry: Entry) -> Path:
        return self._directory.topic(manifest.topic, manifest.topic_id).path / entry.path

    def _run(self, call: Callable[[], Result]) -> Result:
        """Return `call()`, which runs in a thread."""
        if time.monotonic() < self._hung_at + RETRY_S:
            raise self._unavailable()
        timeout = gevent.Timeout(READ_TIMEOUT_S)
        try:
            with timeout:
                result: Result = self._threads.run(self._checked, call)
            return result
        except (FileNotFoundError, DamagedFile):
            raise
        except (OSError, NotAnArchive, InvalidManifest) as error:
            raise self._unavailable(str(error)) from error
        except gevent.Timeout as error:
            if error is not timeout:
                raise
            self._hung_at = time.monotonic()
            raise self._unavailable(f"no answer within {READ_TIMEOUT_S:g} s") from error

    def _checked(self, call: Callable[[], Result]) -> Result:
        """Return `call()`. If a file is missing, raise NotAnArchive if the whole archive is."""
        try:
            return call()
        except FileNotFoundError:
            self._directory.check()  # the whole archive may be missing, not only one file
            raise

    def _unavailable(self, problem: str = "") -> ArchiveUnavailable:
        self.totals[UNAVAILABLE_ERRORS] += 1
        if problem and self._limited.is_due("archive"):
            log.error("The archive cannot be read, so clients that need it wait: %s", problem)
        return ArchiveUnavailable("The server cannot read its archive of older records now. Retry in a few seconds.")

    def close(self) -> None:
        """End the threads."""
        self._threads.end()


class ArchivedLog:
    """Implements log.Log.

    Attributes:
        recent: the cluster without its archive. Snapshots read it, because reading the whole archive would take too long.
    """

    def __init__(self, log: Log, reader: ArchiveReader) -> None:
        self.recent = log
        self.reader = reader
        self._topic_ids: dict[str, str] = {}
        self._cursors: WeakSet[ArchiveCursor] = WeakSet()

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        wanted = list(topics)
        described = self.recent.describe(wanted)
        for name in wanted:
            topic = described.get(name)
            if topic is None:
                self._topic_ids.pop(name, None)
            elif topic.error is None:
                self._topic_ids[name] = topic.topic_id
        return described

    def topic_names(self) -> set[str]:
        return self.recent.topic_names()

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        ranges = self.recent.offset_ranges(partitions)
        now = time.monotonic()
        starts = {partition: self._first(partition, offsets.start, now) for partition, offsets in ranges.items()}
        return {partition: offsets._replace(start=starts[partition]) for partition, offsets in ranges.items()}

    def _first(self, partition: Partition, kafka_start: int, now: float) -> int:
        """Return the first offset that the archive or Kafka holds."""
        if not kafka_start:
            return 0
        try:
            first = self._manifest(partition).first(partition.partition)
            if first is None:  # the topic may have been archived since
                first = self._manifest(partition, since=now).first(partition.partition)
        except ArchiveUnavailable:
            return 0  # a client with an older offset waits for the archive, instead of receiving a gap
        return kafka_start if first is None else min(first, kafka_start)

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        offsets = self.recent.offsets_at(timestamps)
        starts = {key: kept.start for key, kept in self.recent.offset_ranges(offsets).items() if kept.start}
        # If Kafka holds earlier records, the archive contains this time only if the clocks of producers differ.
        optional = {partition: start for partition, start in starts.items() if offsets[partition] > start}
        for partition, start in starts.items():
            if partition not in optional:
                self._include_archive(offsets, partition, timestamps[partition], start)
        with gevent.Timeout(MAX_LOOKUP_S, False):
            for partition, start in optional.items():
                with suppress(ArchiveUnavailable):
                    self._include_archive(offsets, partition, timestamps[partition], start)
        return offsets

    def _include_archive(self, offsets: dict[Partition, int], partition: Partition, timestamp: int, start: int) -> None:
        archived = self._archived_offset_at(partition, timestamp, start)
        if archived is not None:
            offsets[partition] = min(offsets[partition], archived)

    def _archived_offset_at(self, partition: Partition, timestamp: int, kafka_start: int) -> int | None:
        """Return the first archived offset at or after a timestamp, if the timestamp is older than Kafka's records."""
        manifest = self._manifest(partition)
        entries = manifest.partitions.get(partition.partition, ())
        older = [entry for entry in entries if entry.start < kafka_start and entry.path]
        # Timestamps in the future do not count, except at the end. They would be the answer for all recent times.
        counted = [entry for entry in older if entry is older[-1] or entry.max_timestamp <= time.time() * 1000]
        if all(entry.max_timestamp < timestamp for entry in counted):
            return None
        for entry in older:
            if entry.max_timestamp >= timestamp:
                try:
                    offset = self.reader.find_timestamp(manifest, entry, timestamp)
                except (DamagedFile, FileNotFoundError):
                    offset = entry.start  # the cursor reports the damage, or finds the file that has replaced this one
                if offset is not None:
                    return offset
        return None

    def epoch_ends(self, epochs: Epochs) -> dict[Partition, OffsetAndEpoch]:
        ends = self.recent.epoch_ends(epochs)
        for partition, end in ends.items():
            with suppress(ArchiveUnavailable):
                archived = self._manifest(partition).epoch_end(partition.partition, epochs[partition])
                if archived is not None and archived < end.offset:
                    ends[partition] = OffsetAndEpoch(archived, UNKNOWN_EPOCH)
        return ends

    def recreated(self, epochs: Epochs) -> Set[Partition]:
        return self.recent.recreated(epochs)

    def cursor(
        self,
        offsets: Offsets,
        tail: bool = False,
        epochs: Epochs | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> ArchiveCursor:
        cursor = ArchiveCursor(self, offsets, tail, epochs, topic_ids)
        self._cursors.add(cursor)
        return cursor

    def totals(self) -> list[Total]:
        reading = sum(cursor.is_in_archive for cursor in self._cursors)
        read = [Total(metric, count, reason) for (metric, reason), count in self.reader.totals.items()]
        return [Total("archive_readers", reading), *read, *self.recent.totals()]

    def close(self) -> None:
        self.reader.close()
        self.recent.close()

    def topic_id(self, topic: str) -> str:
        """Return the first characters of the ID of a topic as describe() returned it last, or "" if it is unknown."""
        return self._topic_ids.get(topic, "")

    def _manifest(self, partition: Partition, since: float | None = None) -> Manifest:
        return self.reader.manifest(partition.topic, self.topic_id(partition.topic), since, MAX_LOOKUP_S)


@dataclass(slots=True, eq=False)
class _PartitionState:
    """A partition of a cursor."""

    offset: int  # the next offset to read
    epoch: int  # the leader epoch of the record before `offset`, or UNKNOWN_EPOCH
    topic_id: str  # of the topic to which the offset belongs
    path: str = ""  # the file that was read last
    until: int | None = None  # where Kafka begins, while the partition is read from the archive; None: read from Kafka
    retry_at: float = 0.0  # when to read the archive again after it was not available


class ArchiveCursor:
    """Implements log.Cursor; see the docstring of this module."""

    def __init__(
        self,
        archived_log: ArchivedLog,
        offsets: Offsets,
        tail: bool,
        epochs: Epochs | None,
        topic_ids: Mapping[str, str] | None,
    ) -> None:
        self._log = archived_log
        self._partitions: dict[Partition, _PartitionState] = {}
        for partition, offset in offsets.items():
            topic_id = (topic_ids or {}).get(partition.topic) or archived_log.topic_id(partition.topic)
            epoch = (epochs or {}).get(partition, UNKNOWN_EPOCH)
            self._partitions[partition] = _PartitionState(offset, epoch, topic_id)
        self._archived: dict[Partition, _PartitionState] = {}  # the partitions that are read from the archive now
        self._is_kafkas_turn = False
        self._kafka: Cursor = archived_log.recent.cursor(offsets, tail, epochs, topic_ids)

    @property
    def is_in_archive(self) -> bool:
        """Whether the cursor reads a partition from the archive."""
        return bool(self._archived)

    def seek(self, offsets: Offsets, epochs: Epochs | None = None, topic_ids: Mapping[str, str] | None = None) -> None:
        for partition, offset in offsets.items():
            before = self._partitions.get(partition)
            # The offsets of a partition that the cursor reads still belong to the same topic.
            known = before.topic_id if before else (topic_ids or {}).get(partition.topic)
            epoch = (epochs or {}).get(partition, UNKNOWN_EPOCH)
            self._partitions[partition] = _PartitionState(offset, epoch, known or self._log.topic_id(partition.topic))
            self._archived.pop(partition, None)
        self._kafka.seek(offsets, epochs, topic_ids)

    def remove(self, partitions: Iterable[Partition]) -> None:
        removed = list(partitions)
        for partition in removed:
            self._partitions.pop(partition, None)
            self._archived.pop(partition, None)
        self._kafka.remove(removed)

    def poll(self, timeout_s: float) -> list[Batch]:
        if not self._archived:
            return self._poll_kafka(timeout_s)
        self._is_kafkas_turn = not self._is_kafkas_turn
        if self._is_kafkas_turn and (batches := self._poll_kafka(0.0)):
            return batches
        return self._read_archive() or self._poll_kafka(timeout_s)

    def close(self) -> None:
        self._partitions.clear()
        self._archived.clear()
        self._kafka.close()

    # Kafka.

    def _poll_kafka(self, timeout_s: float) -> list[Batch]:
        try:
            batches = self._kafka.poll(timeout_s)
        except OffsetOutOfRange as error:
            with suppress(Unavailable):  # Kafka's cursor raises the error again
                self._leave_kafka(error)
            return []
        for batch in batches:
            if (state := self._partitions.get(batch.partition)) is not None:
                state.offset, state.epoch = batch.next_offset, batch.leader_epoch
        return batches

    def _leave_kafka(self, error: OffsetOutOfRange) -> None:
        """Read those partitions from the archive that Kafka no longer holds and the archive does.

        Raises:
            OffsetOutOfRange: some partitions can be read neither from Kafka nor from the archive.
        """
        unreadable, diverged_at = dict(error.unreadable), dict(error.diverged_at)
        others = [partition for partition in error.partitions if partition in diverged_at or partition in unreadable]
        partitions = {
            partition: self._partitions[partition]
            for partition in error.partitions
            if partition in self._partitions and partition not in others
        }
        now = time.monotonic()
        for partition, state in [(at, self._partitions[at]) for at in diverged_at if at in self._partitions]:
            with suppress(ArchiveUnavailable):
                end = _epoch_end(partition, state, self._manifest(partition, state, now))
                if end is not None and end < diverged_at[partition].offset:
                    diverged_at[partition] = OffsetAndEpoch(end, UNKNOWN_EPOCH)
        for partition, offset_range in self._log.recent.offset_ranges(partitions).items():
            state = partitions[partition]
            if state.offset >= offset_range.start:
                others.append(partition)
                continue
            try:
                manifest = self._manifest(partition, state, now)
            except ArchiveUnavailable:
                continue  # Kafka's cursor raises the error again
            following = manifest.next_from(partition.partition, state.offset)
            end = _epoch_end(partition, state, manifest)
            if end is not None and end < state.offset:
                others.append(partition)
                diverged_at[partition] = OffsetAndEpoch(end, UNKNOWN_EPOCH)
            elif following != state.offset:
                others.append(partition)
                unreadable[partition] = min(offset_range.start, following or offset_range.start), REMOVED
            elif self._partitions.get(partition) is state:  # another greenlet may have called seek() meanwhile
                self._kafka.remove([partition])
                state.until = offset_range.start
                self._archived[partition] = state
        if others:
            raise OffsetOutOfRange(others, diverged_at, unreadable)

    def _manifest(self, partition: Partition, state: _PartitionState, since: float | None = None) -> Manifest:
        return self._log.reader.manifest(partition.topic, state.topic_id, since)

    # The archive.

    def _read_archive(self) -> list[Batch]:
        """Return the next batch of one partition. Partitions take turns."""
        for partition, state in list(self._archived.items()):
            if time.monotonic() < state.retry_at:
                continue
            try:
                batch = self._read_partition(partition, state)
            except Unavailable:
                state.retry_at = time.monotonic() + RETRY_S
                continue
            if self._archived.get(partition) is not state:
                continue  # another greenlet called seek(), remove() or close() meanwhile
            del self._archived[partition]
            self._archived[partition] = state  # the last one in the next turn
            if batch is not None:
                state.offset, state.epoch = batch.next_offset, batch.leader_epoch
                return [batch]
        return []

    def _read_partition(self, partition: Partition, state: _PartitionState) -> Batch | None:
        """Return the next records, or None if there are none now or the partition continues in Kafka.

        Raises:
            OffsetOutOfRange: the archive is damaged here.
            Unavailable: the archive cannot be read now, or Kafka does not answer.
        """
        assert state.until is not None  # noqa: S101 - the partition is read from the archive
        manifest = self._manifest(partition, state)
        entry = manifest.entry_at(partition.partition, state.offset)
        if entry is None or state.offset >= state.until:
            self._return_to_kafka(partition, state)
            return None
        try:
            before_kafka = replace(entry, end=min(entry.end, state.until))
            records, end = self._log.reader.read(manifest, before_kafka, state.offset)
        except (DamagedFile, FileNotFoundError) as error:
            newest = self._manifest(partition, state, since=time.monotonic())
            if newest.entry_at(partition.partition, state.offset) != entry:
                return None  # compaction or erasure has replaced the file: the next poll() reads the new one
            self._log.reader.totals[DAMAGED_ERRORS] += 1
            log.error("A file of the archive is damaged, so clients receive a gap: %s", error)
            damage_end = min(getattr(error, "end", None) or entry.end, state.until)
            raise OffsetOutOfRange([partition], unreadable={partition: (damage_end, DAMAGED)}) from error
        if entry.path != state.path:
            state.path = entry.path
            self._log.reader.totals[FILES_READ] += bool(entry.path)
        return Batch(partition, records, end, entry.epoch)

    def _return_to_kafka(self, partition: Partition, state: _PartitionState) -> None:
        """Continue in Kafka, unless the topic was recreated.

        If the archive has a hole here and Kafka does not hold the offset either, Kafka's cursor reports it.
        """
        if self._log.describe([partition.topic]).get(partition.topic, Topic(0, "")).topic_id != state.topic_id:
            raise KafkaUnavailable("The topic was recreated, and the stream is about to end.")
        if self._archived.pop(partition, None) is state:
            state.until = None
            known = {partition: state.epoch} if state.epoch != UNKNOWN_EPOCH else None
            self._kafka.seek({partition: state.offset}, known, {partition.topic: state.topic_id})


def _epoch_end(partition: Partition, state: _PartitionState, manifest: Manifest) -> int | None:
    """Return where the leader epoch of the last record read ends, or None. Kafka removes epochs with their records."""
    return None if state.epoch == UNKNOWN_EPOCH else manifest.epoch_end(partition.partition, state.epoch)
