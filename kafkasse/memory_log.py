"""A log in memory: a real one, kept in this process, for tests, demonstrations and work without Kafka.

It does what Kafka does as far as a reader can see: partitions, offsets, timestamps, retention, compaction holes,
transaction markers, topics deleted and made again.
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

BATCH_RECORDS_MAX = 500


class MemoryRecord(NamedTuple):
    """A record; see frame.Record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass
class _Slots:
    """One partition: offsets `first` up to `end`, of which those in `records` hold one and the others are holes."""

    first: int = 0
    end: int = 0
    records: list[MemoryRecord] = field(default_factory=list)


class MemoryLog:
    """See contract.Log. Writers call create(), append(), mark(), drop_before() and delete()."""

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._slots: dict[Partition, _Slots] = {}
        self._topic_ids = count(1)
        self.changed = Condition()

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic, or add partitions to it."""
        with self.changed:
            there = self._topics.get(topic)
            topic_id = there.topic_id if there else f"memory{next(self._topic_ids)}"
            self._topics[topic] = Topic(partitions, topic_id)
            for index in range(there.partitions if there else 0, partitions):
                self._slots[Partition(topic, index)] = _Slots()

    def delete(self, topic: str) -> None:
        """Delete a topic and all that it holds."""
        with self.changed:
            for index in range(self._topics.pop(topic).partitions):
                del self._slots[Partition(topic, index)]
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
        """Append one record. Returns its offset."""
        with self.changed:
            slots = self._slots[Partition(topic, partition)]
            when = time.time_ns() // 1_000_000 if timestamp is None else timestamp
            slots.records.append(MemoryRecord(slots.end, when, key, value, headers))
            slots.end += 1
            self.changed.notify_all()
            return slots.end - 1

    def mark(self, topic: str, partition: int = 0) -> None:
        """Take an offset without a record, as a transaction marker does."""
        with self.changed:
            self._slots[Partition(topic, partition)].end += 1
            self.changed.notify_all()

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """What retention does: offsets before `offset` are gone."""
        with self.changed:
            slots = self._slots[Partition(topic, partition)]
            slots.first = offset
            slots.records = [record for record in slots.records if record.offset >= offset]

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        return {topic: self._topics[topic] for topic in topics if topic in self._topics}

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        return {each: OffsetRange(self._there(each).first, self._there(each).end) for each in partitions}

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        return {each: self._offset_at(self._there(each), timestamp) for each, timestamp in timestamps.items()}

    def cursor(self, offsets: Mapping[Partition, int], tail: bool = False, shared: bool = False) -> MemoryCursor:
        return MemoryCursor(self, offsets)

    def close(self) -> None:
        pass

    def _there(self, partition: Partition) -> _Slots:
        if partition not in self._slots:
            raise TopicNotAvailable("A topic of this stream is not available.")
        return self._slots[partition]

    @staticmethod
    def _offset_at(slots: _Slots, timestamp: int) -> int:
        later = (record.offset for record in slots.records if (record.timestamp or -1) >= timestamp)
        return next(later, slots.end)

    def read(self, partition: Partition, offset: int) -> Batch | None:
        """What follows `offset`, or None where nothing does."""
        slots = self._slots.get(partition)
        if slots is None or offset == slots.end:
            return None
        if not slots.first <= offset <= slots.end:
            raise OffsetOutOfRange([partition])
        records = [record for record in slots.records if record.offset >= offset][:BATCH_RECORDS_MAX]
        full = len(records) == BATCH_RECORDS_MAX
        return Batch(partition, records, records[-1].offset + 1 if full else slots.end)


class MemoryCursor:
    """See contract.Cursor."""

    def __init__(self, log: MemoryLog, offsets: Mapping[Partition, int]) -> None:
        self._log = log
        self._offsets = dict(offsets)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self._offsets.update(offsets)

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
