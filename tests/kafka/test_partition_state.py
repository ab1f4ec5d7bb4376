"""The backoff of one partition."""

from __future__ import annotations

from kafkasse.kafka.partition_state import FAILURES_FORGOTTEN_S, PartitionState
from kafkasse.log import Partition


def backoffs(state: PartitionState, count: int, now: float = 100.0) -> list[float]:
    """Return how long the partition waits after each of `count` failures at the same time."""
    waits = []
    for _ in range(count):
        state.back_off(now)
        waits.append(round(state.retry_at - now, 6))
    return waits


def test_the_backoff_grows_with_each_failure() -> None:
    """The first retry is at once; the wait is at most a second."""
    assert [0, 0.02, 0.08, 0.18, 0.32, 0.5, 0.72, 0.98, 1, 1] == backoffs(PartitionState(Partition("t", 0)), 10)


def test_the_backoff_starts_again_after_records() -> None:
    state = PartitionState(Partition("t", 0))
    backoffs(state, 5)

    state.records_received()

    assert [0, 0.02] == backoffs(state, 2)


def test_the_backoff_starts_again_after_a_time_without_failures() -> None:
    state = PartitionState(Partition("t", 0))
    backoffs(state, 5, now=100.0)

    assert [0.5] == backoffs(state, 1, now=100.0 + FAILURES_FORGOTTEN_S)
    assert [0] == backoffs(state, 1, now=100.1 + 2 * FAILURES_FORGOTTEN_S)
