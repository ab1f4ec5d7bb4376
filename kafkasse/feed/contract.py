"""What the rest of kafkasse may ask of a log, and what a log promises. tests/contract runs every log through the same tests.

A log is Kafka, or the memory kind that needs no Kafka. It knows partitions, offsets and records; it knows nothing of
clients, ids or frames. All calls may block the calling greenlet, never the process, and none blocks longer than it is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kafkasse.errors import Unavailable
from kafkasse.frame import Record
from kafkasse.position import Partition

TRUNCATED = "the log was truncated"


class Topic(NamedTuple):
    """A topic that exists: how many partitions it has, and which creation of its name this is ("" where unknown)."""

    partitions: int
    incarnation: str


class Bounds(NamedTuple):
    """The offsets that a partition holds: from `first` up to, but without, `end`."""

    first: int
    end: int


class Batch(NamedTuple):
    """Records of one partition in order. `next_offset` may lie beyond the last one: markers and compacted records."""

    partition: Partition
    records: Sequence[Record]
    next_offset: int

    def halves(self) -> tuple[Batch, Batch]:
        """The same in two parts; it must hold two records at least."""
        middle = len(self.records) // 2
        first, second = self.records[:middle], self.records[middle:]
        return self._replace(records=first, next_offset=first[-1].offset + 1), self._replace(records=second)


class Gap(NamedTuple):
    """Records that a client wanted and can no longer have: offsets `first` up to, but without, `to`.

    Where a log was truncated `to` lies before `first`: what the client had from there on is no longer what the log holds.
    """

    partition: Partition
    first: int
    to: int
    reason: str

    @classmethod
    def between(cls, partition: Partition, offset: int, bounds: Bounds) -> Gap | None:
        """What a reader at `offset` has lost to retention or truncation, or None where `bounds` still hold its place."""
        if offset < bounds.first:
            return cls(partition, offset, bounds.first, "removed by retention")
        if offset > bounds.end:
            return cls(partition, offset, bounds.end, TRUNCATED)
        return None

    def after(self, had: int) -> Gap | None:
        """What of it concerns a reader that stands at `had`, or None."""
        if self.to < self.first:  # truncated
            return self._replace(first=had) if had > self.to else None
        return self._replace(first=max(self.first, had)) if had < self.to else None


class OffsetOutOfRange(Exception):
    """A cursor stands where the log has nothing that can be read: retention removed it, or the log was truncated.

    Args:
        partitions: where that is so.
        divergent: where the log knows it, from which offset on its records are not those that were read before.
        unreadable: where records are there that cannot be read, the offset that follows them, and why.
    """

    def __init__(
        self,
        partitions: Iterable[Partition],
        divergent: Mapping[Partition, int] | None = None,
        unreadable: Mapping[Partition, tuple[int, str]] | None = None,
    ) -> None:
        self.partitions = tuple(partitions)
        self.divergent = divergent or {}
        self.unreadable = unreadable or {}
        super().__init__(", ".join(f"{each.topic}/{each.partition}" for each in self.partitions))

    def gap(self, partition: Partition, offset: int, bounds: Bounds) -> Gap | None:
        """What a reader that stood at `offset` of `partition` has lost."""
        if partition in self.unreadable:
            return Gap(partition, offset, *self.unreadable[partition])
        if (agreed := self.divergent.get(partition, offset)) < offset:
            return Gap(partition, offset, max(agreed, bounds.first), TRUNCATED)
        return Gap.between(partition, offset, bounds)


class Cursor(Protocol):
    """One place in each of some partitions, moving on as it is polled."""

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Stand at these offsets; partitions that were not read before are read from now on."""

    def poll(self, timeout_s: float) -> list[Batch]:
        """Batches that follow, waiting up to `timeout_s` seconds for the first. Each record comes once, in order.

        Raises:
            OffsetOutOfRange: nothing can be read in these partitions until seek() moves them.
            KafkaUnavailable, TopicNotAvailable: reading is impossible. A broker that is away for a while is no error.
        """
        ...

    def close(self) -> None:
        """Give everything back. May be called twice."""


class Log(Protocol):
    """A cluster, read-only.

    All methods raise errors.KafkaUnavailable when the cluster does not answer within the log's own timeout.
    """

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        """Those of `topics` that exist and may be read."""
        ...

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
        """What each partition holds now."""
        ...

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        """The offset of the first record at or after each timestamp (milliseconds); the end where there is none."""
        ...

    def cursor(self, offsets: Mapping[Partition, int], follow: bool = False, shared: bool = False) -> Cursor:
        """A cursor that stands at `offsets`; `follow`: it will stay at the end for long, `shared`: for many readers."""
        ...

    def close(self) -> None:
        """Give everything back."""


def bounds_if_known(log: Log, partitions: Iterable[Partition]) -> Mapping[Partition, Bounds]:
    """As log.bounds(), or nothing while it cannot say: a new partition may have no leader yet. Whoever reads asks again."""
    try:
        return log.bounds(partitions)
    except Unavailable:
        return {}
