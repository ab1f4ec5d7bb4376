"""What a cursor does differently with old brokers. If all your brokers run Kafka 3.1 or newer, skip this module. No I/O.

Before Kafka 2.7, Fetch responses do not report that the log was truncated. Therefore, before a cursor reads
from a new leader, it asks the leader where the last epoch that it has read ends.

Before Kafka 2.8, and until all brokers of a cluster run Kafka 3.1, topics have no IDs. On such clusters
(docs/faults.md), leader epochs show that a topic was recreated: a log loses records at its end only in an election, which
begins a new epoch. A log that has become shorter without a new epoch, or that has an older epoch, therefore belongs to
another topic.
"""

from __future__ import annotations

from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_protocol import Leader
from kafkasse.kafka.partition_states import NeedsLeader
from kafkasse.log import RECREATED_AT, UNKNOWN_EPOCH, OffsetAndEpoch

MAX_METADATA_LAG_S = 5.0  # for this time, older epochs in the metadata may come from a broker that lags behind
UNKNOWN_OFFSET = -1  # the end of an epoch that the broker does not know


def is_valid(position: FetchPosition, leader: Leader) -> bool:
    """Return whether this leader's log is known to contain the record before the position."""
    return position.last_epoch == UNKNOWN_EPOCH or leader == position.valid_at


def is_divergence(position: FetchPosition, epoch: int, end_offset: int) -> bool:
    """Return whether the log of the leader does not contain the record before the position.

    Args:
        position: the position, whose last epoch is known.
        epoch: the newest epoch in the leader's log that is not newer than the last one. Kafka before 2.0: UNKNOWN_EPOCH.
        end_offset: where that epoch ends, or UNKNOWN_OFFSET if the log has only older epochs.
    """
    return end_offset < position.offset or UNKNOWN_EPOCH < epoch < position.last_epoch


def diverged_at(position: FetchPosition, epoch: int, end_offset: int) -> OffsetAndEpoch | None:
    """Return where the log differs from what was read, or None if that is unknown. See is_divergence()."""
    is_unknown = end_offset == UNKNOWN_OFFSET
    if (is_unknown or end_offset < position.offset) and is_of_another_topic(position.leader, position.last_epoch):
        return RECREATED_AT
    # From Fetch version 12 on, the response to an unknown epoch is OFFSET_OUT_OF_RANGE.
    return None if is_unknown else position.diverged_at(epoch, end_offset)


def is_of_another_topic(leader: Leader, epoch: int) -> bool:
    """Return whether the leader's log, which has become shorter since this epoch, is that of a recreated topic."""
    return not leader.topic_id and UNKNOWN_EPOCH < leader.epoch <= epoch


def was_recreated(position: FetchPosition) -> bool:
    """As is_of_another_topic(), for a log that is shorter than the position, and the epoch at the position."""
    epoch = position.first_epoch if position.last_epoch == UNKNOWN_EPOCH else position.last_epoch
    return is_of_another_topic(position.leader, epoch)


def may_be_recreated(state: NeedsLeader, now: float) -> bool:
    """Return whether the metadata has reported an older epoch for longer than MAX_METADATA_LAG_S.

    Then the topic may have been recreated. The metadata of a broker that lags behind looks the same, so the leader must
    confirm the epoch.
    """
    return state.older_epoch_since <= now - MAX_METADATA_LAG_S
