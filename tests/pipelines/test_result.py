"""The rows of a query become the records of its sinks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, result


def records(pipeline: Pipeline, **sources: DataFrame) -> list[tuple[Any, ...]]:
    """The topic, key and value of each record."""
    return [(row.topic, row.key, row.value) for row in result.rows(pipeline, lambda: sources).collect()]


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """Two orders and a removed order."""
    return spark.createDataFrame([("1", 50), ("2", 200), ("3", None)], "id string, amount int").coalesce(1)


def test_the_rows_of_each_sink_have_its_topic(orders: DataFrame) -> None:
    """One Spark query writes all sinks."""

    def by_size(orders: DataFrame) -> dict[str, DataFrame]:
        rows = orders.selectExpr("id AS key", "CAST(amount AS STRING) AS value")
        return {"large": rows.where("value > 100"), "small": rows.where("value <= 100")}

    split = Pipeline("split", "orders", by_size, {"large": "large-orders", "small": "small-orders"})

    assert [("large-orders", "2", "200"), ("small-orders", "1", "50")] == records(split, orders=orders)


def test_the_query_receives_several_sources_by_name(orders: DataFrame) -> None:
    """The order of the sources does not matter."""

    def joined(orders: DataFrame, names: DataFrame) -> DataFrame:
        return orders.join(names, "id").selectExpr("id AS key", "name AS value")

    names = orders.sparkSession.createDataFrame([("1", "one")], "id string, name string")
    pipeline = Pipeline("joined", {"names": "names", "orders": "orders"}, joined, "named-orders")

    assert [("named-orders", "1", "one")] == records(pipeline, names=names, orders=orders)


def test_the_key_selects_a_column(orders: DataFrame) -> None:
    """The value is a JSON object of all columns, or a tombstone if nothing but the key is left."""
    pipeline = Pipeline("amounts", "orders", lambda orders: orders, "amounts", key="id")

    assert [("1", {"id": "1", "amount": 50}), ("2", {"id": "2", "amount": 200}), ("3", None)] == [
        (key, value and json.loads(value)) for _, key, value in records(pipeline, orders=orders)
    ]


def test_a_missing_column_is_an_error(orders: DataFrame) -> None:
    """The message names the columns that the query returns."""
    with pytest.raises(
        CommandError, match="returns the columns id, amount, but not key and value; select them, or set key="
    ):
        records(Pipeline("amounts", "orders", lambda orders: orders, "amounts"), orders=orders)
    with pytest.raises(CommandError, match="returns no column code, which is its key; it returns id, amount"):
        records(Pipeline("amounts", "orders", lambda orders: orders, "amounts", key="code"), orders=orders)


@pytest.mark.parametrize(
    ("returned", "message"), [(None, "must return a DataFrame, not None"), ({}, "must return a dict")]
)
def test_a_query_that_returns_something_else_is_an_error(orders: DataFrame, returned: Any, message: str) -> None:
    """A forgotten `return` is the most frequent reason."""
    with pytest.raises(CommandError, match=message):
        records(Pipeline("amounts", "orders", lambda orders: returned, "amounts"), orders=orders)
