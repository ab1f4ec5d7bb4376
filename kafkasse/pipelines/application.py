"""Run a pipeline from the first signal to the last commit: Spark's session, the checkpoint, and the supervision.

application ─▶ supervisor.supervise ─▶ _Application.attempt ─▶ runner.Attempt
                                          session.Sessions
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from kafkasse.errors import CommandError
from kafkasse.log_line import Fields
from kafkasse.pipelines import failing_record, rebuild, runner, session, temporary, topics
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.supervisor import Interrupted, State, StopRequests, supervise

logger = logging.getLogger("kafkasse.pipeline")


@dataclass(frozen=True)
class Options:
    """The options of `kafkasse pipeline run`. `properties` is the content of the file --kafka-config."""

    bootstrap_servers: str
    properties: str = ""
    checkpoint: str | None = None
    master: str | None = None
    log_level: str = "OFF"
    rebuild: bool = False


def run(pipeline: Pipeline, options: Options, stop: StopRequests, ready: Callable[[], None]) -> None:
    """Run the pipeline until a stop request arrives, or until a query of mode `once` has ended.

    Args:
        pipeline: the query and its topics.
        options: how to run it.
        stop: the stop requests.
        ready: called each time that the query starts to process records.

    Raises:
        CommandError: the pipeline cannot run before the user fixes something.
    """
    sessions = session.Sessions(f"kafkasse {pipeline.name}", options.master, pipeline.spark_settings)
    with closing(sessions), ExitStack() as resources:
        application = _Application(pipeline, options, sessions, resources, stop, ready)
        supervise(application.attempt, stop, application.report, application.position)


@dataclass
class _Application:
    pipeline: Pipeline
    options: Options
    sessions: session.Sessions
    resources: ExitStack
    stop: StopRequests
    ready: Callable[[], None]
    directory: str = ""
    is_rebuilt: bool = False

    def attempt(self) -> None:
        topics.check_reachable(self.options.bootstrap_servers)
        with self.sessions.use() as spark:
            self.stop.install()  # again, because PySpark has installed its own handler
            spark.sparkContext.setLogLevel(self.options.log_level)
            directory = self._checkpoints(spark)
            is_kept = directory != self.directory
            attempt = runner.Attempt(
                self.pipeline, self._kafka(spark), directory, self.stop, self.report, self.progressed, is_kept
            )
            try:
                if self.options.rebuild and not self.is_rebuilt:
                    self.is_rebuilt = rebuild.run(spark, self.pipeline, self._kafka(spark), directory, self.stop)
                    if not self.is_rebuilt:
                        return
                attempt.run(spark)
            except AnalysisException as error:
                raise CommandError(f"Spark rejects the query of the pipeline {self.pipeline.name}: {error}") from error

    def report(self, state: State, reason: str) -> None:
        level = logging.WARNING if state in (State.WAITING, State.RESTARTING) else logging.INFO
        fields = {"name": self.pipeline.name, "state": state.value} | ({"reason": reason} if reason else {})
        logger.log(level, "pipeline %s", Fields(fields))
        if state is State.RUNNING:
            self.ready()

    def progressed(self, _: StreamingQueryProgress) -> None:
        self.sessions.archive_classes()  # after the first commit, so that the archive contains the classes of a whole batch

    def position(self) -> str:
        """Return the record that the query cannot pass, or else where the query starts again and again."""
        try:
            with self.sessions.use() as spark:
                return failing_record.find(spark, self.pipeline, self._kafka(spark), self._checkpoints(spark))
        except (Interrupted, CommandError, Py4JError, OSError):
            return "the position of the last commit"

    def _kafka(self, spark: SparkSession) -> dict[str, str]:
        return topics.client_settings(spark, self.options.properties, self.options.bootstrap_servers)

    def _checkpoints(self, spark: SparkSession) -> str:
        """Return the directory of the checkpoints: a kept one, or `self.directory`, which exists as long as this process."""
        if kept := self.options.checkpoint or self.pipeline.checkpoint:
            return kept
        if not session.is_local(str(spark.sparkContext.master)):
            raise CommandError(
                "a Spark cluster needs a --checkpoint directory that all of its machines can access, such as hdfs://... "
                "or s3a://..."
            )
        if not self.directory:
            self.directory = str(self.resources.enter_context(temporary.directory("kafkasse-checkpoint-")))
        return self.directory
