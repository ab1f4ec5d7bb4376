"""Countries as records, and what a query makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

Record = tuple[bytes | None, bytes | None]


def country(code: str, size: int, continent: str = "Europe") -> Record:
    """A country's record, as `kafkasse load` makes it of countries.csv."""
    return code.encode(), json.dumps(fields(code, size, continent), ensure_ascii=False).encode()


def fields(code: str, size: int, continent: str = "Europe") -> dict[str, Any]:
    """What such a record says."""
    return {"name": f"Land of {code}", "code": code, "continent": continent, "population": 1000, "size": size}


def gone(code: str) -> Record:
    """A tombstone."""
    return code.encode(), None


def kafka_rows(spark: SparkSession, records: Iterable[Record]) -> DataFrame:
    """Records as Spark's Kafka source has them, of one partition, in order."""
    rows = [(key, value, 0, offset) for offset, (key, value) in enumerate(records)]
    return spark.createDataFrame(rows, "key binary, value binary, partition int, offset bigint").coalesce(1)


def top(value: str | bytes | None) -> list[str]:
    """The codes in a Top 3, largest first; none for a tombstone."""
    return [each["code"] for each in json.loads(value)["nrs"]] if value else []
