"""Run a pipeline from the first signal to the last commit: Spark's session, the checkpoint, and the supervision.

application ─▶ supervisor.supervise ─▶ _PipelineApplication.attempt ─▶ runner.Attempt ─▶ StatusObserver
                                          session.Sessions
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import next_offsets
from kafkasse.pipelines.execution import dead_letters, failing_record, rebuild, runner
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import contract, topics
from kafkasse.pipelines.kafka.skipped_records import MAX_SKIPPED
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.observe import metrics
from kafkasse.pipelines.observe.lag import LagReader
from kafkasse.pipelines.observe.status import Status, ended_at_ms, now_ms
from kafkasse.pipelines.observe.status_topic import StatusTopic
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.spark import failures, session
from kafkasse.pipelines.spark.temporary_directory import temporary_directory
from kafkasse.pipelines.supervisor import (
    Crashed,
    DependencyUnavailable,
    Interrupted,
    PipelineState,
    StopRequests,
    log_state,
    supervise,
)

# The longest pause of the status topic, and the shortest between two measurements of the lag or checks of Kafka.
STATUS_INTERVAL_S = 5.0
# Real-time mode commits at an interval. Between two commits, Spark does not report which records it has processed.
OVERDUE_INTERVALS = 3

logger = logging.getLogger("kafkasse.pipeline")


@dataclass(frozen=True)
class PipelineOptions:
    """The options of `kafkasse pipeline run`."""

    bootstrap_servers: str
    properties: str = ""  # the content of the file --kafka-config
    checkpoint: str | None = None
    master: str | None = None
    log_level: str = "OFF"
    rebuild: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)  # Spark settings that override those of the pipeline
    metrics_bind: str | None = None  # HOST:PORT of the metrics. None: no metrics are served.
    status_topic: str | None = None  # the topic for the status. None: the status is not written.


def run(pipeline: Pipeline, options: PipelineOptions, stop: StopRequests, ready: Callable[[], None]) -> None:
    """Run the pipeline until a stop request arrives, or until a query of mode `once` has ended.

    Args:
        ready: called each time that the query starts to process records.

    Raises:
        CommandError: the pipeline cannot run before the user fixes something.
    """
    settings = pipeline.spark_settings | dict(options.spark)
    sessions = session.Sessions(f"kafkasse {pipeline.name}", options.master, settings)
    observer = StatusObserver(pipeline, options.status_topic, ready)
    with metrics.serving(options.metrics_bind, observer.status), closing(sessions), ExitStack() as resources:
        application = _PipelineApplication(pipeline, options, sessions, resources, stop, observer)
        supervise(application.attempt, stop, observer.report, application.position, application.skip)


class StatusObserver:
    """Keeps the status of the pipeline, and publishes it: in the log, in the metrics and in the status topic.

    Attributes:
        is_rebuilding: whether this is the new version of a rebuild. The topic has the status of the old version.
    """

    def __init__(self, pipeline: Pipeline, topic: str | None, ready: Callable[[], None]) -> None:
        self.status = Status.of(pipeline)
        self._overdue_s = OVERDUE_INTERVALS * topics.commit_interval_s(pipeline)
        self._ready = ready
        self.is_rebuilding = False
        self._topic_name = topic
        self._run: Run | None = None
        self._topic: StatusTopic | None = None
        self._lag_reader: LagReader | None = None
        self._processed: NextOffsets = {}
        self._measured_at_s = self._written_at_s = -math.inf

    def use(self, run: Run) -> None:
        """Use the clients of this run's session. They are kept as long as the session."""
        if self._run is None or self._run.spark is not run.spark:
            self._topic = StatusTopic(run.spark, run.kafka, self._topic_name) if self._topic_name else None
            self._run, self._lag_reader = run, None  # only now, so that the next attempt tries again after an error
            self._write()

    def report(self, state: PipelineState, reason: str) -> None:
        """Enter a state."""
        log_state(self.status.pipeline, state, reason)
        running_states = (PipelineState.RUNNING, PipelineState.WAITING)
        has_started = state is PipelineState.RUNNING and self.status.state not in running_states
        self.status.enter(state, reason)
        self._write(wait=state in (PipelineState.STOPPED, PipelineState.FAILED))
        if has_started:
            with suppress(OSError):  # nobody reads stdout any more
                self._ready()

    def progressed(self, progress: dict[str, Any]) -> None:
        """Update the status after a commit of the pipeline's query, or of the query that writes the dead letters."""
        observed = progress.get("observedMetrics", {})
        if letters := observed.get(dead_letters.OBSERVED):
            self.status.rejected(letters["records"])
            return
        results = observed.get(contract.OBSERVED)
        if results and results["records"]:
            self.status.rejected(results["records"])
            logger.warning("dead letters: %d results, such as one because %s", results["records"], results["example"])
        if late_rows := self.status.committed(progress):
            logger.warning("later than the watermark: %d rows, which were dropped", late_rows)
        self._processed = next_offsets.of_progress(progress)
        if time.monotonic() - self._measured_at_s >= STATUS_INTERVAL_S:
            self._measure_lag(ended_at_ms(progress))

    def started(self, committed: NextOffsets) -> None:
        """Measure the lag before the first commit of this run."""
        self._processed = committed
        self._measure_lag(now_ms())

    def polled(self) -> None:
        """Measure the lag if no batch has been committed for long. Otherwise, check at intervals that Kafka answers."""
        if time.monotonic() - self._measured_at_s >= self._overdue_s:
            self._measure_lag(now_ms())
        elif time.monotonic() - self._written_at_s >= STATUS_INTERVAL_S:
            self._ask(lambda reader: reader.check(self._processed))

    def _measure_lag(self, at_ms: int) -> None:
        """Set the lag at this time. If Kafka does not answer, the lag does not change."""
        self._measured_at_s = time.monotonic()
        self._ask(lambda reader: self.status.measured(*reader.read(self._processed), at_ms))

    def _ask(self, question: Callable[[LagReader], object]) -> None:
        """Ask Kafka, and publish whether it answers. The query itself would fail only after minutes."""
        state, reason = self.status.state, self.status.reason
        working = PipelineState.STARTING if self.is_rebuilding else PipelineState.RUNNING
        try:
            if self._lag_reader is None and self._run:
                self._lag_reader = LagReader(self._run.spark, self._run.kafka)
            if self._lag_reader:
                question(self._lag_reader)
            if state is PipelineState.WAITING:
                state, reason = working, ""
        except (Py4JError, PySparkException, OSError) as error:
            logger.debug("cannot ask Kafka: %s", failures.first_line_of(error))
            interruption = failures.unexpected(error)
            if state is working and isinstance(interruption, DependencyUnavailable):
                state, reason = PipelineState.WAITING, str(interruption)
        if state is self.status.state:
            self._write()
        else:
            self.report(state, reason)

    def _write(self, *, wait: bool = False) -> None:
        self._written_at_s = time.monotonic()
        if self._topic and not self.is_rebuilding:
            self._topic.write(self.status, wait=wait)


@dataclass
class _PipelineApplication:
    pipeline: Pipeline
    options: PipelineOptions
    sessions: session.Sessions
    resources: ExitStack
    stop: StopRequests
    observer: StatusObserver
    directory: str = ""
    skipped: int = 0  # records

    def __post_init__(self) -> None:
        self.observer.is_rebuilding = self.options.rebuild

    def attempt(self) -> None:
        """Run the pipeline in a session."""
        topics.check_reachable(self.options.bootstrap_servers)
        if self.stop.wait(0.0):
            return
        try:
            with self.sessions.use() as spark:
                self.stop.install()  # again, because PySpark has installed its own handler
                if not self.stop.wait(0.0):
                    spark.sparkContext.setLogLevel(self.options.log_level)
                    self._attempt(self._run(spark))
        except AnalysisException as error:
            reason = failures.message(error)
            reason += "; use the mode microbatch" if "[STREAMING_REAL_TIME_MODE" in reason else ""
            raise CommandError(f"Spark rejects the query of the pipeline {self.pipeline.name}: {reason}") from error
        except (PySparkException, Py4JJavaError) as error:  # for example, the cluster has removed the application
            raise failures.unexpected(error) from error

    def _attempt(self, run: Run) -> None:
        self.observer.use(run)
        if self.observer.is_rebuilding:
            self.observer.is_rebuilding = not rebuild.rebuild(run, self.stop, self.observer)
            if self.observer.is_rebuilding:
                return
        runner.Attempt(run, self.stop, self.observer, drains=run.directory != self.directory).start()

    def position(self) -> str:
        """Return the position of the record that the query cannot process, or else that of the last commit."""
        try:
            with self.sessions.use() as spark:
                return failing_record.find(self._run(spark))
        except (Interrupted, CommandError, PySparkException, Py4JError, OSError):
            return "the position of the last commit"

    def skip(self, crash: Crashed) -> str:
        """Turn the records that the query cannot process into dead letters, and skip them. Returns how many, or ""."""
        if not crash.data_error:
            return ""
        try:
            with self.sessions.use() as spark:
                run = self._run(spark)
                checkpoint = (rebuild.unfinished(run) if self.observer.is_rebuilding else None) or run.checkpoint()
                skipped = failing_record.skip(run, checkpoint, crash.data_error, MAX_SKIPPED - self.skipped)
        except (Interrupted, CommandError, PySparkException, Py4JError, OSError) as error:
            logger.warning("cannot skip the records that fail: %s", failures.first_line_of(error))
            return ""
        for record in skipped:
            logger.warning("dead letters: the query fails for %s", record)
        self.skipped += len(skipped)
        self.observer.status.rejected(len(skipped))
        records = "1 failing record" if len(skipped) == 1 else f"{len(skipped)} failing records"
        return f"{records} (written to the dead letters)" if skipped else ""

    def _run(self, spark: SparkSession) -> Run:
        kafka = topics.client_settings(spark, self.options.properties, self.options.bootstrap_servers)
        return Run(spark, self.pipeline, kafka, self._checkpoints(spark))

    def _checkpoints(self, spark: SparkSession) -> str:
        """Return the directory of the checkpoints: the user's or `self.directory`, removed when the process ends."""
        if kept := self.options.checkpoint or self.pipeline.checkpoint:
            return kept
        if not session.is_local(str(spark.sparkContext.master)):
            raise CommandError(
                "a Spark cluster needs a --checkpoint directory that all of its machines can access, such as hdfs://... "
                "or s3a://..."
            )
        if not self.directory:
            self.directory = str(self.resources.enter_context(temporary_directory("kafkasse-checkpoint-")))
        return self.directory
