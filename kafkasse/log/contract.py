"""The contract between kafkasse and the log that it reads: partitions, offsets, records and cursors.

A log is a Kafka cluster (kafkasse/kafka) or a log in memory (kafkasse/log/memory.py). tests/kafka/test_log_contract.py runs
the same tests against both. A log does not know about clients, event IDs or frames. A call may block its greenlet, but
never the process, and never longer than its timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

from kafkasse.errors import KafkasseError

TRUNCATED = "the log was truncated"
RECREATED = "the topic was deleted and recreated"
UNKNOWN_EPOCH = -1  # in place of a leader epoch


class Partition(NamedTuple):
    """One partition of one topic. Equal to kafka-python's TopicPartition, with the same hash."""

    topic: str
    partition: int


class Record(Protocol):
    """The attributes of a record that kafkasse reads. `timestamp` is in ms since the epoch; -1 or None if unknown."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class Topic(NamedTuple):
    """A topic that exists, or about which the cluster reports an error.

    Attributes:
        partitions: the number of partitions; 0 if there is an error.
        topic_id: the first characters of the topic ID, enough to recognize a recreated topic; "" if the cluster has no
            topic IDs, or if there is an error.
        error: why the topic cannot be described: TopicNotAvailable if we may not read it, Unavailable if the error is
            temporary. The topic may exist in both cases, so it must not be reported as deleted.
    """

    partitions: int
    topic_id: str
    error: KafkasseError | None = None


class OffsetRange(NamedTuple):
    """The offsets that a partition holds: `[start, end)`. Kafka calls them log start offset and log end offset.

    `epoch` is the current leader epoch, if it is known.
    """

    start: int
    end: int
    epoch: int = UNKNOWN_EPOCH


Topics = Mapping[str, Topic]
Ranges = Mapping[Partition, OffsetRange]
Offsets = Mapping[Partition, int]
Epochs = Mapping[Partition, int]


class OffsetAndEpoch(NamedTuple):
    """An offset and a leader epoch, or UNKNOWN_EPOCH: that of the record before the offset, unless stated otherwise."""

    offset: int
    epoch: int


# Where the log of a recreated topic differs from the former log. If the log starts after a reader's offset, this is only
# a guess: without topic IDs, a cursor cannot tell a recreated topic from one whose first records retention has removed.
RECREATED_AT = OffsetAndEpoch(0, UNKNOWN_EPOCH)


class Batch(NamedTuple):
    """Records of one partition and one leader epoch, in offset order.

    Attributes:
        partition: the partition.
        records: the records; there may be none.
        next_offset: the offset to read next. It may be greater than the last record's offset plus one: transaction markers
            and compacted records take up offsets too.
        leader_epoch: the leader epoch of the records, or UNKNOWN_EPOCH.
    """

    partition: Partition
    records: Sequence[Record]
    next_offset: int
    leader_epoch: int = UNKNOWN_EPOCH


class Gap(NamedTuple):
    """Offsets `[start, end)` that a client needs and that the log no longer holds.

    If the log was truncated, `end` is less than `start`: from `end` on, the log holds other records than the client read.
    `epoch` is the newest leader epoch before `end`, if it is known. With it, a reader that continues there notices the next
    truncation.
    """

    partition: Partition
    start: int
    end: int
    reason: str
    epoch: int = UNKNOWN_EPOCH

    @property
    def is_truncation(self) -> bool:
        """Whether the log was truncated, so that `end` is before `start`."""
        return self.end < self.start

    def from_offset(self, offset: int) -> Gap | None:
        """Return the part of this gap that affects a reader at `offset`, or None if the reader is already past it."""
        if self.is_truncation:
            return self._replace(start=offset) if offset > self.end else None
        return self._replace(start=max(self.start, offset)) if offset < self.end else None


def gaps_on_resuming(
    partition: Partition,
    offset: int,
    available: OffsetRange | None,
    diverged_at: OffsetAndEpoch | None = None,
    is_recreated: bool = False,
) -> list[Gap]:
    """Return the gaps with which a reader at `offset` resumes, each from the end of the one before.

    These rules apply to a stream that opens, and to a cursor that is out of range. A truncation comes first: the reader
    moves back to the first record that differs. If retention has removed this record, the reader then moves forward.

    Args:
        available: the offsets that the log holds; None if the partition has no leader now.
        diverged_at: after a truncation, the first offset at which the log differs from the records that were read, and the
            newest leader epoch before it. None: unknown, or the log was not truncated.
        is_recreated: the topic was recreated, so that the offset belongs to another log.
    """
    if is_recreated:
        return [Gap(partition, offset, available.start if available is not None else 0, RECREATED)]
    if available is None:
        return []
    start, end, _ = available
    if diverged_at is None or diverged_at.offset >= offset or (diverged_at == RECREATED_AT and offset < start):
        # If the bounds were looked up at different times, the start may be after the end. A reader can wait at the start.
        diverged_at = OffsetAndEpoch(max(start, end), UNKNOWN_EPOCH)
    gaps = []
    if diverged_at.offset < offset:
        gaps.append(Gap(partition, offset, diverged_at.offset, TRUNCATED, diverged_at.epoch))
        offset = diverged_at.offset
    if offset < start:
        gaps.append(Gap(partition, offset, start, "removed by retention"))
    return gaps


class Resumption(NamedTuple):
    """Where a reader continues in partitions that were out of range.

    Attributes:
        gaps: the offsets that it does not receive.
        offsets: the next offset of each partition.
        epochs: for each partition with a gap, the leader epoch of the record before that offset. For Cursor.seek().
    """

    gaps: Sequence[Gap]
    offsets: Offsets
    epochs: Epochs

    @property
    def is_truncated(self) -> bool:
        """Whether the reader may have read records that the log has lost."""
        return any(gap.is_truncation for gap in self.gaps)


class OffsetOutOfRange(Exception):
    """A cursor cannot continue in some partitions: the next records are removed or unreadable, or the log was truncated.

    Args:
        partitions: the partitions that the cursor cannot read until seek() moves it.
        diverged_at: for each truncated partition, if it is known, the first offset at which the log may differ from the
            records that the cursor read, and the newest leader epoch before it.
        unreadable: for each partition with a batch that cannot be read, the offset after that batch and the reason.
    """

    def __init__(
        self,
        partitions: Iterable[Partition],
        diverged_at: Mapping[Partition, OffsetAndEpoch] | None = None,
        unreadable: Mapping[Partition, tuple[int, str]] | None = None,
    ) -> None:
        self.partitions = tuple(partitions)
        self.diverged_at = diverged_at or {}
        self.unreadable = unreadable or {}
        super().__init__(", ".join(f"{partition.topic}/{partition.partition}" for partition in self.partitions))

    def resume(self, offsets: Offsets, ranges: Ranges) -> Resumption:
        """Return where a reader at these offsets continues.

        Args:
            offsets: the offsets of the reader.
            ranges: the offsets that the log holds. The reader cannot continue yet in partitions that are absent.
        """
        gaps = [gap for partition in ranges for gap in self.gaps(partition, offsets[partition], ranges[partition])]
        ends = {gap.partition: gap.end for gap in gaps}
        return Resumption(
            gaps,
            {partition: ends.get(partition, offsets[partition]) for partition in ranges},
            {gap.partition: gap.epoch for gap in gaps},
        )

    def gaps(self, partition: Partition, offset: int, available: OffsetRange) -> list[Gap]:
        """Return the gaps for a reader at `offset` of `partition`; none if it can continue there."""
        if partition in self.unreadable:
            return [Gap(partition, offset, *self.unreadable[partition])]
        return gaps_on_resuming(partition, offset, available, self.diverged_at.get(partition))


class PartitionsFailed(Exception):
    """A cursor cannot read some partitions any more, and has removed them. It continues to read the others.

    Args:
        errors: why, for each of these partitions.
    """

    def __init__(self, errors: Mapping[Partition, KafkasseError]) -> None:
        self.errors = errors
        super().__init__(
            ", ".join(f"{partition.topic}/{partition.partition}: {error}" for partition, error in errors.items())
        )


class Cursor(Protocol):
    """Reads some partitions, each from a given offset."""

    def seek(self, offsets: Offsets, epochs: Epochs | None = None, topic_ids: Mapping[str, str] | None = None) -> None:
        """Continue at these offsets. Partitions that the cursor does not read yet are added.

        Args:
            offsets: the next offset to read in each partition.
            epochs: the leader epochs of the records before these offsets, where they are known. The cursor then notices if
                the log was truncated and other records have replaced them. If the log has neither an epoch nor a newer one,
                poll() raises OffsetOutOfRange, because the cursor cannot know whether records were lost.
            topic_ids: the IDs of topics, as in Topic. The cursor does not read a recreated topic, which has another ID. If
                the ID of an added topic is absent or "", it is that of the topic that exists. IDs of topics of which the
                cursor already reads partitions are ignored.
        """

    def remove(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these partitions. Partitions that the cursor does not read are ignored."""

    def poll(self, timeout_s: float) -> list[Batch]:
        """Return the next batches, in offset order. Wait up to `timeout_s` seconds for the first one.

        Raises:
            OffsetOutOfRange: some partitions cannot be read until seek() moves the cursor.
            PartitionsFailed: some partitions cannot be read any more.
            KafkasseError: the cursor cannot continue. While a broker is unavailable, the cursor retries and poll()
                returns [].
        """

    def close(self) -> None:
        """Release all resources. May be called twice."""


class Total(NamedTuple):
    """A metric of a log: its name in process.telemetry.metrics, its value, and its label `reason` if it has one."""

    metric: str
    value: float
    reason: str = ""


class Log(Protocol):
    """A read-only cluster. A log may wrap another log, as archive.log.ArchivedLog does.

    All methods raise errors.KafkaUnavailable if the cluster does not answer within the log's timeout. The methods for
    offsets raise errors.TopicNotAvailable if a partition does not exist or we may not read it.
    """

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """Describe those of `topics` that exist or about which the cluster reports an error; see Topic.error."""

    def topic_names(self) -> set[str]:
        """Return the names of all topics that we may read. Kafka's own topics, such as __consumer_offsets, are included."""

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        """Return the offsets that each partition holds now. Partitions without a leader are absent."""

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offset of the first record at or after each timestamp (milliseconds), or the end if there is none.

        Partitions without a leader are absent.
        """

    def epoch_ends(self, epochs: Epochs) -> dict[Partition, OffsetAndEpoch]:
        """Return where each leader epoch ends: the offset of the first record of a later epoch, or the end of the log.

        If the log does not have the given epoch, the result is the newest epoch before it, and its end. Kafka before 2.0
        does not return the epoch. A reader whose last record has the given epoch and a higher offset has read records that
        the log has lost. Partitions are absent if the cluster cannot answer, or if their log has neither the given epoch nor
        a newer one.
        """

    def recreated(self, epochs: Epochs) -> Set[Partition]:
        """Return the partitions whose topic was recreated. Pass only partitions whose log is shorter than a reader's offset.

        A log loses records only in an election, which begins a new epoch. A shorter log without a new epoch therefore
        belongs to another topic. The result does not contain topics with topic IDs, because their IDs show this.

        Args:
            epochs: the leader epoch of the last record that the reader has read in each partition.
        """

    def cursor(
        self,
        offsets: Offsets,
        tail: bool = False,
        epochs: Epochs | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Cursor:
        """Open a cursor at `offsets`.

        Args:
            offsets: where to start in each partition. A cursor without partitions waits until seek() adds some.
            epochs, topic_ids: as for Cursor.seek().
            tail: the cursor will stay at the end of its partitions for a long time.
        """

    @property
    def recent(self) -> Log:
        """The log that snapshots read: this log without old records that take long to read. Usually the log itself."""

    def totals(self) -> Iterable[Total]:
        """Return the values of this log's metrics."""

    def close(self) -> None:
        """Release all resources."""
