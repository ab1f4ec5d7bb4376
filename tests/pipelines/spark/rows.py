"""Records of a test as rows of Spark's Kafka source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession

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
