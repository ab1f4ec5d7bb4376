"""Limits how often something is logged, so that what happens in a loop cannot fill the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

INTERVAL_S = 10.0
MAX_LINES = 100  # of all subjects, in each interval


class LimitedLog:
    """Decides which lines to log: the first one of each subject in each interval, and at most MAX_LINES lines in all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._logged_at: dict[Hashable, float] = {}  # by subject; the oldest is first

    def is_due(self, subject: Hashable) -> bool:
        """Return whether a line about this subject should be logged now. If it should, the line counts as logged."""
        now = self._clock()
        for oldest, logged_at in list(self._logged_at.items()):
            if now < logged_at + self._interval_s:
                break
            self._logged_at.pop(oldest, None)  # another thread may have removed it
        if subject in self._logged_at or len(self._logged_at) >= MAX_LINES:
            return False
        self._logged_at[subject] = now
        return True
