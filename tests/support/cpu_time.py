"""CPU time in seconds of a reference machine, so that a bound holds on slow and on busy machines.

A core that shares its caches with a busy one needs up to twice as long for the same work. So each measurement is compared
with a fixed piece of work that the same thread does right after it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import gevent

PIECE_S = 0.001  # the CPU time of one piece of work on the reference machine: Python 3.11, nothing beside it
PIECES = 5


def on_reference(cpu_s: float) -> float:
    """Return how much CPU time the reference machine would have needed. Call it in the same thread, without a delay."""
    return cpu_s * PIECE_S / median(_piece_s() for _ in range(PIECES))


def _piece_s() -> float:
    began_s = time.thread_time()
    for number in range(5_000):
        len(b"%d" % (number * number % 1000))
    return time.thread_time() - began_s


def of_call(call: Callable[[], object]) -> float:
    """Return the CPU time of a call on the reference machine."""
    began_s = time.thread_time()
    call()
    return on_reference(time.thread_time() - began_s)


def of_longest_turn(call: Callable[[], object]) -> float:
    """Return the longest CPU time between two turns of the event loop while `call` runs in its own greenlet.

    Garbage collections are left out: their time depends on all objects of the process.
    """
    greenlet = gevent.spawn(call)
    longest = 0.0
    gc.disable()
    try:
        while not greenlet.ready():
            longest = max(longest, of_call(lambda: gevent.sleep(0)))
    finally:
        gc.enable()
    greenlet.get()
    return longest
