"""Run a pipeline from the first signal to the last commit: Spark's session, the checkpoint, and the supervision.

application ─▶ supervisor.supervise ─▶ _PipelineApplication.attempt ─▶ runner.Attempt
                                          session.Sessions
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from kafkasse.errors import CommandError
from kafkasse.pipelines import (
    contract,
    dead_letters,
    failing_record,
    failures,
    metrics,
    next_offsets,
    rebuild,
    runner,
    session,
    topics,
)
from kafkasse.pipelines.lag import LagReader
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.skipped_records import MAX_SKIPPED
from kafkasse.pipelines.status import Status, ended_at_ms, now_ms
from kafkasse.pipelines.status_topic import StatusTopic
from kafkasse.pipelines.supervisor import Crashed, Interrupted, PipelineState, StopRequests, log_state, supervise
from kafkasse.pipelines.temporary_directory import temporary_directory

STATUS_INTERVAL_S = 5.0  # the longest pause of the status topic, and the shortest between two measurements of the lag
# Real-time mode commits at an interval. Between two commits, Spark does not report which records it has processed.
OVERDUE_INTERVALS = 3

logger = logging.getLogger("kafkasse.pipeline")


@dataclass(frozen=True)
class PipelineOptions:
    """The options of `kafkasse pipeline run`.

    Args:
        properties: the content of the file --kafka-config.
        spark: Spark settings that override those of the pipeline.
        metrics_bind: HOST:PORT of the metrics. None: no metrics are served.
        status_topic: the topic for the status. None: the status is not written.
    """

    bootstrap_servers: str
    properties: str = ""
    checkpoint: str | None = None
    master: str | None = None
    log_level: str = "OFF"
    rebuild: bool = False
    spark: Mapping[str, str] = field(default_factory=dict)
    metrics_bind: str | None = None
    status_topic: str | None = None


def run(pipeline: Pipeline, options: PipelineOptions, stop: StopRequests, ready: Callable[[], None]) -> None:
    """Run the pipeline until a stop request arrives, or until a query of mode `once` has ended.

    Args:
        pipeline: the query and its topics.
        options: how to run it.
        stop: the stop requests.
        ready: called each time that the query starts to process records.

    Raises:
        CommandError: the pipeline cannot run before the user fixes something.
    """
    settings = pipeline.spark_settings | dict(options.spark)
    sessions = session.Sessions(f"kafkasse {pipeline.name}", options.master, settings)
    status = Status.of(pipeline)
    with metrics.serving(options.metrics_bind, status), closing(sessions), ExitStack() as resources:
        application = _PipelineApplication(pipeline, options, sessions, resources, stop, ready, status)
        supervise(application.attempt, stop, application.report, application.position, application.skip)


@dataclass
class _PipelineApplication:
    pipeline: Pipeline
    options: PipelineOptions
    sessions: session.Sessions
    resources: ExitStack
    stop: StopRequests
    ready: Callable[[], None]
    status: Status
    directory: str = ""
    is_rebuilt: bool = False
    topic: StatusTopic | None = None
    lag_reader: LagReader | None = None
    processed: NextOffsets = field(default_factory=dict)
    measured_at_s: float = -math.inf
    written_at_s: float = -math.inf
    skipped: int = 0  # records

    def attempt(self) -> None:
        topics.check_reachable(self.options.bootstrap_servers)
        try:
            self._attempt()
        except AnalysisException as error:
            raise CommandError(f"Spark rejects the query of the pipeline {self.pipeline.name}: {error}") from error
        except (PySparkException, Py4JJavaError) as error:  # for example, the cluster has removed the application
            raise Crashed(f"Spark failed: {failures.first_line_of(error)}") from error

    def _attempt(self) -> None:
        if self.stop.wait(0.0):
            return
        with self.sessions.use() as spark:
            self.stop.install()  # again, because PySpark has installed its own handler
            if self.stop.wait(0.0):
                return
            spark.sparkContext.setLogLevel(self.options.log_level)
            kafka = self._kafka(spark)
            self._open_status_topic(spark, kafka)
            directory = self._checkpoints(spark)
            is_kept = directory != self.directory
            attempt = runner.Attempt(
                self.pipeline,
                kafka,
                directory,
                self.stop,
                self.report,
                partial(self.progressed, spark, kafka),
                is_kept,
                partial(self.started, spark, kafka),
                partial(self.polled, spark, kafka),
            )
            if self._is_rebuilding():
                self.is_rebuilt = rebuild.run(spark, self.pipeline, kafka, directory, self.stop)
                if not self.is_rebuilt:
                    return
            attempt.run(spark)

    def report(self, state: PipelineState, reason: str) -> None:
        log_state(self.pipeline.name, state, reason)
        self.status.enter(state, reason)
        self._write_status(wait=state in (PipelineState.STOPPED, PipelineState.FAILED))
        if state is PipelineState.RUNNING:
            self.ready()

    def progressed(self, spark: SparkSession, kafka: dict[str, str], progress: StreamingQueryProgress) -> None:
        """Update the status after a commit of the pipeline's query, or of the query that writes the dead letters."""
        if letters := progress.observedMetrics.get(dead_letters.OBSERVED):
            self.status.rejected(letters.records)
            return
        results = progress.observedMetrics.get(contract.OBSERVED)
        if results and results.records:
            self.status.rejected(results.records)
            logger.warning("dead letters: %d results, such as one because %s", results.records, results.example)
        batch = json.loads(progress.json)
        if late_rows := self.status.committed(batch):
            logger.warning("later than the watermark: %d rows, which were dropped", late_rows)
        self.processed = next_offsets.of_progress(batch)
        if time.monotonic() - self.measured_at_s >= STATUS_INTERVAL_S:
            self._measure_lag(spark, kafka, ended_at_ms(batch))

    def started(self, spark: SparkSession, kafka: dict[str, str], committed: NextOffsets) -> None:
        """Measure the lag before the first commit of this run."""
        self.processed = committed
        self._measure_lag(spark, kafka, now_ms())

    def polled(self, spark: SparkSession, kafka: dict[str, str]) -> None:
        """Measure the lag if no batch has been committed for a long time. Write the status at intervals in any case."""
        if time.monotonic() - self.measured_at_s >= OVERDUE_INTERVALS * topics.commit_interval_s(self.pipeline):
            self._measure_lag(spark, kafka, now_ms())
        elif time.monotonic() - self.written_at_s >= STATUS_INTERVAL_S:
            self._write_status()

    def _measure_lag(self, spark: SparkSession, kafka: dict[str, str], at_ms: int) -> None:
        """Set the lag at this time. If Kafka does not answer, the lag does not change."""
        self.measured_at_s = time.monotonic()
        try:
            if self.lag_reader is None or self.lag_reader.spark is not spark:
                self.lag_reader = LagReader(spark, kafka)
            self.status.measured(*self.lag_reader.read(self.processed), at_ms)
        except (Py4JError, PySparkException, OSError) as error:
            logger.debug("cannot measure the lag: %s", failures.first_line_of(error))
        self._write_status()

    def _write_status(self, *, wait: bool = False) -> None:
        self.written_at_s = time.monotonic()
        if self.topic:
            self.topic.write(self.status, wait=wait)

    def _open_status_topic(self, spark: SparkSession, kafka: dict[str, str]) -> None:
        if self.options.status_topic and (self.topic is None or self.topic.spark is not spark):
            self.topic = StatusTopic(spark, kafka, self.options.status_topic)
            self._write_status()

    def position(self) -> str:
        """Return the position of the record that the query cannot process, or else that of the last commit."""
        try:
            with self.sessions.use() as spark:
                return failing_record.find(spark, self.pipeline, self._kafka(spark), self._checkpoints(spark))
        except (Interrupted, CommandError, PySparkException, Py4JError, OSError):
            return "the position of the last commit"

    def skip(self, crash: Crashed) -> str:
        """Turn the records that the query cannot process into dead letters, and skip them. Returns how many, or ""."""
        if not crash.data_error:
            return ""
        try:
            with self.sessions.use() as spark:
                kafka, directory = self._kafka(spark), self._checkpoints(spark)
                path = rebuild.unfinished(spark, self.pipeline, kafka, directory) if self._is_rebuilding() else None
                path = path or runner.checkpoint_path(spark, self.pipeline, kafka, directory)
                limit = MAX_SKIPPED - self.skipped
                found = failing_record.skip(spark, self.pipeline, kafka, path, crash.data_error, limit)
        except (Interrupted, CommandError, PySparkException, Py4JError, OSError) as error:
            logger.warning("cannot skip the records that fail: %s", failures.first_line_of(error))
            return ""
        for each in found:
            logger.warning("dead letters: the query fails for %s", each)
        self.skipped += len(found)
        self.status.rejected(len(found))
        return f"the failing records ({len(found)}), which are dead letters now" if found else ""

    def _is_rebuilding(self) -> bool:
        return self.options.rebuild and not self.is_rebuilt

    def _kafka(self, spark: SparkSession) -> dict[str, str]:
        return topics.client_settings(spark, self.options.properties, self.options.bootstrap_servers)

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
