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
from pyspark.sql import Column
from pyspark.sql import functions as F

from kafkasse.pipelines.checkpoints import checkpoint as checkpoints
from kafkasse.pipelines.checkpoints import lease
from kafkasse.pipelines.execution import dead_letters, start
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import sink_rows, topics
from kafkasse.pipelines.kafka.skipped_records import FILE, MAX_SKIPPED, Skipped
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.spark import failures, private_spark

SEARCH_TIMEOUT_S = 60.0
FIRST_PART = 1024  # offsets; the next parts are larger


class Failing(NamedTuple):
    """A record that the query cannot process, and the first line of the error."""

    partition: int
    offset: int
    reason: str


def find(run: Run) -> str:
    """Return the position of the first record that fails, or else of the last commit, as text."""
    checkpoint = run.checkpoint()
    if len(run.pipeline.sources) == 1:
        search = _Search(run, checkpoint)
        for partition, offset in search.positions():
            return f"{search.topic}, partition {partition}, offset {offset}"
    committed = checkpoints.last_commit(run.files, checkpoint)
    return f"the last commit, {_text(committed)}" if committed else "the start of the topic, before the first commit"


def _text(offsets: NextOffsets) -> str:
    return ", ".join(
        f"{topic} partition {partition} offset {offset}" for (topic, partition), offset in sorted(offsets.items())
    )


def skip(run: Run, checkpoint: str, data_error: str, limit: int) -> list[str]:
    """Write the records that fail to the topic of dead letters, and then to the list of skipped records.

    If the process is killed in between, the next run writes the dead letters again.

    Args:
        checkpoint: the checkpoint of the query that fails.
        data_error: the kind of the error; see failures.data_error().
        limit: the largest number of records to skip.

    Returns:
        The position and the reason of each record.
    """
    if len(run.pipeline.sources) != 1 or not data_error:
        return []
    with lease.exclusive(run.files, checkpoint):
        search = _Search(run, checkpoint)
        committed = checkpoints.last_commit(run.files, checkpoint)
        limit = min(limit, MAX_SKIPPED - len(search.skipped.after(committed).records))
        failing = search.records(data_error, limit) if limit > 0 else []
        if failing:
            _write_dead_letters(run, search.topic, failing)
            skipped = search.skipped.plus((search.topic, record.partition, record.offset) for record in failing)
            run.files.write(f"{checkpoint}/{FILE}", skipped.text())
    return [
        f"{search.topic} partition {record.partition} offset {record.offset}: {record.reason}" for record in failing
    ]


def _write_dead_letters(run: Run, topic: str, failing: list[Failing]) -> None:
    letters, max_bytes = start.prepare(run)
    reasons = [F.when(_is_at(record.partition, record.offset), F.lit(record.reason)) for record in failing]
    records = topics.read_now(run.spark, run.kafka, topic).where(
        reduce(Column.__or__, (_is_at(record.partition, record.offset) for record in failing))
    )
    rows = dead_letters.letters(records.withColumn("problem", F.coalesce(*reasons)), letters, max_bytes[letters])
    rows.write.format("kafka").options(**topics.connector(start.with_request_size(run.kafka, max_bytes))).save()


def _is_at(partition: int, offset: int) -> Column:
    return (F.col("partition") == partition) & (F.col("offset") == offset)


class _Search:
    """The search in the only source of a pipeline. `skipped` has the records that the query does not read."""

    def __init__(self, run: Run, checkpoint: str) -> None:
        self._run = run
        [(self._name, source)] = run.pipeline.sources.items()
        self.topic = source.topic
        self.skipped: Skipped = checkpoints.skipped(run.files, checkpoint)
        self._starts = checkpoints.start_offsets(run.files, checkpoint)
        self._deadline_s = time.monotonic() + SEARCH_TIMEOUT_S

    def records(self, data_error: str, limit: int) -> list[Failing]:
        """Return the first records for which the query fails with this kind of error, without its sink and its state."""
        failing: list[Failing] = []
        if self._error(0, 0, 0):
            return failing
        for partition, offset in self.positions():
            reason = self._error(partition, offset, offset + 1)
            if failures.data_error(reason) == data_error:
                failing.append(Failing(partition, offset, failures.first_line(reason)))
            if len(failing) == limit:
                break
        return failing

    def positions(self) -> Iterator[tuple[int, int]]:
        """Yield the partition and the offset of each record that fails, until the search takes too long."""
        with self._run.admin() as admin:
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
        read = topics.read_now(self._run.spark, self._run.kafka, self.topic)
        unskipped = topics.without_skipped(read, self.topic, self.skipped)
        rows = unskipped.where((F.col("partition") == partition) & F.col("offset").between(first, end - 1))
        try:
            records = sink_rows.sink_rows(self._run.pipeline, lambda: {self._name: rows})
            records.write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            return private_spark.error_text(self._run.spark, error)
        return ""
