"""Records of a test as rows of Spark's Kafka source, and streaming queries over files."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

START = datetime(2026, 11, 1, 12, tzinfo=UTC)


def kafka_rows(
    spark: SparkSession,
    *records: tuple[str | bytes | None, str | bytes | None],
    interval: timedelta = timedelta(minutes=1),
    first_offset: int = 0,
) -> DataFrame:
    """Records of one partition, in order, with the columns of Spark's Kafka source. Offset 0 was written at START."""
    rows = [
        (_bytes(key), _bytes(value), "orders", 0, offset, START + offset * interval)
        for offset, (key, value) in enumerate(records, first_offset)
    ]
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return spark.createDataFrame(rows, columns).coalesce(1)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


class MicroBatches:
    """The input, the checkpoint and the results of a query.

    Args:
        query: from rows of the input to results. A test can replace the query between two calls of process().
    """

    def __init__(
        self, spark: SparkSession, directory: Path, query: Callable[[DataFrame], DataFrame], output_mode: str = "update"
    ) -> None:
        self.query, self._output_mode = query, output_mode
        self._spark, self._directory = spark, directory
        self._files = 0
        self.results: list[Row] = []
        self.progress: list[Any] = []  # Spark's JSON of each batch of the last call of process()

    def process(self, *inputs: DataFrame) -> list[Row]:
        """Start the query, process each DataFrame as a micro-batch, and end the query. Returns the new results."""
        for rows in inputs:
            self._files += 1
            rows.write.parquet(str(self._directory / "input" / f"{self._files:04}"))
        source = self._spark.readStream.schema(inputs[0].schema).option("maxFilesPerTrigger", 1)
        count = len(self.results)
        query = (
            self.query(source.parquet(f"{self._directory}/input/*"))
            .writeStream.foreachBatch(lambda batch, _: self.results.extend(batch.collect()))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .outputMode(self._output_mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.progress = [json.loads(progress.json) for progress in query.recentProgress]
        return self.results[count:]
