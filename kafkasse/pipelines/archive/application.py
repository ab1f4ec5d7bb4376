"""Archive topics until a stop request arrives: one commit per topic and interval, or more while there is a backlog."""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kafkasse.archive.directory import ArchiveDirectory, Conflict, NotAnArchive
from kafkasse.archive.manifest import InvalidManifest
from kafkasse.archive.parquet import DamagedFile
from kafkasse.errors import CommandError
from kafkasse.pipelines.archive.offsets import Removed
from kafkasse.pipelines.archive.writer import archive
from kafkasse.pipelines.kafka import topics
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.spark import failures, private_spark, session
from kafkasse.pipelines.supervisor import (
    Crashed,
    DependencyUnavailable,
    Interrupted,
    PipelineState,
    StopRequests,
    log_state,
    supervise,
)
from kafkasse.process.log_line import Fields

logger = logging.getLogger("kafkasse.pipeline")
ARCHIVE_ERRORS = DamagedFile, OSError, InvalidManifest, NotAnArchive
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a topic in a cluster before Kafka 2.8


@dataclass(frozen=True)
class ArchiveOptions:
    """The options of `kafkasse archive run`."""

    bootstrap_servers: str
    directory: Path  # the directory of the archive, which Spark's executors can access too
    topics: Sequence[str]  # the names and patterns of the topics
    interval_s: float  # how long to wait after each commit that contained all records
    once: bool = False  # end as soon as all records are archived that the topics contain now
    properties: str = ""  # the content of the file --kafka-config
    master: str | None = None
    log_level: str = "OFF"


def run(options: ArchiveOptions, stop: StopRequests, ready: Callable[[], None]) -> None:
    """Archive the topics until a stop request arrives.

    Args:
        stop: the stop requests. A commit that has begun is completed.
        ready: called each time that Spark has started.

    Raises:
        CommandError: the topics cannot be archived before the user fixes something.
    """
    try:
        ArchiveDirectory(options.directory).create()
    except (NotAnArchive, OSError) as error:
        raise CommandError(f"the directory of the archive cannot be used: {error}") from error
    sessions = session.Sessions("kafkasse archive", options.master, {})
    with closing(sessions):
        application = _ArchiveApplication(options, sessions, stop, ready)
        supervise(application.attempt, stop, application.report, lambda: "the offsets of the last commit")


@dataclass
class _ArchiveApplication:
    options: ArchiveOptions
    sessions: session.Sessions
    stop: StopRequests
    ready: Callable[[], None]
    has_committed: bool = False
    unmatched: Set[str] = frozenset()  # patterns

    def attempt(self) -> None:
        topics.check_reachable(self.options.bootstrap_servers)
        if self.stop.wait(0.0):
            return
        with self.sessions.use() as spark:
            self.stop.install()  # again, because PySpark has installed its own handler
            spark.sparkContext.setLogLevel(self.options.log_level)
            self.has_committed = False
            try:
                kafka = topics.client_settings(spark, self.options.properties, self.options.bootstrap_servers)
                self.report(PipelineState.RUNNING, "")
                self._archive_all(spark, kafka)
            except Py4JJavaError as error:
                reason = private_spark.exception_text(spark, error.java_exception)
                raise failures.explain(reason, committed=self.has_committed) from error
            except PySparkException as error:
                raise Crashed(f"Spark failed: {failures.first_line_of(error)}", committed=self.has_committed) from error
            except ConnectionError:
                raise  # the JVM has exited; session() reports the reason
            except ARCHIVE_ERRORS as error:
                raise Crashed(f"the archive cannot be changed: {error}", committed=self.has_committed) from error
            except Conflict as error:
                raise CommandError(f"{error}; stop one of the two") from error

    def _archive_all(self, spark: SparkSession, kafka: dict[str, str]) -> None:
        while not self.stop.wait(0.0):
            began_at = time.monotonic()
            is_complete = True
            results: list[Exception | None] = []
            for topic, topic_id in self._topics(spark, kafka):
                if self.stop.wait(0.0):
                    return
                try:
                    is_complete = self._archive(spark, kafka, topic, topic_id) and is_complete
                    results.append(None)
                except ConnectionError:
                    raise  # the JVM has exited
                except (Py4JJavaError, PySparkException, Interrupted, *ARCHIVE_ERRORS) as error:
                    if self._was_deleted(spark, kafka, topic):
                        logger.warning("the topic %s was deleted", topic)
                        continue
                    reason = failures.first_line(private_spark.error_text(spark, error))
                    logger.error("cannot archive the topic %s: %s", topic, reason)
                    results.append(error)
            if is_complete:  # first, archive what the other topics contain
                self._raise_first(results)
            if is_complete and self.options.once:
                return
            if is_complete and self.stop.wait(max(0.0, self.options.interval_s - (time.monotonic() - began_at))):
                return

    def _raise_first(self, results: Sequence[Exception | None]) -> None:
        for error in filter(None, results):
            if isinstance(error, (Crashed, *ARCHIVE_ERRORS)) and None in results and not self.options.once:
                # A crash loop would end the archiving of the other topics, too.
                raise DependencyUnavailable(f"a topic cannot be archived: {error}") from error
            raise error

    def _archive(self, spark: SparkSession, kafka: Mapping[str, str], topic: str, topic_id: str) -> bool:
        directory = ArchiveDirectory(self.options.directory).topic(topic, topic_id)
        try:
            committed = archive(spark, kafka, directory)
        except Removed:
            return False  # retry at once
        if committed.lost:
            logger.error("Kafka removed %d offsets of the topic %s before they were archived.", committed.lost, topic)
        if committed.records:
            self.has_committed = True
            logger.info("archived %s", Fields(topic=topic, records=committed.records))
        return committed.is_complete

    def _was_deleted(self, spark: SparkSession, kafka: dict[str, str], topic: str) -> bool:
        """Return whether a topic that only a pattern names no longer exists."""
        if topic in self.options.topics:
            return False
        with Admin(spark, kafka) as admin:
            return topic not in admin.names()

    def _topics(self, spark: SparkSession, kafka: dict[str, str]) -> Iterator[tuple[str, str]]:
        """Yield each topic that the options name, with its topic ID."""
        patterns = {name for name in self.options.topics if any(character in name for character in "*?[")}
        named = [name for name in self.options.topics if name not in patterns]
        topic_ids = None
        with Admin(spark, kafka) as admin:
            while topic_ids is None:
                existing = sorted(name for name in admin.names() if not name.startswith("__"))
                matching = {pattern: fnmatch.filter(existing, pattern) for pattern in patterns}
                wanted = [*dict.fromkeys([*named, *sorted(chain(*matching.values()))])]
                try:
                    topic_ids = admin.topic_ids(wanted)
                except CommandError:  # perhaps because a topic of a pattern was deleted meanwhile
                    if admin.names() >= set(wanted) - set(named):
                        raise
        unmatched = {pattern for pattern in patterns if not matching[pattern]}
        for pattern in unmatched - self.unmatched:
            logger.warning("no topic matches the pattern %s", pattern)
        self.unmatched = unmatched
        for name, topic_id in zip(wanted, topic_ids, strict=True):
            if topic_id == NO_ID:
                raise CommandError(f"the topic {name} has no topic ID; an archive needs Kafka 2.8 or newer")
            yield name, topic_id

    def report(self, state: PipelineState, reason: str) -> None:
        log_state("archive", state, reason)
        if state is PipelineState.RUNNING:
            with suppress(OSError):  # the reader of stdout has gone
                self.ready()
