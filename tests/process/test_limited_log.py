"""What happens in a loop cannot fill the log."""

from __future__ import annotations

from collections.abc import Callable

from kafkasse.process.limited_log import INTERVAL_S, MAX_LINES, LimitedLog


def test_a_line_is_repeated_after_the_interval():
    """Each subject has its own interval."""
    times = iter([0.0, 1.0, 1.0, 2.0, INTERVAL_S, INTERVAL_S])
    limited = LimitedLog(lambda: next(times))

    assert [True, False, True, False, True, False] == [limited.is_due(subject) for subject in "aabaab"]


def test_many_subjects_do_not_fill_the_log():
    """The number of lines in an interval is limited, and so is the memory."""
    now, lines = 0.0, 0
    limited = LimitedLog(lambda: now)
    for now in (0.0, 1.0, INTERVAL_S):
        lines += sum(limited.is_due((now, number)) for number in range(2 * MAX_LINES))

    assert 2 * MAX_LINES == lines


class Subject:
    """A subject that calls a function once, when it is looked up."""

    def __init__(self) -> None:
        self.on_lookup: Callable[[], object] | None = None

    def __hash__(self) -> int:
        call, self.on_lookup = self.on_lookup, None
        if call is not None:
            call()
        return 1


def test_threads_may_remove_the_same_subject():
    """Otherwise, under a server with threads, a request could fail while its rejection is logged."""
    now, subject = 0.0, Subject()
    limited = LimitedLog(lambda: now)
    limited.is_due(subject)

    now = INTERVAL_S
    subject.on_lookup = lambda: limited.is_due("in another thread")

    assert limited.is_due("in this thread")
