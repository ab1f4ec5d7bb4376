"""MemoryLog: a log in the memory of this process, for tests, demos and development without Kafka.

A reader sees what it would see with Kafka: partitions, offsets, timestamps, retention, transaction markers, and topics that
are deleted and recreated. This module does no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition
from typing import NamedTuple

from kafkasse.errors import TopicNotAvailable
from kafkasse.log import Batch, OffsetOutOfRange, OffsetRange, Partition, Topic

MAX_BATCH_RECORDS = 500


class MemoryRecord(NamedTuple):
    """Implements log.Record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class _PartitionLog:
    """The offsets `[start, end)` of one partition. Offsets without a record in `records` are transaction markers."""

    start: int = 0
    end: int = 0
    records: list[MemoryRecord] = field(default_factory=list)


class MemoryLog:
    """Implements log.Log. Writers call create(), append(), append_marker(), drop_before() and delete().

    Attributes:
        changed: notified after each change that a cursor may wait for.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._partitions: dict[Partition, _PartitionLog] = {}
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
        """Delete the records before `offset`, as retention does."""
        with self.changed:
            partition_log = self._partitions[Partition(topic, partition)]
            partition_log.start = offset
            partition_log.records = [record for record in partition_log.records if record.offset >= offset]

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        return {topic: self._topics[topic] for topic in topics if topic in self._topics}

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        return {
            each: OffsetRange(self._partition_log(each).start, self._partition_log(each).end) for each in partitions
        }

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        return {each: self._offset_at(self._partition_log(each), timestamp) for each, timestamp in timestamps.items()}

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, int]:
        return {}  # a log in memory has no leaders

    def cursor(
        self,
        offsets: Mapping[Partition, int],
        tail: bool = False,
        shared: bool = False,
        epochs: Mapping[Partition, int] | None = None,
    ) -> MemoryCursor:
        return MemoryCursor(self, offsets)

    def close(self) -> None:
        pass

    def _partition_log(self, partition: Partition) -> _PartitionLog:
        if partition not in self._partitions:
            raise TopicNotAvailable("A topic of this stream no longer exists, or the server may no longer read it.")
        return self._partitions[partition]

    @staticmethod
    def _offset_at(partition_log: _PartitionLog, timestamp: int) -> int:
        later = (record.offset for record in partition_log.records if (record.timestamp or -1) >= timestamp)
        return next(later, partition_log.end)

    def read(self, partition: Partition, offset: int) -> Batch | None:
        """Return the next batch from `offset` on, or None if there is none yet.

        Raises:
            OffsetOutOfRange: the partition does not hold `offset`.
        """
        partition_log = self._partitions.get(partition)
        if partition_log is None or offset == partition_log.end:
            return None
        if not partition_log.start <= offset <= partition_log.end:
            raise OffsetOutOfRange([partition])
        records = [record for record in partition_log.records if record.offset >= offset][:MAX_BATCH_RECORDS]
        full = len(records) == MAX_BATCH_RECORDS
        return Batch(partition, records, records[-1].offset + 1 if full else partition_log.end)


class MemoryCursor:
    """Implements log.Cursor."""

    def __init__(self, log: MemoryLog, offsets: Mapping[Partition, int]) -> None:
        self._log = log
        self._offsets = dict(offsets)

    def seek(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int] | None = None) -> None:
        self._offsets.update(offsets)

    def remove(self, partitions: Iterable[Partition]) -> None:
        for each in partitions:
            self._offsets.pop(each, None)

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline = time.monotonic() + timeout_s
        with self._log.changed:
            while not (batches := self._ready()) and (left := deadline - time.monotonic()) > 0:
                self._log.changed.wait(left)
        return batches

    def close(self) -> None:
        self._offsets = {}

    def _ready(self) -> list[Batch]:
        batches = [batch for each, offset in self._offsets.items() if (batch := self._log.read(each, offset))]
        self._offsets.update({batch.partition: batch.next_offset for batch in batches})
        return batches
