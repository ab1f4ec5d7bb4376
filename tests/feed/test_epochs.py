"""Leader epochs show whether a client has read records that the log has lost."""

from __future__ import annotations

from collections.abc import Mapping, Set

import gevent
import pytest

from kafkasse.feed.core.epochs import FeedEpochs
from kafkasse.feed.epochs import EpochEnds
from kafkasse.log import RECREATED_AT, Gap, OffsetAndEpoch, OffsetRange, Partition
from kafkasse.log.memory import MemoryLog
from kafkasse.records.position import IdWriter
from tests.support.waiting import TIMEOUT_S

ZERO, ONE = Partition("t", 0), Partition("t", 1)


class CountingLog(MemoryLog):
    """A log that records the epochs of each lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[Partition, int]] = []
        self.suspected: list[dict[Partition, int]] = []

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, OffsetAndEpoch]:
        self.asked.append(dict(epochs))
        return super().epoch_ends(epochs)

    def recreated(self, epochs: Mapping[Partition, int]) -> Set[Partition]:
        self.suspected.append(dict(epochs))
        gevent.idle()  # until all clients wait
        return epochs.keys()


@pytest.fixture
def log() -> CountingLog:
    """t/0 has epoch 0 at offsets 0 and 1, and epoch 2 at offsets 2 to 5; its epoch 1 was lost. t/1 is empty."""
    log = CountingLog()
    log.create("t", 2)
    log.elect_leader("t")
    for _ in range(3):
        log.append("t", b"{}")
    log.elect_leader("t")
    log.truncate("t", 2)
    for _ in range(4):
        log.append("t", b"{}")
    return log


def test_clients_that_return_share_a_lookup(log):
    """They cause two lookups: one for the first client, and one for all clients that return meanwhile."""
    ends = EpochEnds(log, TIMEOUT_S)
    position = {ZERO: OffsetAndEpoch(4, 2), ONE: OffsetAndEpoch(0, 0)}
    clients = [gevent.spawn(ends.diverged_at, position) for _ in range(100)]

    assert [{}] * 100 == [client.get() for client in clients]
    assert [{ZERO: 2, ONE: 0}] * 2 == log.asked


def test_clients_that_return_share_the_check_for_a_recreated_topic(log):
    """Only clients past the end of the log need it. The first client causes a lookup, and all others share another one."""
    ends = EpochEnds(log, TIMEOUT_S)
    past_end, at_end = ({ZERO: OffsetAndEpoch(offset, 2)} for offset in (9, 6))
    clients = [gevent.spawn(ends.diverged_at, past_end, log.offset_ranges([ZERO])) for _ in range(100)]

    assert [{ZERO: RECREATED_AT}] * 100 == [client.get() for client in clients]
    assert {} == ends.diverged_at(at_end, log.offset_ranges([ZERO]))
    assert 2 == len(log.suspected)


@pytest.mark.parametrize(
    ("offsets", "epochs"),
    [
        (OffsetRange(0, 6, 2), {ZERO: 2}),
        (OffsetRange(0, 2, 2), {ZERO: 0}),  # the leader had written no record
        (OffsetRange(0, 1, 2), {}),  # before an open transaction, so the epoch may be an older one
        (OffsetRange(0, 6, 4), {}),  # the broker that answers does not know this epoch
        (OffsetRange(0, 2, 0), {ZERO: 0}),
        (OffsetRange(2, 2, 2), {}),  # there is no record
        (OffsetRange(0, 0, 0), {}),
        (OffsetRange(0, 6), {}),
    ],
)
def test_the_epoch_of_the_last_record_is_exact_or_unknown(log, offsets, epochs):
    """An older epoch would cause a false gap, and a newer one would hide a truncation."""
    assert epochs == EpochEnds(log, TIMEOUT_S).last_epochs({ZERO: offsets})


@pytest.mark.parametrize(
    ("offset", "epoch", "matches"),
    [
        (4, 1, True),  # where the log was truncated
        (3, 2, True),
        (4, 2, True),
        (6, 2, True),
        (7, 2, False),
        (3, 1, False),
        (6, 1, False),
        (6, None, True),
        (7, None, False),
    ],
)
def test_a_reader_may_join_a_feed_after_a_truncation_if_it_has_read_the_same_log(offset, epoch, matches):
    """The feed has moved to offset 4 in the truncation, and to offset 6 in the new epoch."""
    feed = IdWriter({ZERO: 4}, {}, epochs={ZERO: 1})
    epochs = FeedEpochs(feed)
    epochs.truncate(Gap(ZERO, 5, 4, "the log was truncated"))
    feed.set(ZERO, 6, leader_epoch=2)

    assert matches is epochs.match(IdWriter({ZERO: offset}, {}, epochs={} if epoch is None else {ZERO: epoch}))
