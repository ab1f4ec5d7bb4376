"""Run a pipeline's query: start it, wait until it runs, and end it after a commit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines.checkpoints import checkpoint
from kafkasse.pipelines.execution import start
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import topics
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.pipeline import Mode
from kafkasse.pipelines.spark import failures, private_spark
from kafkasse.pipelines.spark.listener import Listener, listening
from kafkasse.pipelines.spark.session import is_local
from kafkasse.pipelines.supervisor import Crashed, Interrupted, PipelineState, StopRequests

START_TIMEOUT_S = 120.0
START_POLL_INTERVAL_S = 0.05
SLOTS_TIMEOUT_S = 10.0  # a cluster replaces a lost executor within seconds
POLL_INTERVAL_S = 1.0
DRAIN_POLL_INTERVAL_S = 0.1
DRAIN_TIMEOUT_S = 20.0  # for the commit after the end of the batch; it takes up to 2 s
MAX_BACKLOG_S = 20.0  # real-time mode soon reads what arrived during this time

logger = logging.getLogger("kafkasse.pipeline")


class RunObserver(Protocol):
    """Receives what happens during an attempt."""

    def report(self, state: PipelineState, reason: str) -> None:
        """The pipeline is in another state."""

    def started(self, committed: NextOffsets) -> None:
        """The query has started at these offsets."""

    def progressed(self, progress: dict[str, Any]) -> None:
        """A batch is committed. Spark describes it as JSON."""

    def polled(self) -> None:
        """Called every POLL_INTERVAL_S while the query runs."""


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a pipeline until a stop request arrives, or until a query of mode `once` has ended."""

    run: Run
    stop: StopRequests
    observer: RunObserver  # receives the states STARTING, RUNNING and DRAINING, and the progress
    drains: bool  # whether to wait for the next commit before the query ends, so that the next run repeats nothing

    def start(self) -> None:
        """Run the query.

        Raises:
            CommandError: the query cannot run before the user fixes something.
            Interrupted: the query ended, and another attempt may succeed.
        """
        path = self.run.checkpoint()
        for mode in modes(self.run):
            if not self._run(path, mode):
                return

    def _run(self, path: str, mode: Mode) -> bool:
        """Run the query in a mode. Return False at a stop request, or True when a query of mode `once` has ended."""
        spark, pipeline = self.run.spark, self.run.pipeline
        with listening(spark) as listener, start.started(self.run, path, self.stop, mode=mode) as query:
            if committed := checkpoint.last_commit(self.run.files, path):
                self.observer.started(committed)
            if not wait_until_running(spark, query, mode, self.stop):
                return False
            self.observer.report(PipelineState.RUNNING, "" if mode == pipeline.mode else "reading the backlog")
            if self._monitor(query, listener, mode, "" if committed else path):
                return True
            if self.drains:
                self.observer.report(PipelineState.DRAINING, "")
                drain(spark, query, self.stop, topics.commit_interval_s(pipeline) + DRAIN_TIMEOUT_S)
                pass_on(self.observer, listener.take_last())
            return False

    def _monitor(self, query: StreamingQuery, listener: Listener, mode: Mode, new: str) -> bool:
        """Return False at a stop request, or True when a query of mode `once` has ended.

        Args:
            new: the checkpoint if it has no commit, or "". Its first offsets are known when the first batch has begun.
        """
        spark = self.run.spark
        slots = _Slots(spark)
        while query.isActive:
            if new and (offsets := checkpoint.start_offsets(self.run.files, new)):
                self.observer.started(offsets)
                new = ""
            pass_on(self.observer, listener.take())
            self.observer.polled()
            is_active = bool(spark.sparkContext.statusTracker().getActiveJobsIds())
            slots.check(_progress(spark, query, mode)[1] if is_active else 0)
            if self.stop.wait(POLL_INTERVAL_S):
                return False
        pass_on(self.observer, listener.take_last())
        if query.exception() is not None or mode != "once":
            raise failure(spark, query)
        return True


def modes(run: Run) -> Iterator[Mode]:
    """Yield the modes in which to run the query, one after the other.

    Real-time mode reads partitions at different speeds, so the watermark could pass records that wait in another partition.
    A query with a watermark therefore first reads what the sources contain in mode `once`, until that takes at most
    MAX_BACKLOG_S or does not become faster. Such a batch reads all partitions before the watermark moves.
    """
    if run.pipeline.mode == "realtime" and start.drops_late_rows(run):
        before_s = math.inf
        while True:
            began_at_s = time.monotonic()
            yield "once"
            took_s = time.monotonic() - began_at_s
            if took_s <= MAX_BACKLOG_S or took_s >= before_s:
                break
            before_s = took_s
    yield run.pipeline.mode


def pass_on(observer: RunObserver, commits: Iterable[dict[str, Any]]) -> None:
    """Pass commits, as Spark describes them, to an observer."""
    for commit in commits:
        observer.progressed(commit)


def wait_until_running(spark: SparkSession, query: StreamingQuery, mode: Mode, stop: StopRequests) -> bool:
    """Return True when the query processes records, or False if a stop request arrives first.

    Raises:
        CommandError, Interrupted: the query failed, it did not start in time, or Spark has too few slots.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    slots = _Slots(spark)
    while True:
        is_running, needed = _progress(spark, query, mode)
        if not query.isActive:
            if query.exception() is None and mode == "once":
                return True
            raise failure(spark, query)
        has_slots = slots.check(needed)
        if is_running and has_slots:
            return True
        if time.monotonic() > deadline_s:
            raise Crashed(f"Spark did not start the query within {START_TIMEOUT_S:.0f} s (--log-level INFO shows more)")
        if stop.wait(START_POLL_INTERVAL_S):
            return False


def _progress(spark: SparkSession, query: StreamingQuery, mode: Mode) -> tuple[bool, int]:
    """Return whether the query processes records if it has enough slots, and how many slots the pipeline needs."""
    if mode != "realtime":
        return not query.status["message"].startswith("Initializing"), 1
    # Spark collects the small side of each broadcast join in a job of its own, before the job of the query.
    tracker = spark.sparkContext.statusTracker()
    active = {*tracker.getActiveJobsIds()} & {*tracker.getJobIdsForGroup(str(query.runId))}
    jobs = [tracker.getJobInfo(job) for job in active if not private_spark.is_broadcast(spark, job)]
    stages = [tracker.getStageInfo(stage_id) for job in jobs if job for stage_id in job.stageIds]
    tasks = sum(stage.numTasks for stage in stages if stage)
    is_running = bool(stages) and all(stage and stage.numActiveTasks == stage.numTasks for stage in stages)
    others = len(spark.streams.active) - 1  # the query for dead letters, whose jobs have one task
    return is_running, tasks + others


class _Slots:
    """Checks that Spark has enough slots."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._enough_at_s = time.monotonic()

    def check(self, needed: int) -> bool:
        """Return whether there are enough slots.

        Raises:
            CommandError, Unavailable: there have been too few slots for SLOTS_TIMEOUT_S.
        """
        slots = private_spark.slots(self._spark)
        if slots >= needed:
            self._enough_at_s = time.monotonic()
        elif time.monotonic() - self._enough_at_s > SLOTS_TIMEOUT_S:
            raise failures.too_few_slots(needed, slots, local=is_local(str(self._spark.sparkContext.master)))
        return slots >= needed


def drain(spark: SparkSession, query: StreamingQuery, stop: StopRequests, timeout_s: float) -> None:
    """Wait until the current batch has ended and is committed, so that the next run repeats no record.

    After another signal, or after `timeout_s`, the query ends without the commit.
    """
    execution = private_spark.end_after_batch(spark, query)
    deadline_s = time.monotonic() + timeout_s
    while execution.queryExecutionThread().isAlive():
        if time.monotonic() > deadline_s or stop.wait_for_next(DRAIN_POLL_INTERVAL_S):
            break
    if execution.queryExecutionThread().isAlive() or query.exception() is not None:
        logger.warning("stopped without a commit; the next run repeats the records since the last commit")


def failure(spark: SparkSession, query: StreamingQuery) -> CommandError | Interrupted:
    """Return the error of a query that has ended."""
    exception = private_spark.java_query(query).exception()
    reason = private_spark.exception_text(spark, exception.get()) if exception.isDefined() else "it ended"
    if needed := failures.slots_needed(reason):
        needed += len(spark.streams.active)  # the query for dead letters
        slots = private_spark.slots(spark)
        if slots < needed:
            return failures.too_few_slots(needed, slots, local=is_local(str(spark.sparkContext.master)))
    return failures.explain(reason, committed=query.lastProgress is not None)
