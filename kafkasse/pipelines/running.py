"""A pipeline's query from its start to its end: that it really runs, what it set aside, and why it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import records, topics
from kafkasse.pipelines.catalog import Pipeline

START_TIMEOUT_S = 120.0
START_LOOK_EVERY_S = 0.05
LOOK_EVERY_S = 1.0
REASON_CHARACTERS_MAX = 300
KNOWN_FAILURES = {
    "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT": (
        "Spark has too few slots: each partition of the source needs one and the query another, all at once; "
        "say --master local[N] with a larger N, or give the cluster more cores"
    ),
    "OffsetOutOfRangeException": (
        "Kafka has deleted records that the pipeline had not read; start again with a new --checkpoint, from what is left"
    ),
    "UnknownTopicOrPartitionException": "the source or the sink was deleted; create it and start again",
    "TimeoutException": "Kafka does not answer any more; start again when it does",
}


@contextmanager
def started(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoints: str
) -> Iterator[StreamingQuery]:
    """Run the pipeline's query for as long as the block lasts.

    Args:
        kafka: settings of Kafka's clients, `bootstrap.servers` among them.
        checkpoints: a directory that all of Spark sees. Each pair of topics has a checkpoint of its own there, and a
            topic that was deleted and made again is another topic: offsets and state of the old one would be wrong.

    Raises:
        CommandError: a topic is missing, or Kafka does not tell.
    """
    source, sink = topics.ids(spark, kafka, (pipeline.source, pipeline.sink))
    rows = pipeline.query(topics.read(spark, kafka, pipeline.source))
    query = topics.write(rows, kafka, pipeline.sink, f"{checkpoints.rstrip('/')}/{pipeline.name}-{source}-{sink}")
    try:
        yield query
    finally:
        query.stop()


def await_running(spark: SparkSession, query: StreamingQuery, asked_to_end: SimpleQueue[int]) -> bool:
    """Return True when every task of the query is at work, False when asked to end before.

    Raises:
        CommandError: the query has failed, or does not start.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _is_running(spark, query):
        if not query.isActive:
            raise _failure(query)
        if time.monotonic() > deadline_s:
            raise CommandError(f"Spark has not started the query in {START_TIMEOUT_S:.0f} s (more by --log-level INFO)")
        if _asked(asked_to_end, START_LOOK_EVERY_S):
            return False
    return True


def _is_running(spark: SparkSession, query: StreamingQuery) -> bool:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return bool(stages) and all(stage and stage.numActiveTasks == stage.numTasks for stage in stages)


def follow(query: StreamingQuery, asked_to_end: SimpleQueue[int]) -> None:
    """Tell on stderr what each batch sets aside, until asked to end.

    Raises:
        CommandError: the query has ended by itself.
    """
    told = None
    while query.isActive:
        progress = query.lastProgress  # looked at more often than there are batches, so none is missed
        if progress and progress.batchId != told:
            told = progress.batchId
            if line := records.told(progress):
                sys.stderr.write(f"kafkasse pipeline: {line}\n")
                sys.stderr.flush()
        if _asked(asked_to_end, LOOK_EVERY_S):
            return
    raise _failure(query)


def _asked(asked_to_end: SimpleQueue[int], timeout_s: float) -> bool:
    try:
        asked_to_end.get(timeout=timeout_s)
    except Empty:
        return False
    return True


def _failure(query: StreamingQuery) -> CommandError:
    said = str(query.exception())
    for mark, sentence in KNOWN_FAILURES.items():
        if mark in said:
            return CommandError(sentence)
    return CommandError(
        f"Spark ended the query: {said.splitlines()[0][:REASON_CHARACTERS_MAX]} (more by --log-level ERROR)"
    )
