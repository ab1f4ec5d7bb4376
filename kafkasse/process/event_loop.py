"""Shares the event loop: greenlets with long computations take turns, so that no turn of the event loop takes long.

A greenlet that computes for seconds would block every other stream of the worker. gevent.sleep(0) after each piece is not
enough: with a hundred such greenlets, one turn of the event loop would contain a hundred pieces. take_turn() therefore
limits the time that the pieces of all greenlets take together in one turn.

This module does not depend on Kafka, feeds or HTTP.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from gevent import get_hub, getcurrent
from gevent.hub import Waiter

MAX_TURN_S = 0.01  # for the pieces of all greenlets together, in one turn of the event loop


class _Turns:
    """Admits pieces of computation for MAX_TURN_S in each turn of the event loop. Later ones wait, urgent ones in front."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._urgent: deque[Waiter] = deque()
        self._waiting: deque[Waiter] = deque()  # the others
        self._turn = -1  # the number of the turn in which the last piece was admitted
        self._began_at = 0.0  # when the first piece of that turn was admitted
        # A timer fires after the event loop has polled for I/O. A callback, as in gevent.sleep(0), may run before that.
        self._timer = hub.loop.timer(0.0)

    def has_time(self) -> bool:
        """Return whether this turn has time for another piece."""
        now = time.monotonic()
        if self._turn != self.hub.loop.iteration:
            self._turn, self._began_at = self.hub.loop.iteration, now
        return now - self._began_at < MAX_TURN_S

    def take(self, urgent: bool) -> None:
        if self.has_time() and not self._urgent and (urgent or not self._waiting):
            return
        waiter = Waiter(self.hub)
        (self._urgent if urgent else self._waiting).append(waiter)
        if not self._timer.active:
            self._timer.start(self._admit_waiting)
        waiter.get()

    def _admit_waiting(self) -> None:
        while (waiting := self._urgent or self._waiting) and self.has_time():
            waiting.popleft().switch(None)
        if waiting:
            self._timer.start(self._admit_waiting)


# Of the thread that called take_turn() last. A worker has one thread with an event loop.
_turns: _Turns | None = None


def take_turn(urgent: bool = False) -> None:
    """Wait until a turn of the event loop has time for a piece of computation. Call this before each piece.

    A piece should take about a millisecond. The call may switch greenlets.

    Args:
        urgent: continue before those that wait and are not urgent. Use it for work that many clients wait for, or that
            frees memory when it ends.
    """
    global _turns
    hub = get_hub()
    turns = _turns  # another thread may replace it
    if turns is None or turns.hub is not hub:
        turns = _turns = _Turns(hub)
    turns.take(urgent)


class WakeUp:
    """Lets one greenlet wait until something has happened. It costs half as much as gevent's Event.

    In a callback of the event loop, set() runs the greenlet before it returns. Make it the last call of the callback.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: Waiter | None = None

    def set(self) -> None:
        """Wake the greenlet, or let its next call of wait() return at once."""
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        if getcurrent() is waiter.hub:
            waiter.switch(True)
        else:
            waiter.hub.loop.run_callback(waiter.switch, True)

    def clear(self) -> None:
        """Let the next call of wait() wait."""
        self._is_set = False

    def wait(self, timeout_s: float) -> bool:
        """Wait until set() is called. Return False after the timeout."""
        if self._is_set:
            return True
        waiter = self._waiter = Waiter()
        timer = waiter.hub.loop.timer(timeout_s)
        timer.start(waiter.switch, False)
        try:
            return bool(waiter.get())
        finally:
            timer.close()
            self._waiter = None
