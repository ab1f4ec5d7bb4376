"""Times in settings and requests: ISO 8601 times, and durations such as `15m`. This module does not read the clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_AGO = re.compile(r"-([1-9][0-9]{0,8})([smhd])")
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time(text: str) -> int:
    """Return an ISO 8601 time in milliseconds since 1970. A time without a time zone is in UTC.

    Raises:
        ValueError: the text is not an ISO 8601 time.
    """
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - EPOCH) // timedelta(milliseconds=1)


def parse_start_time(text: str) -> int:
    """Return a start time in milliseconds: `-15m` as a negative number, an ISO 8601 time as a time since 1970.

    Raises:
        ValueError: the text is neither, or is a time before 1970.
    """
    if match := _AGO.fullmatch(text):
        return -int(match[1]) * _UNITS_MS[match[2]]
    time_ms = parse_time(text)
    if time_ms < 0:
        raise ValueError("the time is before 1970")
    return time_ms
