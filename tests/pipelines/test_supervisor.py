"""A pipeline that fails is started again, with backoff, until it cannot make progress."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import supervisor
from kafkasse.pipelines.supervisor import (
    Crashed,
    Interrupted,
    State,
    Stopped,
    StopRequests,
    Unavailable,
    supervise,
)


class Waits(StopRequests):
    """Records the backoffs instead of waiting. The stop request arrives during the last of `backoffs`."""

    def __init__(self, backoffs: int = 1000) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._backoffs = backoffs

    def wait(self, timeout_s: float) -> bool:
        self.seconds.append(timeout_s)
        return len(self.seconds) == self._backoffs


def failing(*failures: Exception) -> Callable[[], None]:
    """An attempt that raises these exceptions, one for each call, and then returns."""
    remaining: Iterator[Exception] = iter(failures)

    def attempt() -> None:
        for failure in remaining:
            raise failure

    return attempt


def run(attempt: Callable[[], None], stop: StopRequests | None = None) -> list[State]:
    """Supervise the attempt. Returns the reported states."""
    states: list[State] = []
    supervise(attempt, stop or Waits(), lambda state, _: states.append(state), lambda: "t, partition 0, offset 17")
    return states


def test_restarts_after_a_crash() -> None:
    """The second attempt runs until the stop request."""
    states = run(failing(Crashed("the JVM ended")))

    assert [State.STARTING, State.RESTARTING, State.STARTING, State.STOPPED] == states


def test_backs_off_exponentially() -> None:
    """Each crash without progress doubles the backoff, and so does each wait, up to a limit."""
    crashes, waits = Waits(), Waits()

    run(failing(*[Crashed("x")] * 4), crashes)
    run(failing(*[Unavailable("x")] * 7), waits)

    assert [1, 2, 4, 8] == crashes.seconds
    assert [1, 2, 4, 8, 16, 30, 30] == waits.seconds


def test_a_crash_loop_ends_with_the_position() -> None:
    """The error names the reason and the record that the pipeline cannot pass."""
    with pytest.raises(CommandError, match=r"failed 5 times in a row .* at t, partition 0, offset 17: divided by zero"):
        run(failing(*[Crashed("divided by zero")] * supervisor.MAX_CRASHES))


def test_a_crash_loop_continues_without_the_records_that_cause_it() -> None:
    """Each crash loop skips records, until there is nothing to skip."""
    crashes = [Crashed("divided by zero", data_error="DIVIDE_BY_ZERO") for _ in range(2 * supervisor.MAX_CRASHES)]
    skipped = iter(["1 records", ""])
    reasons: list[str] = []
    seen: list[Crashed] = []

    def skip(crash: Crashed) -> str:
        seen.append(crash)
        return next(skipped)

    with pytest.raises(CommandError, match="failed 5 times in a row"):
        supervise(failing(*crashes), Waits(), lambda _, reason: reasons.append(reason), lambda: "t", skip)

    assert [crashes[4], crashes[9]] == seen
    assert "restarting without 1 records: divided by zero" in reasons


def test_a_signal_stops_the_search_for_the_records_that_cause_a_crash_loop() -> None:
    """The search needs Spark, which may be starting again."""
    states: list[State] = []

    def skip(_: Crashed) -> str:
        raise Stopped(signal.SIGTERM)

    supervise(failing(*[Crashed("x")] * 5), Waits(), lambda state, _: states.append(state), lambda: "t", skip)

    assert State.STOPPED == states[-1]
    assert State.FAILED not in states


def test_a_commit_between_two_crashes_is_progress() -> None:
    """A pipeline that commits between its crashes is restarted forever."""
    backoffs = Waits()

    run(failing(*[Crashed("x", committed=True)] * 20), backoffs)

    assert [1] * 20 == backoffs.seconds


def test_waiting_is_not_a_crash() -> None:
    """Kafka may be unavailable for any time, even between crashes."""
    failures: list[Interrupted] = [Unavailable("no broker")] * 100

    states = run(failing(*failures))

    assert 100 == states.count(State.WAITING)
    assert State.STOPPED == states[-1]


def test_a_stop_request_ends_the_backoff() -> None:
    """SIGTERM does not start another attempt."""
    states = run(failing(*[Unavailable("no broker")] * 100), Waits(backoffs=3))

    assert 3 == states.count(State.WAITING)
    assert State.STOPPED == states[-1]


def test_a_command_error_is_final() -> None:
    """An error that only the user can fix is not tried again."""
    states: list[State] = []

    with pytest.raises(CommandError, match="the topic nix does not exist"):
        supervise(
            failing(CommandError("the topic nix does not exist")), Waits(), lambda state, _: states.append(state), str
        )

    assert [State.STARTING, State.FAILED] == states


def test_a_signal_is_a_stop_request() -> None:
    """A stop request stays, and the next signal is a second one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stop = StopRequests()
    try:
        stop.install()
        signal.raise_signal(signal.SIGTERM)

        assert (True, True) == (stop.wait(10), stop.wait(10))
        assert not stop.wait_for_next(0)

        signal.raise_signal(signal.SIGINT)

        assert stop.wait_for_next(10)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
