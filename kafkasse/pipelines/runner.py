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
from kafkasse.pipelines import json_records, result, topics
from kafkasse.pipelines.pipeline import Mode, Pipeline

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
        checkpoints: a directory that all machines of Spark can access. Each set of topic IDs has its own checkpoint
            below it. A recreated topic has a new ID, so the offsets and the state of the old topic are not used for it.

    Raises:
        CommandError: a topic does not exist, or Kafka does not respond.
    """
    used = [source.topic for source in pipeline.sources.values()] + [sink.topic for sink in pipeline.sinks.values()]
    ids = topics.topic_ids(spark, kafka, used)
    rows = result.rows(pipeline, lambda: topics.read_all(spark, kafka, pipeline))
    checkpoint = f"{checkpoints.rstrip('/')}/{'-'.join([pipeline.name, *ids])}"
    query = topics.write(rows, kafka, pipeline, checkpoint)
    try:
        yield query
    finally:
        query.stop()


def wait_until_running(spark: SparkSession, query: StreamingQuery, mode: Mode, stop_requests: SimpleQueue[int]) -> bool:
    """Return True when the query processes records, or False if a stop request arrives first.

    Raises:
        CommandError: the query failed, or it did not start in time.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _is_running(spark, query, mode):
        if not query.isActive:
            if query.exception() is None and mode == "once":
                return True
            raise _failure(query)
        if time.monotonic() > deadline_s:
            raise CommandError(
                f"Spark did not start the query within {START_TIMEOUT_S:.0f} s (--log-level INFO shows more)"
            )
        if _stop_requested(stop_requests, START_POLL_INTERVAL_S):
            return False
    return True


def _is_running(spark: SparkSession, query: StreamingQuery, mode: Mode) -> bool:
    if mode != "realtime":
        return bool(query.isActive and not query.status["message"].startswith("Initializing"))
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(str(query.runId))]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return bool(stages) and all(stage and stage.numActiveTasks == stage.numTasks for stage in stages)


def monitor(query: StreamingQuery, mode: Mode, stop_requests: SimpleQueue[int]) -> None:
    """Report the bad records of each batch on stderr, until a stop request arrives or a query of mode `once` has ended.

    Raises:
        CommandError: the query failed, or it ended without a stop request.
    """
    reported = None
    active = True
    while active:
        active = query.isActive  # read first, so that the last batch is reported too
        progress = query.lastProgress  # polled more often than batches end, so that no batch is missed
        if progress and progress.batchId != reported:
            reported = progress.batchId
            if message := json_records.bad_records_message(progress):
                sys.stderr.write(f"kafkasse pipeline: {message}\n")
                sys.stderr.flush()
        if active and _stop_requested(stop_requests, POLL_INTERVAL_S):
            return
    if query.exception() is not None or mode != "once":
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
