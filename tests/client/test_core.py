"""The rules that all clients share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.client.core import MAX_RETRY_S, retry_after_s, wait_s

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *[("5", 5), ("0", 0), (format_datetime(NOW + timedelta(seconds=90)), 90)],
        *[("", None), ("soon", None), ("-1", None), ("Fri, 99 Foo 2026 12:00:00 GMT", None)],
    ],
)
def test_parses_retry_after(value: str, seconds: float | None) -> None:
    """Retry-After is a number of seconds or a date. Any other value is ignored."""
    assert seconds == retry_after_s(value, NOW)


@given(st.integers(0, 10**6), st.floats(0, 10**12), st.floats(-(10**12), 10**12))
def test_the_wait_has_limits(failures: int, retry_s: float, requested_s: float) -> None:
    """The wait is at least as long as the server requested, and at most one and a half times the limit."""
    waited_s = wait_s(failures, retry_s, requested_s)

    assert min(MAX_RETRY_S, max(retry_s, requested_s)) <= waited_s <= 1.5 * MAX_RETRY_S


def test_backs_off_exponentially() -> None:
    """Despite the random part, the wait after the third failure is longer than after the first."""
    assert wait_s(0, 1, 0) < wait_s(2, 1, 0) < wait_s(4, 1, 0)
