"""The state of one partition: its backoff, and where a truncated log differs from what was read."""

from __future__ import annotations

import pytest

from kafkasse.kafka.batches import RecordRun
from kafkasse.kafka.fetch_position import FAILURES_FORGOTTEN_S, FetchPosition
from kafkasse.log import UNKNOWN_EPOCH, Partition


def backoffs(state: FetchPosition, count: int, now: float = 100.0) -> list[float]:
    """Return how long the partition waits after each of `count` failures at the same time."""
    waits = []
    for _ in range(count):
        waits.append(round(state.back_off(now) - now, 6))
    return waits


def test_the_backoff_grows_with_each_failure():
    """The first retry is at once; the wait is at most a second."""
    assert [0, 0.02, 0.08, 0.18, 0.32, 0.5, 0.72, 0.98, 1, 1] == backoffs(FetchPosition(Partition("t", 0)), 10)


def test_the_backoff_starts_again_after_records_or_a_time_without_failures():
    state = FetchPosition(Partition("t", 0))
    backoffs(state, 5)
    state.fetched(has_records=True)

    assert [0, 0.02, 0.08] == backoffs(state, 3)
    assert [0.18] == backoffs(state, 1, now=100.0 + FAILURES_FORGOTTEN_S)
    assert [0] == backoffs(state, 1, now=100.1 + 2 * FAILURES_FORGOTTEN_S)


@pytest.mark.parametrize(
    ("epoch", "end", "diverged_at"),
    [
        (5, 90, (50, 3)),
        (5, 40, (40, 3)),
        (3, 40, (40, 3)),
        (3, 90, (50, 3)),
        (UNKNOWN_EPOCH, 55, (55, 7)),
        (2, 20, (20, 2)),
    ],
)
def test_a_truncation_is_reported_with_the_epoch_of_the_record_before_it(epoch, end, diverged_at):
    """The position has read epoch 3 from offset 20 and epoch 7 from offset 50. The broker lacks epoch 7, or a part of it.

    If the broker has another epoch there, it reports the next divergence. Before the first record that was read, only the
    broker's epoch is known.
    """
    state = FetchPosition(Partition("t", 0))
    state.seek(20)
    state.advance(RecordRun([], 50, 3))
    state.advance(RecordRun([], 60, 7))

    assert diverged_at == state.diverged_at(epoch, end)


def test_the_record_before_the_first_one_is_lost_with_its_epoch():
    """A client returns with an offset and the epoch of the record before, which the broker lacks."""
    state = FetchPosition(Partition("t", 0))
    state.seek(100, 5)

    assert (99, UNKNOWN_EPOCH) == state.diverged_at(4, 150)


def test_a_position_that_is_out_of_range_again_forgets_its_epochs():
    """A broker that has lost its leader epochs would otherwise reject each fetch."""
    position = FetchPosition(Partition("t", 0))
    position.seek(5, epoch=3)

    assert [True, False] == [position.may_return_to(5), position.may_return_to(5)]
    position.seek(5, epoch=3)
    assert [False, True] == [position.may_return_to(6), position.may_return_to(5)]


def test_a_fetch_between_two_returns_keeps_the_epochs():
    """Also a fetch without records shows that the broker knows the epochs."""
    position = FetchPosition(Partition("t", 0))
    position.seek(5, epoch=3)
    position.may_return_to(5)
    position.fetched(has_records=False)

    assert position.may_return_to(5)
