"""Run a pipeline again after a failure. This module does not depend on Spark or Kafka; the caller passes in the attempt.

STARTING ─▶ RUNNING ─▶ DRAINING ─▶ STOPPED      a stop request; without DRAINING if a rebuild has replaced the run
   ▲ ▲         │
   │ └─ RESTARTING ─▶ FAILED                    a crash; a crash loop
   └─── WAITING                                 Kafka, Spark's slots or the schema registry are not available

While Kafka does not answer, a query is WAITING even if it has not failed; afterwards, it is RUNNING again.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from queue import Empty, SimpleQueue

from kafkasse.errors import CommandError
from kafkasse.process.log_line import Fields

MIN_RESTART_BACKOFF_S, MAX_RESTART_BACKOFF_S = 1.0, 30.0
MAX_CRASHES = 5  # in a row, without a commit in between

logger = logging.getLogger("kafkasse.pipeline")


class PipelineState(StrEnum):
    """The state of a pipeline."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    RESTARTING = "restarting"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


class Interrupted(Exception):
    """An attempt ended, and another attempt may succeed. The message gives the reason."""


class DependencyUnavailable(Interrupted):
    """Kafka, Spark's slots or the schema registry are not available. Waiting is not a crash, however long it takes."""


class Crashed(Interrupted):
    """The query or Spark failed.

    Args:
        reason: one sentence.
        committed: whether the attempt committed a batch before it failed.
        data_error: the kind of the error if a record may have caused it; see failures.data_error().
    """

    def __init__(self, reason: str, *, committed: bool = False, data_error: str = "") -> None:
        super().__init__(reason)
        self.committed = committed
        self.data_error = data_error


class RunStopped(Exception):
    """Signals ended Spark while it was starting. The arguments are the numbers of the signals."""


class Replaced(RunStopped):
    """A rebuild has replaced the checkpoint of this run. The argument is the new checkpoint."""


class StopRequests:
    """SIGINT and SIGTERM, queued so that the pipeline can stop at a safe point.

    A signal handler that raises an exception could interrupt PySpark in the middle of a call to the JVM, or while PySpark
    starts the JVM, which would then run forever. The queue is a SimpleQueue because a signal handler may call its put(), but
    not Event.set().

    Attributes:
        interrupted: whether one of them was SIGINT, from Ctrl-C.
    """

    def __init__(self) -> None:
        self.signals: SimpleQueue[int] = SimpleQueue()
        self._requested = False
        self.interrupted = False

    def install(self) -> None:
        """Install the handlers. PySpark replaces them when it starts a session, so the caller repeats this afterwards."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.signals.put(number)

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as a signal arrives, or at once if one has arrived before. After the timeout, return False."""
        self._requested = self._requested or self.wait_for_next(timeout_s)
        return self._requested

    def wait_for_next(self, timeout_s: float) -> bool:
        """Return True as soon as another signal arrives, or False after the timeout."""
        try:
            self.signals.get(timeout=timeout_s)
        except Empty:
            return False
        return True


def log_state(name: str, state: PipelineState, reason: str) -> None:
    """Log a state of the pipeline or archive `name`."""
    level = logging.WARNING if state in (PipelineState.WAITING, PipelineState.RESTARTING) else logging.INFO
    logger.log(level, "pipeline %s", Fields(name=name, state=state.value, reason=reason))


def supervise(
    attempt: Callable[[], None],
    stop: StopRequests,
    report: Callable[[PipelineState, str], None],
    position: Callable[[], str],
    skip: Callable[[Crashed], str] = lambda _: "",
) -> None:
    """Call `attempt` until it returns, with exponential backoff after failures.

    Args:
        attempt: runs the pipeline until a stop request arrives. It raises Interrupted if it should be called again.
        stop: a stop request ends the waiting between two attempts.
        report: receives each state and its reason.
        position: returns the position at which the pipeline fails, such as "countries, partition 0, offset 17".
        skip: called after MAX_CRASHES crashes in a row. It makes the next attempt skip the records that cause the
            crashes. Returns text such as "2 records", or "" if it has found no such record.

    Raises:
        CommandError: the pipeline crashed MAX_CRASHES times in a row without a commit, and `skip` has found no record, or
            `attempt` raised this error.
    """
    with suppress(RunStopped):
        crashes = waits = 0
        while True:
            report(PipelineState.STARTING, "")
            try:
                attempt()
            except DependencyUnavailable as interruption:
                waits += 1
                state, reason, pause_s = PipelineState.WAITING, str(interruption), backoff_s(waits)
            except Crashed as crash:
                waits = 0
                crashes = 1 if crash.committed else crashes + 1
                if crashes == MAX_CRASHES and (skipped := skip(crash)):
                    crashes = 0
                    report(PipelineState.RESTARTING, f"restarting without {skipped}: {crash}")
                    continue
                if crashes == MAX_CRASHES:
                    reason = f"the pipeline failed {crashes} times in a row without progress at {position()}: {crash}"
                    report(PipelineState.FAILED, reason)
                    raise CommandError(reason) from crash
                state, pause_s = PipelineState.RESTARTING, backoff_s(crashes)
                reason = f"{crash}; restarting in {pause_s:g} s"
            except CommandError as error:
                report(PipelineState.FAILED, error.detail)
                raise
            except Replaced as checkpoint:
                report(PipelineState.STOPPED, f"a rebuild has replaced this run; the new checkpoint is {checkpoint}")
                return
            else:
                break
            report(state, reason)
            if stop.wait(pause_s):
                break
    report(PipelineState.STOPPED, "")


def backoff_s(failures: int) -> float:
    """Return the pause before the next attempt, after this number of failures in a row."""
    return min(MAX_RESTART_BACKOFF_S, MIN_RESTART_BACKOFF_S * 2.0 ** min(failures - 1, 10))
