"""The state of one partition in a cursor: the next offset, the leader epochs that were read, and the leader. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from kafkasse.kafka.batches import RecordRun
from kafkasse.kafka.client import Broker
from kafkasse.kafka.fetch_protocol import BY_TOPIC_ID, UNKNOWN_EPOCH, FetchPartition
from kafkasse.log import Partition

MAX_EPOCHS = 100  # remembered per partition; leaders change rarely


class Leader(NamedTuple):
    """The leader of a partition, its epoch, and the topic as Fetch requests identify it."""

    broker: Broker
    epoch: int
    topic_name: bytes
    topic_id: bytes  # b"" if the cluster has no topic IDs


class PartitionState:
    """The fetch position of one partition. Only its cursor changes it.

    Attributes:
        offset: the next offset to read.
        last_epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.
        leader: the last known leader, or None.
    """

    __slots__ = ("_epochs", "last_epoch", "leader", "offset", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.offset = 0
        self.last_epoch = UNKNOWN_EPOCH
        self.leader: Leader | None = None
        self._epochs: list[tuple[int, int]] = []  # the epochs that were read, each with the first offset read in it

    def seek(self, offset: int) -> None:
        """Continue at `offset`, and forget what was read before."""
        self.offset, self.last_epoch, self._epochs = offset, UNKNOWN_EPOCH, []

    def advance(self, run: RecordRun) -> None:
        """Move past a run.

        A run without records changes the epoch too, because transaction markers have an epoch. If the next request contained
        the previous epoch, its offset would be after the end of that epoch, and the broker would report a divergence.
        """
        if run.epoch != self.last_epoch:
            self._epochs = [*self._epochs[-MAX_EPOCHS:], (run.epoch, self.offset)]
            self.last_epoch = run.epoch
        self.offset = run.next_offset

    def diverged_at(self, epoch: int, end_offset: int) -> int:
        """Return the first offset at which the broker's log may differ from the records that were read.

        Args:
            epoch: the broker's newest epoch that is not newer than `last_epoch`.
            end_offset: the offset at which that epoch ends on the broker.
        """
        return min([end_offset, *(start for later, start in self._epochs if later > epoch)])

    def request(self, version: int) -> FetchPartition | None:
        """Return the entry of a Fetch request of this version, or None if the leader is unknown."""
        if self.leader is None:
            return None
        topic = self.leader.topic_id if version >= BY_TOPIC_ID else self.leader.topic_name
        return FetchPartition(topic, self.partition.partition, self.leader.epoch, self.offset, self.last_epoch)
