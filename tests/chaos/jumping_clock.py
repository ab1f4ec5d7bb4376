"""The app of wsgi.py with a wrong wall clock. The file CLOCK_FILE contains the difference in seconds, and may change."""

from __future__ import annotations

import os
import time
from pathlib import Path

CLOCK = Path(os.environ["CLOCK_FILE"])
_time, _time_ns = time.time, time.time_ns


def _jump_s() -> int:
    return int(CLOCK.read_text() or 0)


time.time = lambda: _time() + _jump_s()
time.time_ns = lambda: _time_ns() + _jump_s() * 1_000_000_000

from wsgi import app  # noqa: E402

__all__ = ["app"]
