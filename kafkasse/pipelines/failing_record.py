"""Find the records that a query cannot process, after the query has failed at them several times, and skip them.

Spark's error names neither the record nor its offset. So this module runs the query without its sink, as a batch, on parts
of the records after the last commit, and halves the part that fails. It does not find a record that fails only together
with the query's state, or in the sink; then find() returns the position of the last commit.

A record is skipped only if the query fails for it alone, with the same kind of error as in the pipeline, and does not fail
without records. Before the record is skipped, it becomes a dead letter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from kafkasse.pipelines import checkpoint as checkpoints
from kafkasse.pipelines import dead_letters, failures, lease, private_spark, runner, sink_rows, start, topics
from kafkasse.pipelines.admin import Admin
from kafkasse.pipelines.files import Files
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.skipped_records import FILE, MAX_SKIPPED, Skipped

SEARCH_TIMEOUT_S = 60.0
FIRST_PART = 1024  # offsets; the next parts are larger


class Failing(NamedTuple):
    """A record that the query cannot process, and the first line of the error."""

    partition: int
    offset: int
    reason: str


def find(spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoints_directory: str) -> str:
    """Return the position of the first record that fails, or else of the last commit, as text."""
    checkpoint = runner.checkpoint_path(spark, pipeline, kafka, checkpoints_directory)
    if len(pipeline.sources) == 1:
        search = _Search(spark, pipeline, kafka, checkpoint)
        for partition, offset in search.positions():
            return f"{search.topic}, partition {partition}, offset {offset}"
    committed = checkpoints.last_commit(spark, checkpoint)
    return f"the last commit, {_text(committed)}" if committed else "the start of the topic, before the first commit"


def _text(offsets: NextOffsets) -> str:
    return ", ".join(
        f"{topic} partition {partition} offset {offset}" for (topic, partition), offset in sorted(offsets.items())
    )


def skip(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str, data_error: str, limit: int
) -> list[str]:
    """Write the records that fail to the topic of dead letters, and then to the list of skipped records.

    If the process is killed in between, the next run writes the dead letters again.

    Args:
        spark, pipeline, kafka: see runner.running_query().
        checkpoint: the checkpoint of the query that fails.
        data_error: the kind of the error; see failures.data_error().
        limit: the largest number of records to skip.

    Returns:
        The position and the reason of each record.
    """
    if len(pipeline.sources) != 1 or not data_error:
        return []
    with lease.exclusive(Files(spark), checkpoint):
        search = _Search(spark, pipeline, kafka, checkpoint)
        limit = min(limit, MAX_SKIPPED - len(search.skipped.after(checkpoints.last_commit(spark, checkpoint)).records))
        found = search.records(data_error, limit) if limit > 0 else []
        if found:
            _write_dead_letters(spark, pipeline, kafka, search.topic, found)
            skipped = search.skipped.plus((search.topic, each.partition, each.offset) for each in found)
            Files(spark).write(f"{checkpoint}/{FILE}", skipped.text())
    return [f"{search.topic} partition {each.partition} offset {each.offset}: {each.reason}" for each in found]


def _write_dead_letters(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], topic: str, found: list[Failing]
) -> None:
    letters, max_bytes = start.prepare(spark, pipeline, kafka)
    reasons = [F.when(_is_at(each.partition, each.offset), F.lit(each.reason)) for each in found]
    records = topics.read_now(spark, kafka, topic).where(
        reduce(Column.__or__, (_is_at(each.partition, each.offset) for each in found))
    )
    rows = dead_letters.letters(records.withColumn("problem", F.coalesce(*reasons)), letters, max_bytes[letters])
    rows.write.format("kafka").options(**topics.connector(start.with_request_size(kafka, max_bytes))).save()


def _is_at(partition: int, offset: int) -> Column:
    return (F.col("partition") == partition) & (F.col("offset") == offset)


class _Search:
    """The search in the only source of a pipeline.

    Attributes:
        topic: the topic of the source.
        skipped: the records that the query does not read.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str) -> None:
        self._spark, self._pipeline, self._kafka = spark, pipeline, kafka
        [(self._name, source)] = pipeline.sources.items()
        self.topic = source.topic
        self.skipped: Skipped = checkpoints.skipped(spark, checkpoint)
        self._starts = checkpoints.start_offsets(spark, checkpoint)
        self._deadline_s = time.monotonic() + SEARCH_TIMEOUT_S

    def records(self, data_error: str, limit: int) -> list[Failing]:
        """Return the first records for which the query fails with this kind of error, without its sink and its state."""
        found: list[Failing] = []
        if self._error(0, 0, 0):
            return found
        for partition, offset in self.positions():
            reason = self._error(partition, offset, offset + 1)
            if failures.data_error(reason) == data_error:
                found.append(Failing(partition, offset, failures.first_line(reason)))
            if len(found) == limit:
                break
        return found

    def positions(self) -> Iterator[tuple[int, int]]:
        """Yield the partition and the offset of each record that fails, until the search takes too long."""
        with Admin(self._spark, self._kafka) as admin:
            offsets = admin.offsets(self.topic)
        for partition, (oldest, end) in sorted(offsets.items()):
            first = max(oldest, self._starts.get((self.topic, partition), 0))
            while not self._is_over() and (failing := self._first_failing(partition, first, end)) is not None:
                yield partition, failing
                first = failing + 1

    def _first_failing(self, partition: int, first: int, end: int) -> int | None:
        passes, fails = first, min(first + FIRST_PART, end)  # [first, passes) does not fail
        while passes < end and not self._error(partition, first, fails):
            if fails == end or self._is_over():
                return None
            passes, fails = fails, min(first + 2 * (fails - first), end)
        while fails - passes > 1 and not self._is_over():  # [first, fails) fails
            middle = (passes + fails) // 2
            if self._error(partition, first, middle):
                fails = middle
            else:
                passes = middle
        return passes if passes + 1 == fails else None

    def _is_over(self) -> bool:
        return time.monotonic() >= self._deadline_s

    def _error(self, partition: int, first: int, end: int) -> str:
        """Return the error of the query for the records `[first, end)` of the partition, or "" if it does not fail."""
        # Spark needs the offsets of all partitions or none. It skips what the filters on `partition` and `offset` exclude.
        read = topics.without_skipped(topics.read_now(self._spark, self._kafka, self.topic), self.topic, self.skipped)
        rows = read.where((F.col("partition") == partition) & F.col("offset").between(first, end - 1))
        try:
            sink_rows.sink_rows(self._pipeline, lambda: {self._name: rows}).write.format("noop").mode(
                "overwrite"
            ).save()
        except (PySparkException, Py4JJavaError) as error:
            return private_spark.error_text(self._spark, error)
        return ""
