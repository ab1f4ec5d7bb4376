"""Waiting for a condition in another process, which cannot notify the test."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

POLL_S = 0.02
TIMEOUT_S = 120.0  # only a hang takes so long, however busy the machine is


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition is true.

    Raises:
        gevent.Timeout: it is not true after TIMEOUT_S seconds. A call of it is never interrupted, because the connection to
            Spark's JVM could not be used after that.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise gevent.Timeout(TIMEOUT_S)
        gevent.sleep(POLL_S)
