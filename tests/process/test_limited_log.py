"""What happens in a loop cannot fill the log."""

from __future__ import annotations

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
