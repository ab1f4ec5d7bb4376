"""Run a pipeline's query: start it, wait until it runs, report bad records, and explain why it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import json_records, topics
from kafkasse.pipelines.catalog import Pipeline

START_TIMEOUT_S = 120.0
START_POLL_INTERVAL_S = 0.05
POLL_INTERVAL_S = 1.0
MAX_REASON_CHARACTERS = 300
KNOWN_FAILURES = {
    "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT": (
        "Spark has too few slots: real-time mode needs one slot for each partition of the source and one for the query, "
        "all at the same time; use --master local[N] with a larger N, or give the cluster more cores"
    ),
    "OffsetOutOfRangeException": (
        "Kafka deleted records before the pipeline read them; use a new --checkpoint to start with the oldest record that "
        "is left"
    ),
    "UnknownTopicOrPartitionException": "the source topic or the sink topic was deleted; create it and start again",
    "TimeoutException": "Kafka does not respond; start again when it does",
}


@contextmanager
def running_query(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoints: str
) -> Iterator[StreamingQuery]:
    """Run the pipeline's query until the block ends.

    Args:
        spark: the session to run it in.
        pipeline: the query and its topics.
        kafka: settings of the Kafka clients, including `bootstrap.servers`.
        checkpoints: a directory that all machines of Spark can access. Each pair of topic IDs has its own checkpoint
            below it. A recreated topic has a new ID, so the offsets and the state of the old topic are not used for it.

    Raises:
        CommandError: a topic does not exist, or Kafka does not respond.
    """
    source, sink = topics.topic_ids(spark, kafka, (pipeline.source, pipeline.sink))
    rows = pipeline.query(topics.read(spark, kafka, pipeline.source))
    query = topics.write(rows, kafka, pipeline.sink, f"{checkpoints.rstrip('/')}/{pipeline.name}-{source}-{sink}")
    try:
        yield query
    finally:
        query.stop()


def wait_until_running(spark: SparkSession, query: StreamingQuery, stop_requests: SimpleQueue[int]) -> bool:
    """Return True when all tasks of the query are running, or False if a stop request arrives first.

    Raises:
        CommandError: the query failed, or it did not start in time.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _is_running(spark, query):
        if not query.isActive:
            raise _failure(query)
        if time.monotonic() > deadline_s:
            raise CommandError(
                f"Spark did not start the query within {START_TIMEOUT_S:.0f} s (--log-level INFO shows more)"
            )
        if _stop_requested(stop_requests, START_POLL_INTERVAL_S):
            return False
    return True


def _is_running(spark: SparkSession, query: StreamingQuery) -> bool:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return bool(stages) and all(stage and stage.numActiveTasks == stage.numTasks for stage in stages)


def monitor(query: StreamingQuery, stop_requests: SimpleQueue[int]) -> None:
    """Report the bad records of each batch on stderr, until a stop request arrives.

    Raises:
        CommandError: the query ended without a stop request.
    """
    reported = None
    while query.isActive:
        progress = query.lastProgress  # polled more often than batches end, so that no batch is missed
        if progress and progress.batchId != reported:
            reported = progress.batchId
            if message := json_records.bad_records_message(progress):
                sys.stderr.write(f"kafkasse pipeline: {message}\n")
                sys.stderr.flush()
        if _stop_requested(stop_requests, POLL_INTERVAL_S):
            return
    raise _failure(query)


def _stop_requested(stop_requests: SimpleQueue[int], timeout_s: float) -> bool:
    try:
        stop_requests.get(timeout=timeout_s)
    except Empty:
        return False
    return True


def _failure(query: StreamingQuery) -> CommandError:
    reason = str(query.exception())
    for mark, sentence in KNOWN_FAILURES.items():
        if mark in reason:
            return CommandError(sentence)
    return CommandError(
        f"Spark ended the query: {reason.splitlines()[0][:MAX_REASON_CHARACTERS]} (--log-level ERROR shows more)"
    )
