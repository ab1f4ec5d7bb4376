"""The state of one partition in a cursor: the next offset, the leader epochs that were read, and the leader. No I/O."""

from __future__ import annotations

import base64
from typing import NamedTuple

from kafkasse.kafka.batches import RecordRun
from kafkasse.kafka.client import Broker
from kafkasse.kafka.fetch_protocol import BY_TOPIC_ID, FetchPartition
from kafkasse.log import UNKNOWN_EPOCH, OffsetAndEpoch, Partition
from kafkasse.log.epoch_history import EpochHistory

TOPIC_ID_CHARS = 8  # of 22 in base64url; 48 bits are enough to distinguish a recreated topic from the old one
BACKOFF_S = 0.02  # multiplied by the square of the number of failures in a row
MAX_BACKOFF_S = 1.0
FAILURES_FORGOTTEN_S = 10.0  # a failure this long after the last one is the first in a row


class Leader(NamedTuple):
    """The leader of a partition, its epoch, and the topic's name and topic ID, as Fetch requests contain them."""

    broker: Broker
    epoch: int
    topic_name: bytes
    topic_id: bytes  # b"" if the cluster has no topic IDs

    @property
    def short_topic_id(self) -> str:
        """The first characters of the topic ID; see short_topic_id()."""
        return short_topic_id(self.topic_id)

    def is_of_another_topic(self, epoch: int) -> bool:
        """Return whether a log that has become shorter since this epoch is that of a recreated topic.

        A log loses records only in an election, which begins a new epoch. If a topic has an ID, the ID shows this instead.
        """
        return not self.topic_id and UNKNOWN_EPOCH < self.epoch <= epoch


def short_topic_id(topic_id: bytes) -> str:
    """Return the first characters of a topic ID as Kafka's tools print it, or "" if the cluster has no topic IDs."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii")[:TOPIC_ID_CHARS]


class PartitionState:
    """The fetch position of one partition. Only its cursor changes it.

    Attributes:
        offset: the next offset to read.
        last_epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.
        leader: the last known leader, or None.
        valid_at: the broker and the epoch of a leader whose log contains the record before `offset`, if one is known.
        first_epoch: in a tail, the epoch of the leader when `offset` was set by seek(); else UNKNOWN_EPOCH. Other cursors
            start at offsets that may have been known long before.
        outdated_since: when the metadata first reported a leader with an older epoch, as in time.monotonic(), or None.
        retry_at: when to find a leader again if the partition has none, in seconds as in time.monotonic().
    """

    __slots__ = (
        "_epochs",
        "_failed_at",
        "_failures",
        "first_epoch",
        "last_epoch",
        "leader",
        "offset",
        "outdated_since",
        "partition",
        "retry_at",
        "valid_at",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.offset = 0
        self.last_epoch = UNKNOWN_EPOCH
        self.leader: Leader | None = None
        self.valid_at: tuple[Broker, int] | None = None
        self.first_epoch = UNKNOWN_EPOCH
        self.outdated_since: float | None = None
        self.retry_at = 0.0
        self._epochs = EpochHistory()
        self._failures = 0  # in a row
        self._failed_at = 0.0

    def seek(self, offset: int, epoch: int = UNKNOWN_EPOCH) -> None:
        """Continue at `offset`, and forget what was read before. `epoch` is that of the record before `offset`."""
        self.offset, self.last_epoch = offset, epoch
        self._epochs = EpochHistory(offset, epoch)
        self.valid_at = None
        self.first_epoch = UNKNOWN_EPOCH

    def back_off(self, now: float) -> None:
        """Set `retry_at` after a failure. Each partition has its own backoff, so that no partition delays another."""
        if now - self._failed_at > FAILURES_FORGOTTEN_S:
            self._failures = 0
        self.retry_at = now + min(MAX_BACKOFF_S, BACKOFF_S * self._failures**2)
        self._failures += 1
        self._failed_at = now

    def records_received(self) -> None:
        """End a series of failures."""
        self._failures, self.retry_at = 0, 0.0

    def advance(self, run: RecordRun) -> None:
        """Move past a run.

        A run without records changes the epoch too, because transaction markers have an epoch. If the next request contained
        the previous epoch, its offset would be after the end of that epoch, and the broker would report a divergence.
        """
        if run.epoch != self.last_epoch:
            self._epochs.add(self.offset, run.epoch)
            self.last_epoch = run.epoch
        self.offset = run.next_offset

    def belongs_to_another_topic(self) -> bool:
        """Return whether the leader's log, which is shorter than `offset`, is that of a recreated topic."""
        epoch = self.first_epoch if self.last_epoch == UNKNOWN_EPOCH else self.last_epoch
        return self.leader is not None and self.leader.is_of_another_topic(epoch)

    def diverged_at(self, epoch: int, end_offset: int) -> OffsetAndEpoch:
        """Return the first offset at which the broker's log may differ from the records that were read.

        The epoch in the result is `epoch`, or UNKNOWN_EPOCH if the broker's epoch does not end at this offset.

        Args:
            epoch: the broker's newest epoch that is not newer than `last_epoch`. UNKNOWN_EPOCH: Kafka before 2.0 does not
                return it, so only `end_offset` is compared.
            end_offset: the offset at which that epoch ends on the broker.
        """
        newest = self.last_epoch if epoch == UNKNOWN_EPOCH else epoch
        end = min(end_offset, self._epochs.first_newer(newest, end_offset))
        return OffsetAndEpoch(end, epoch if end == end_offset else UNKNOWN_EPOCH)

    def request(self, version: int) -> FetchPartition | None:
        """Return the entry of a Fetch request of this version, or None if the leader is unknown."""
        if self.leader is None:
            return None
        topic = self.leader.topic_id if version >= BY_TOPIC_ID else self.leader.topic_name
        return FetchPartition(topic, self.partition.partition, self.leader.epoch, self.offset, self.last_epoch)
