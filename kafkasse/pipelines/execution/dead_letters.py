"""Dead letters: the records that a query cannot process, in a topic of their own, with their original bytes and the reason.

    query ─▶ reject() ─▶ good rows ─▶ the query's result ─▶ sinks
                 └─────▶ bad rows ──▶ a query of its own ──▶ dead letters

The second query reads the sources on its own and has its own checkpoint, because real-time mode allows one sink for each
query and no union after a stateful operator. So bad records never delay good ones. It runs every INTERVAL_S seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from threading import Event, Thread
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.pipelines import rejected_records
from kafkasse.pipelines.checkpoints.checkpoint import of_dead_letters
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import contract, sink_rows, topics
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.supervisor import StopRequests, backoff_s

INTERVAL_S = 5.0
POLL_INTERVAL_S = 1.0
STOP_TIMEOUT_S = 30.0
OBSERVED = "dead_letters"  # the observation that counts bad records: `records`, and `example`

logger = logging.getLogger("kafkasse.pipeline")


def bad_records(pipeline: Pipeline, sources: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return the records that the pipeline's query rejects, with their `problem`, or None if it checks no records."""
    with rejected_records.collecting() as rejected:
        sink_rows.query_results(pipeline, sources)
    return reduce(DataFrame.unionByName, rejected) if rejected else None


def letters(bad: DataFrame, topic: str, max_bytes: int) -> DataFrame:
    """Return the dead letters of bad records, for Spark's Kafka sink.

    Args:
        bad: the rows of bad_records().
        max_bytes: the size of its largest record.
    """
    example = F.format_string("%s partition %d offset %d: %s", "topic", "partition", "offset", "problem")
    observed = bad.observe(OBSERVED, F.count(F.lit(1)).alias("records"), F.max(example).alias("example"))
    return contract.letters(observed, topic, max_bytes)


@contextmanager
def running(
    run: Run, checkpoint: str, topic: str, max_bytes: int, skipped: Skipped, stop: StopRequests
) -> Iterator[None]:
    """Write the dead letters of the pipeline until the block ends. In mode `once`, wait until all are written.

    Args:
        max_bytes: the size of its largest record.
        skipped: the records that are not read, because they are dead letters already.
        stop: a stop request ends the waiting; the next run writes the rest.
    """
    pipeline = run.pipeline
    bad = bad_records(pipeline, topics.read_all(run.spark, run.kafka, pipeline, skipped))
    if bad is None:
        yield
        return
    if pipeline.mode == "realtime":
        # Real-time mode starts no batch while these jobs have more tasks than there are free slots.
        bad = bad.coalesce(1)
    writer = _Writer(letters(bad, topic, max_bytes), topic, run.kafka, checkpoint, is_once=pipeline.mode == "once")
    thread = Thread(target=writer.run, name="dead letters", daemon=True)
    thread.start()
    try:
        yield
        while pipeline.mode == "once" and thread.is_alive() and not stop.wait(0.0):
            thread.join(POLL_INTERVAL_S)
    finally:
        writer.stopped.set()
        thread.join(STOP_TIMEOUT_S)


class _Writer:
    """Runs the query that writes dead letters, and starts it again after a failure."""

    def __init__(self, rows: DataFrame, topic: str, kafka: Mapping[str, str], checkpoint: str, is_once: bool) -> None:
        self.stopped = Event()
        self._topic = topic
        self._is_once = is_once
        self._writer = (
            rows.writeStream.format("kafka")
            .options(**topics.connector(kafka))
            .option("checkpointLocation", of_dead_letters(checkpoint))
            .outputMode("append")
        )

    def run(self) -> None:
        failures = 0
        while not self.stopped.is_set():
            try:
                if self._run_once():
                    return
            except Exception as error:  # noqa: BLE001 - Spark raises many types, and the pipeline must not stop
                first = (str(error).splitlines() or [type(error).__name__])[0]
                logger.warning("dead letters are delayed, because their query ended: %s", first[:300])
            failures += 1
            self.stopped.wait(backoff_s(failures))

    def _run_once(self) -> bool:
        """Run the query. Returns False if it failed."""
        trigger: dict[str, Any] = (
            {"availableNow": True} if self._is_once else {"processingTime": f"{INTERVAL_S} seconds"}
        )
        query = self._writer.trigger(**trigger).start()
        reported = -1, ""
        try:
            while query.isActive and not self.stopped.is_set():
                reported = self._report(query, reported)
                self.stopped.wait(POLL_INTERVAL_S)
            self._report(query, reported)
            if (error := query.exception()) is not None:
                raise error
            return self._is_once or self.stopped.is_set()
        finally:
            query.stop()

    def _report(self, query: StreamingQuery, reported: tuple[int, str]) -> tuple[int, str]:
        """Log the batches after `reported`: the number of a batch, and when it began.

        Before a batch, there may be a progress of its number without records.
        """
        if (last := query.lastProgress) is None or (last.batchId, last.timestamp) <= reported:
            return reported  # recentProgress parses 100 reports
        for progress in query.recentProgress:
            if (progress.batchId, progress.timestamp) <= reported:
                continue
            reported = progress.batchId, progress.timestamp
            observed = progress.observedMetrics.get(OBSERVED)
            if observed is not None and observed.records:
                logger.warning("dead letters: %d in %s, such as %s", observed.records, self._topic, observed.example)
        return reported
