"""Measures how long each turn of a worker's event loop takes. The worker measures; the tests read the results from a file.

A turn lasts from the end of one poll for I/O to the start of the next. The limit applies to the CPU time that the main
thread would have needed on the reference machine, so the result hardly depends on this machine. But on a busy machine, even
this time varies by a factor of two. So only `make attacks` checks the goal of 50 ms, and `make test` has a limit that only a
blocked event loop reaches. The file also contains the stacks of each long turn, which show its cause.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from tests.attacks.sizes import is_full
from tests.support.cpu_time import on_reference

VARIABLE = "METER_FILE"  # the environment variable that contains the path of the file
MAX_TURN_S = 0.05 if is_full() else 0.25
RECORDED_FROM_S = 0.02
SAMPLED_FROM_S = 0.03
SAMPLE_INTERVAL_S = 0.01
MAX_STACKS = 8  # of one turn
MAX_FRAMES = 6  # the innermost frames of a stack
STARTED = {"started": True}


class Turn(NamedTuple):
    """One turn of the event loop.

    Attributes:
        cpu_s: the CPU time of the main thread, on the reference machine.
        wall_s: the time that passed, which also depends on other processes.
        stacks: samples of what the main thread executed, each with the innermost frames first.
    """

    cpu_s: float
    wall_s: float
    stacks: list[str]

    def __str__(self) -> str:
        return f"{self.cpu_s * 1000:.0f} ms of CPU ({self.wall_s * 1000:.0f} ms): {'; '.join(self.stacks)}"


class Meter:
    """Measures the event loop of the current process. Create it in the thread that runs the event loop."""

    def __init__(self, file: Path) -> None:
        import gevent
        from gevent.monkey import get_original

        self._out = file.open("a", buffering=1)
        self._sleep: Any = get_original("time", "sleep")
        self._thread: int = get_original("_thread", "get_ident")()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._began: tuple[float, float] | None = None  # the CPU time and the wall time at which this turn began
        self._stacks: list[str] = []
        self._collecting_since = 0.0
        loop = gevent.get_hub().loop
        # libev calls watchers in the order of their priority: everything that the turn does is between these two.
        self._watchers = loop.check(ref=False, priority=2), loop.prepare(ref=False, priority=-2)
        self._watchers[0].start(self._begin)
        self._watchers[1].start(self._end)
        get_original("_thread", "start_new_thread")(self._sample, ())
        gc.callbacks.append(self._on_collection)  # no other thread runs meanwhile, so no sample shows a collection
        self._write(STARTED)

    def _begin(self) -> None:
        self._began = time.thread_time(), time.perf_counter()

    def _end(self) -> None:
        if self._began is None:
            return
        cpu_s, wall_s = time.thread_time() - self._began[0], time.perf_counter() - self._began[1]
        self._began = None
        if cpu_s >= RECORDED_FROM_S:
            self._write(Turn(on_reference(cpu_s), wall_s, self._stacks)._asdict())
        if self._stacks:
            self._stacks = []

    def _sample(self) -> None:
        while True:
            self._sleep(SAMPLE_INTERVAL_S)
            began, stacks = self._began, self._stacks
            if began and len(stacks) < MAX_STACKS and time.clock_gettime(self._clock) - began[0] > SAMPLED_FROM_S:
                stacks.append(_stack(sys._current_frames()[self._thread]))

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        now = time.thread_time()
        if phase == "start":
            self._collecting_since = now
        elif now - self._collecting_since > SAMPLE_INTERVAL_S:
            took_ms = (now - self._collecting_since) * 1000
            self._stacks.append(f"garbage collection of generation {details['generation']}: {took_ms:.0f} ms")

    def _write(self, entry: dict[str, Any]) -> None:
        self._out.write(json.dumps(entry) + "\n")


def _stack(frame: Any) -> str:
    innermost = reversed(traceback.extract_stack(frame)[-MAX_FRAMES:])
    return " < ".join(f"{Path(call.filename).stem}.{call.name}:{call.lineno}" for call in innermost)


def turns(file: Path) -> list[Turn]:
    """Return all turns of at least RECORDED_FROM_S on this machine, the longest first."""
    entries: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    assert STARTED in entries, "the worker has no meter"
    return sorted((Turn(**entry) for entry in entries if entry != STARTED), reverse=True)
