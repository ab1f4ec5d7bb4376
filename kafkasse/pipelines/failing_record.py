"""Find the record that a query cannot process, after the query has failed at it several times.

Spark's error names neither the record nor its offset. So this module runs the query without its sink, as a batch, on parts
of the records after the last commit, and halves the part that fails. It does not find a record that fails only together
with the query's state, or in the sink; then it returns the position of the last commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkasse.pipelines import result, runner, topics
from kafkasse.pipelines.checkpoint import Offsets, last_commit
from kafkasse.pipelines.pipeline import Pipeline

SEARCH_TIMEOUT_S = 60.0


def find(spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoints: str) -> str:
    """Return the position of the first record that fails, or else of the last commit, as text."""
    committed = last_commit(spark, runner.checkpoint_path(spark, pipeline, kafka, checkpoints))
    if len(pipeline.sources) == 1:
        [source] = pipeline.sources.values()
        search = _Search(spark, pipeline, kafka, source.topic)
        found = search.run(committed.get(source.topic, {}))
        if found:
            return f"{source.topic}, partition {found[0]}, offset {found[1]}"
    return f"the last commit, {_text(committed)}" if committed else "the start of the topic, before the first commit"


def _text(offsets: Offsets) -> str:
    return ", ".join(
        f"{topic} partition {partition} offset {offset}"
        for topic, partitions in offsets.items()
        for partition, offset in sorted(partitions.items())
    )


class _Search:
    def __init__(self, spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], topic: str) -> None:
        self._spark, self._pipeline, self._kafka, self._topic = spark, pipeline, kafka, topic
        self._deadline_s = time.monotonic() + SEARCH_TIMEOUT_S

    def run(self, committed: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the partition and the offset of the first record that fails after these offsets."""
        for partition, first, last in self._ranges(committed):
            if self._fails(partition, first, last + 1):
                return partition, self._first_failing(partition, first, last)
        return None

    def _ranges(self, committed: Mapping[str, int]) -> list[Any]:
        """Return each partition with records after the commit, and the first and the last offset of these records."""
        rows = self._read()
        for partition, offset in committed.items():
            rows = rows.where((F.col("partition") != int(partition)) | (F.col("offset") >= offset))
        return rows.groupBy("partition").agg(F.min("offset"), F.max("offset")).orderBy("partition").collect()

    def _first_failing(self, partition: int, first: int, last: int) -> int:
        passes, fails = first, last + 1  # [first, passes) does not fail, and [first, fails) does
        while fails - passes > 1 and time.monotonic() < self._deadline_s:
            middle = (passes + fails) // 2
            if self._fails(partition, first, middle):
                fails = middle
            else:
                passes = middle
        return fails - 1

    def _fails(self, partition: int, first: int, end: int) -> bool:
        """Whether the query fails for the records `[first, end)` of the partition."""
        [name] = self._pipeline.sources
        rows = self._read().where((F.col("partition") == partition) & F.col("offset").between(first, end - 1))
        try:
            result.rows(self._pipeline, lambda: {name: rows}).write.format("noop").mode("overwrite").save()
        except PySparkException:
            return True
        return False

    def _read(self) -> DataFrame:
        # Spark needs the offsets of all partitions or none. It skips what the filters on `partition` and `offset` exclude.
        return topics.read_now(self._spark, self._kafka, self._topic)
