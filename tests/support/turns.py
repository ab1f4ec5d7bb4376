"""For tests of feeds and connections: advance a tail whose greenlet does not run, and the event loop, and count work."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import gevent
import pytest

from kafkasse.feed.reader import Reader
from kafkasse.feed.tail import Tail
from kafkasse.process import event_loop
from kafkasse.process.event_loop import take_turn
from tests.support.sse import numbers_in

MAX_LINES = 50_000  # in one piece of a long computation: a few milliseconds


def turns_given_by(give: Callable[[bool], None]) -> AbstractContextManager[object]:
    """Let take_turn() call `give(urgent)` in this thread, instead of waiting for the event loop.

    A simulator decides there which other steps run between two pieces of a computation, and tests count the pieces.
    """
    return mock.patch.object(event_loop, "_turns", SimpleNamespace(hub=gevent.get_hub(), take=give))


def turn(tail: Tail) -> float:
    """Run one turn, and wait for what it started in other greenlets. Return the result of Tail.turn()."""
    rest_s = tail.turn(0)
    for backlog in list(tail.backlogs.values()):
        backlog.join()
    gevent.joinall(list(tail._lookups._running.values()))  # the next turn uses what they found
    return rest_s


def poll_events() -> None:
    """Let the event loop handle everything that is readable by now. A timer fires after the loop has polled for I/O."""
    for _ in range(2):
        gevent.sleep(0.001)


def uninterrupted() -> AbstractContextManager[object]:
    """While the block runs, take_turn() never lets other greenlets run, such as those that earlier tests have left."""
    return mock.patch.object(event_loop, "MAX_TURN_S", math.inf)


def most_lines_in_a_piece(call: Callable[[], object]) -> int:
    """Return how many lines of Python `call` runs at most without take_turn(): the work that other greenlets wait for."""
    lines = most = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines, most
        if event == "line":
            lines += 1
        elif event == "call" and frame.f_code is take_turn.__code__:
            most, lines = max(most, lines), 0
        return count

    gc.collect()
    gc.disable()  # it would run the finalizers of objects of other tests
    try:
        with uninterrupted():
            sys.settrace(count)
            call()
    finally:
        sys.settrace(None)
        gc.enable()
    return max(most, lines)


def numbers(reader: Reader) -> list[int]:
    """Return the member `n` of each record that the reader returns now."""
    return numbers_in(b"".join(iter(lambda: reader.read(0), b"")))


class TurnClock:
    """The clock of kafkasse.process.event_loop in a test. Only pieces of computation take time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(event_loop, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(event_loop, "_turns", None)

    def compute(self, turns: float = 2.0) -> None:
        """Compute a piece that takes as long as so many turns of the event loop."""
        self.now += turns * event_loop.MAX_TURN_S
