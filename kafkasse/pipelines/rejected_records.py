"""Split the rows that a query cannot process from the others. This module does not write dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import DataFrame

__all__ = ["reject"]  # for queries

_rejected: ContextVar[list[DataFrame] | None] = ContextVar("rejected", default=None)


def reject(rows: DataFrame) -> DataFrame:
    """Return the rows without a problem. collecting() receives the other records.

    Args:
        rows: parsed records. The text column `problem` has the reason why a record is bad, or null. The struct column
            `record` has all columns of the record in Spark's Kafka source. Both columns are dropped.
    """
    rejected = _rejected.get()
    if rejected is not None:
        rejected.append(rows.where("problem IS NOT NULL").select("record.*", "problem"))
    return rows.where("problem IS NULL").drop("problem", "record")


@contextmanager
def collecting() -> Iterator[list[DataFrame]]:
    """Collect the rejected records of the queries that are called in the block, with their `problem`."""
    rejected: list[DataFrame] = []
    token = _rejected.set(rejected)
    try:
        yield rejected
    finally:
        _rejected.reset(token)
