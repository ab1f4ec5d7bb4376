"""MemoryLog: a log in the memory of this process, for tests, demos and development without Kafka.

A reader sees what it would see with Kafka: partitions, offsets, timestamps, leader epochs, retention, truncation,
transaction markers, partitions without a leader, errors, and topics that are deleted and recreated. This module does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from threading import Condition
from typing import NamedTuple

import gevent
from gevent.monkey import is_module_patched

from kafkasse.errors import KafkasseError, TopicNotAvailable
from kafkasse.log import (
    UNKNOWN_EPOCH,
    Batch,
    Epochs,
    OffsetAndEpoch,
    OffsetOutOfRange,
    OffsetRange,
    Offsets,
    Partition,
    PartitionsFailed,
    Topic,
)

MAX_BATCH_RECORDS = 500
POLL_INTERVAL_S = 0.005


class MemoryRecord(NamedTuple):
    """Implements log.Record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class _PartitionLog:
    """The offsets `[start, end)` of one partition. Offsets without a record in `records` are transaction markers.

    Attributes:
        epoch_starts: the first offset of each leader epoch, in ascending order of the epochs. Records before the first call
            of MemoryLog.elect_leader() have no known epoch, as in topics that were written by old brokers.
        has_leader: whether the partition can be read now.
        error: why the partition cannot be read any more, or None.
    """

    start: int = 0
    end: int = 0
    records: list[MemoryRecord] = field(default_factory=list)
    epoch_starts: dict[int, int] = field(default_factory=dict)
    has_leader: bool = True
    error: KafkasseError | None = None

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`."""
        return max((epoch for epoch, start in self.epoch_starts.items() if start <= offset), default=UNKNOWN_EPOCH)

    @property
    def next_epoch(self) -> int:
        """The epoch after the newest one."""
        return max(self.epoch_starts, default=UNKNOWN_EPOCH) + 1

    def end_of(self, epoch: int) -> OffsetAndEpoch:
        """Return the end of `epoch`, and `epoch`. If the log does not have it, both are of the newest epoch before it."""
        end = next((start for other, start in self.epoch_starts.items() if other > epoch), self.end)
        return OffsetAndEpoch(end, max((other for other in self.epoch_starts if other <= epoch), default=UNKNOWN_EPOCH))


class MemoryLog:
    """Implements log.Log. Writers call create(), append(), append_marker(), drop_before() and delete().

    Tests simulate faults with lose_leader(), elect_leader(), truncate(), fail_partition() and fail_topic().

    Attributes:
        changed: notified after each change that a cursor may wait for.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[Partition, _PartitionLog] = {}
        self._topic_errors: dict[str, KafkasseError] = {}
        self._topic_ids = count(1)
        self.changed = Condition()

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, or add partitions to an existing one. `partitions` is the new number of partitions."""
        with self.changed:
            existing = self._topics.get(topic)
            topic_id = existing.topic_id if existing else f"memory{next(self._topic_ids)}"
            self._topics[topic] = Topic(partitions, topic_id)
            for index in range(existing.partitions if existing else 0, partitions):
                self._partitions[Partition(topic, index)] = _PartitionLog()

    def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        with self.changed:
            for index in range(self._topics.pop(topic).partitions):
                del self._partitions[Partition(topic, index)]
            self.changed.notify_all()

    def append(
        self,
        topic: str,
        value: bytes | None,
        partition: int = 0,
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        """Append one record and return its offset. `timestamp` is in ms since the epoch; the default is now."""
        with self.changed:
            partition_log = self._partitions[Partition(topic, partition)]
            when = time.time_ns() // 1_000_000 if timestamp is None else timestamp
            partition_log.records.append(MemoryRecord(partition_log.end, when, key, value, headers))
            partition_log.end += 1
            self.changed.notify_all()
            return partition_log.end - 1

    def append_marker(self, topic: str, partition: int = 0) -> None:
        """Append a transaction marker: it takes up one offset, and readers receive no record for it."""
        with self.changed:
            self._partitions[Partition(topic, partition)].end += 1
            self.changed.notify_all()

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete the records before `offset`, as retention does. Like Kafka, forget the epochs that ended before."""
        with self.changed:
            partition_log = self._partitions[Partition(topic, partition)]
            partition_log.start = offset
            first = partition_log.epoch_at(offset)
            starts = partition_log.epoch_starts.items()
            partition_log.epoch_starts = {epoch: max(start, offset) for epoch, start in starts if epoch >= first}
            partition_log.records = [record for record in partition_log.records if record.offset >= offset]

    def lose_leader(self, topic: str, partition: int = 0) -> None:
        """Leave a partition without a leader: it cannot be read until elect_leader() is called."""
        self._partitions[Partition(topic, partition)].has_leader = False

    def elect_leader(self, topic: str, partition: int = 0) -> None:
        """Start the next leader epoch of a partition."""
        self._partitions[Partition(topic, partition)].has_leader = True
        self.truncate(topic, self._partitions[Partition(topic, partition)].end, partition)

    def truncate(self, topic: str, offset: int, partition: int = 0) -> None:
        """Lose the records from `offset` on, as after an unclean leader election."""
        with self.changed:
            partition_log = self._partitions[Partition(topic, partition)]
            epoch = partition_log.next_epoch
            kept = {epoch: start for epoch, start in partition_log.epoch_starts.items() if start < offset}
            partition_log.epoch_starts = kept | {epoch: offset}
            partition_log.end = offset
            partition_log.records = [record for record in partition_log.records if record.offset < offset]
            self.changed.notify_all()

    def fail_partition(self, topic: str, error: KafkasseError, partition: int = 0) -> None:
        """Let cursors report that they cannot read a partition any more."""
        with self.changed:
            self._partitions[Partition(topic, partition)].error = error
            self.changed.notify_all()

    def fail_topic(self, topic: str, error: KafkasseError | None) -> None:
        """Let describe() report this error about a topic, or describe the topic again if it is None."""
        if error is None:
            self._topic_errors.pop(topic, None)
        else:
            self._topic_errors[topic] = error

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        return {topic: self._describe(topic) for topic in topics if topic in self._topics}

    def _describe(self, topic: str) -> Topic:
        error = self._topic_errors.get(topic)
        return self._topics[topic] if error is None else Topic(0, "", error)

    def topic_id(self, topic: str) -> str:
        """Return the ID of a topic, or "" if it does not exist."""
        return self._topics[topic].topic_id if topic in self._topics else ""

    def topic_names(self) -> set[str]:
        return {topic for topic in self._topics if topic not in self._topic_errors}

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        readable = {partition: log for partition in partitions if (log := self._partition_log(partition)).has_leader}
        return {partition: OffsetRange(log.start, log.end, log.next_epoch - 1) for partition, log in readable.items()}

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        return {
            partition: self._offset_at(log, timestamp)
            for partition, timestamp in timestamps.items()
            if (log := self._partition_log(partition)).has_leader
        }

    def epoch_ends(self, epochs: Epochs) -> dict[Partition, OffsetAndEpoch]:
        return {
            partition: log.end_of(epoch)
            for partition, epoch in epochs.items()
            if (log := self._partition_log(partition)).has_leader and epoch < log.next_epoch
        }

    def recreated(self, epochs: Epochs) -> Set[Partition]:
        return set()

    def cursor(
        self,
        offsets: Offsets,
        tail: bool = False,
        epochs: Epochs | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> MemoryCursor:
        return MemoryCursor(self, offsets, epochs, topic_ids)

    @property
    def recent(self) -> MemoryLog:
        return self

    def totals(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass

    def _partition_log(self, partition: Partition) -> _PartitionLog:
        if partition not in self._partitions:
            raise TopicNotAvailable("A topic of this stream no longer exists, or the server may no longer read it.")
        return self._partitions[partition]

    @staticmethod
    def _offset_at(partition_log: _PartitionLog, timestamp: int) -> int:
        later = (
            record.offset
            for record in partition_log.records
            if record.timestamp is not None and record.timestamp >= timestamp
        )
        return next(later, partition_log.end)

    def read(self, partition: Partition, offset: int, epoch: int = UNKNOWN_EPOCH) -> Batch | None:
        """Return the next batch from `offset` on, or None if there is none yet.

        Args:
            partition: the partition to read.
            offset: where to start.
            epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.

        Raises:
            OffsetOutOfRange: the partition does not hold `offset` or does not know `epoch`, or the log was truncated before
                `offset`.
            PartitionsFailed: the partition cannot be read any more.
        """
        partition_log = self._partitions.get(partition)
        if partition_log is None or not partition_log.has_leader:
            return None
        if partition_log.error is not None:
            raise PartitionsFailed({partition: partition_log.error})
        if epoch >= partition_log.next_epoch:
            raise OffsetOutOfRange([partition])
        if epoch != UNKNOWN_EPOCH and (diverged_at := partition_log.end_of(epoch)).offset < offset:
            raise OffsetOutOfRange([partition], {partition: diverged_at})
        if not partition_log.start <= offset <= partition_log.end:
            raise OffsetOutOfRange([partition])
        if offset == partition_log.end:
            return None
        epoch = partition_log.epoch_at(offset)
        end = min(partition_log.end_of(epoch).offset, partition_log.end)
        records = [record for record in partition_log.records if offset <= record.offset < end][:MAX_BATCH_RECORDS]
        full = len(records) == MAX_BATCH_RECORDS
        return Batch(partition, records, records[-1].offset + 1 if full else end, epoch)


class MemoryCursor:
    """Implements log.Cursor."""

    def __init__(
        self, log: MemoryLog, offsets: Offsets, epochs: Epochs | None = None, topic_ids: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        self._offsets: dict[Partition, int] = {}
        self._epochs: dict[Partition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self.seek(offsets, epochs, topic_ids)

    def seek(self, offsets: Offsets, epochs: Epochs | None = None, topic_ids: Mapping[str, str] | None = None) -> None:
        with self._log.changed:
            for partition, offset in offsets.items():
                self._offsets[partition] = offset
                self._epochs.pop(partition, None)
                if topic_id := (topic_ids or {}).get(partition.topic):
                    self._topic_ids.setdefault(partition.topic, topic_id)
            self._epochs.update(epochs or {})
            self._log.changed.notify_all()

    def remove(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._offsets.pop(partition, None)
            self._epochs.pop(partition, None)
        topics = {partition.topic for partition in self._offsets}
        self._topic_ids = {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic in topics}

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._log.changed:
                batches = self._ready()
                left = deadline - time.monotonic()
                if batches or left <= 0:
                    return batches
                if is_module_patched("threading"):
                    self._log.changed.wait(left)
                    continue
            # In a unit test, wait() would block the thread and all its greenlets.
            gevent.sleep(min(left, POLL_INTERVAL_S))

    def close(self) -> None:
        self._offsets = {}

    def _ready(self) -> list[Batch]:
        """Return the next batches. An error of a partition is raised once no other partition has records."""
        batches: list[Batch] = []
        errors: list[OffsetOutOfRange | PartitionsFailed] = []
        for partition, offset in self._offsets.items():
            topic_id = self._log.topic_id(partition.topic)
            if topic_id and self._topic_ids.setdefault(partition.topic, topic_id) != topic_id:
                continue
            try:
                batch = self._log.read(partition, offset, self._epochs.get(partition, UNKNOWN_EPOCH))
            except (OffsetOutOfRange, PartitionsFailed) as error:
                errors.append(error)
            else:
                batches += [batch] if batch is not None else []
        for batch in batches:
            self._offsets[batch.partition] = batch.next_offset
            self._epochs[batch.partition] = batch.leader_epoch
        if errors and not batches:
            if isinstance(errors[0], PartitionsFailed):
                self.remove(errors[0].errors)
            raise errors[0]
        return batches
