"""Where a cursor reads one partition: the next offset, the leader epochs that were read, and the leader. No I/O."""

from __future__ import annotations

import math

from kafkasse.kafka.batches import RecordRun
from kafkasse.kafka.fetch_protocol import BY_TOPIC_ID, Broker, FetchPartition, Leader
from kafkasse.log import UNKNOWN_EPOCH, OffsetAndEpoch, Partition
from kafkasse.log.epoch_history import EpochHistory

PARTITION_BACKOFF_S = 0.02  # multiplied by the square of the number of failures in a row
MAX_PARTITION_BACKOFF_S = 1.0
FAILURES_FORGOTTEN_S = 10.0  # a failure this long after the last one is the first in a row


NO_LEADER = Leader(Broker(-1, "", 0), UNKNOWN_EPOCH, b"", b"")


class FetchPosition:
    """The fetch position of one partition. Only its cursor changes it.

    Attributes:
        offset: the next offset to read.
        last_epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.
        leader: the last known leader, or NO_LEADER.
        valid_at: a leader whose log contains the record before `offset`, or NO_LEADER. See old_brokers.py.
        first_epoch: in a tail, the epoch of the leader when `offset` was set by seek(); else UNKNOWN_EPOCH. Other cursors
            start at offsets that may have been known long before.
        withheld_since: since when the broker has returned no records at `offset`, although its log has some; else inf.
    """

    __slots__ = (
        "_epochs",
        "_failed_at",
        "_failures",
        "_returned_to",
        "first_epoch",
        "last_epoch",
        "leader",
        "offset",
        "partition",
        "valid_at",
        "withheld_since",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.offset = 0
        self.last_epoch = self.first_epoch = UNKNOWN_EPOCH
        self.leader = self.valid_at = NO_LEADER
        self.withheld_since = math.inf
        self._epochs = EpochHistory()
        self._failures = 0  # in a row
        self._failed_at = 0.0
        self._returned_to = -1

    def seek(self, offset: int, epoch: int = UNKNOWN_EPOCH) -> None:
        """Continue at `offset`, and forget what was read before. `epoch` is that of the record before `offset`."""
        self.offset, self.last_epoch = offset, epoch
        self._epochs = EpochHistory(offset, epoch)
        self.valid_at = NO_LEADER
        self.first_epoch = UNKNOWN_EPOCH
        self.withheld_since = math.inf
        self._returned_to = -1

    def may_return_to(self, offset: int) -> bool:
        """Return whether a seek() from out of range to `offset` keeps the epochs: other records may be before it by now.

        It does not if the broker cannot know the epochs, or might not, because it is the second time in a row.
        """
        is_first = offset == self.offset != self._returned_to
        self._returned_to = offset
        return is_first and not UNKNOWN_EPOCH < self.leader.epoch < self.last_epoch

    def back_off(self, now: float) -> float:
        """Count a failure, and return when to retry. Each partition backs off alone, so that none delays another."""
        if now - self._failed_at > FAILURES_FORGOTTEN_S:
            self._failures = 0
        retry_at = now + min(MAX_PARTITION_BACKOFF_S, PARTITION_BACKOFF_S * self._failures**2)
        self._failures += 1
        self._failed_at = now
        return retry_at

    def fetched(self, has_records: bool) -> None:
        """End a row of returns to the same offset. Records also end a series of failures."""
        self._returned_to = -1
        if has_records:
            self._failures = 0
            self.withheld_since = math.inf

    def advance(self, run: RecordRun) -> None:
        """Move past a run.

        A run without records changes the epoch too, because transaction markers have an epoch. If the next request contained
        the previous epoch, its offset would be after the end of that epoch, and the broker would report a divergence.
        """
        if run.epoch != self.last_epoch:
            self._epochs.add(self.offset, run.epoch)
            self.last_epoch = run.epoch
        self.offset = run.next_offset

    def diverged_at(self, epoch: int, end_offset: int) -> OffsetAndEpoch:
        """Return the first offset at which the broker's log may differ from the records that were read.

        The epoch in the result is that of the record that was read before this offset. If the broker has another epoch
        there, the next request shows where the logs differ. If nothing was read there, the epoch is the broker's.

        Args:
            epoch: the broker's newest epoch that is not newer than `last_epoch`. UNKNOWN_EPOCH: Kafka before 2.0 does not
                return it, so only `end_offset` is compared.
            end_offset: the offset at which that epoch ends on the broker.
        """
        newest = self.last_epoch if epoch == UNKNOWN_EPOCH else epoch
        end = min(end_offset, self._epochs.first_newer(newest, end_offset))
        read = self._epochs.before(end)
        return OffsetAndEpoch(end, epoch if read == UNKNOWN_EPOCH and end == end_offset else read)

    def request(self, version: int) -> FetchPartition:
        """Return the entry of a Fetch request of this version."""
        leader = self.leader
        topic = leader.topic_id if version >= BY_TOPIC_ID else leader.topic_name
        return FetchPartition(topic, self.partition.partition, leader.epoch, self.offset, self.last_epoch)
