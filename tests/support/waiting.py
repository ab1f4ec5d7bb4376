"""Waiting for a condition in another process, which cannot notify the test."""

from __future__ import annotations

from collections.abc import Callable

import gevent

POLL_S = 0.02
TIMEOUT_S = 120.0  # only a hang takes so long, however busy the machine is


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition is true.

    Raises:
        gevent.Timeout: it is not true after TIMEOUT_S seconds.
    """
    with gevent.Timeout(TIMEOUT_S):
        while not condition():
            gevent.sleep(POLL_S)
