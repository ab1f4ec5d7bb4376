"""Waiting for a condition in another process, which cannot notify the test."""

from __future__ import annotations

import gc
import time
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


def longest_turn_s(call: Callable[[], object]) -> float:
    """Return the longest CPU time between two turns of the event loop while `call` runs in its own greenlet.

    Garbage collections are left out: their time depends on all objects of the process.
    """
    greenlet = gevent.spawn(call)
    longest = 0.0
    gc.disable()
    try:
        while not greenlet.ready():
            began_at = time.thread_time()
            gevent.sleep(0)
            longest = max(longest, time.thread_time() - began_at)
    finally:
        gc.enable()
    greenlet.get()
    return longest
