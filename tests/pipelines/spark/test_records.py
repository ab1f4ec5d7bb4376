"""Records become rows, and the rows of a query become the records of its sinks. Bad records are reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.execution.dead_letters import bad_records
from kafkasse.pipelines.explain import explain
from kafkasse.pipelines.json_records import TEXT, WHOLE_NUMBER, json_objects, validate
from kafkasse.pipelines.kafka import sink_rows
from tests.pipelines.spark.rows import kafka_rows

PAGE = (Path(__file__).parents[3] / "docs/pipelines-python.md").read_text()

FIELDS = {"code": TEXT, "size": WHOLE_NUMBER}

BAD_VALUES = [
    (b"", "its value is not JSON"),
    (b"France", "its value is not JSON"),
    (b'{"code":"FR","size":5', "its value is not JSON"),
    (b'{"code":"FR","size":5} and more', "its value is not JSON"),
    (b'{"code":"FR","size":5}{"code":"FR","size":6}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"size":6}', "its value is not JSON"),
    (b"{'code':'FR','size':5}", "its value is not JSON"),
    (b'{"code":"FR","size":NaN}', "its value is not JSON"),
    (b'{"code":"FR","size":5,"name":"\xff"}', "its value is not JSON"),
    (b"null", "its code is missing or not text"),
    (b"5", "its code is missing or not text"),
    (b'[{"code":"FR","size":5}]', "its code is missing or not text"),
    (b'{"size":5}', "its code is missing or not text"),
    (b'{"code":5,"size":5}', "its code is missing or not text"),
    (b'{"code":"FR"}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":null}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":"5"}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":5.5}', "its size is missing or not a whole number"),
    (b'{"code":"FR","size":9223372036854775808}', "its size is missing or not a whole number"),
    (b'{"code":"DE","size":5}', "its code differs from its key"),
]


def test_accepts_an_object_with_the_fields(spark):
    """The fields may be in any order, and the object may contain white space and other fields.

    Bad records are left out, and tombstones are kept.
    """
    values = [
        '{"code":"FR","size":5}',
        ' {"size": 6, "code": "FR", "more": [1, {"a": null}]} \n',
        '{"code":"FR","size":-9223372036854775808}',
        "{",
        None,
    ]

    rows = json_objects(kafka_rows(spark, *(("FR", value) for value in values)), FIELDS, "code")

    expected = [("FR", "FR", 5), ("FR", "FR", 6), ("FR", "FR", -(2**63)), ("FR", None, None)]
    assert expected == [tuple(row) for row in rows.select("key", *FIELDS).collect()]


def test_rejects_a_bad_value_with_its_problem(spark):
    """Kafka does not keep records without keys in order."""
    records = [*(("FR", value) for value, _ in BAD_VALUES), (None, None), (None, '{"code":"FR","size":5}')]

    rows = validate(kafka_rows(spark, *records), FIELDS, "code").collect()

    expected = [*(problem for _, problem in BAD_VALUES), "it has no key", "it has no key"]
    assert expected == [row.problem for row in rows]


def test_the_name_of_a_field_may_contain_any_character(spark):
    """JSON text may contain an escape sequence instead of a character."""
    for name in ("größe", "日本", 'a"b', "a'b", r"a\b", "a].b"):
        rows = kafka_rows(spark, *(("k", json.dumps({name: 5}, ensure_ascii=ascii)) for ascii in (True, False)))

        read = validate(rows, {name: WHOLE_NUMBER}, None).collect()

        assert [(None, 5)] * 2 == [(row.problem, row.fields[0]) for row in read], name


def records(pipeline: Pipeline, **sources: DataFrame) -> list[tuple[Any, ...]]:
    return [(row.topic, row.key, row.value) for row in sink_rows.sink_rows(pipeline, lambda: sources).collect()]


@pytest.fixture
def orders(spark: SparkSession) -> DataFrame:
    """Two orders and a removed order."""
    return spark.createDataFrame([("1", 50), ("2", 200), ("3", None)], "id string, amount int").coalesce(1)


def test_the_rows_of_each_sink_have_its_topic(orders):
    def by_size(orders: DataFrame) -> dict[str, DataFrame]:
        rows = orders.selectExpr("id AS key", "CAST(amount AS STRING) AS value")
        return {"large": rows.where("value > 100"), "small": rows.where("value <= 100")}

    split = Pipeline("split", "orders", by_size, {"large": "large-orders", "small": "small-orders"})

    assert [("large-orders", "2", "200"), ("small-orders", "1", "50")] == records(split, orders=orders)


def test_the_query_receives_several_sources_by_name(orders):
    """The order of the sources does not matter."""

    def joined(orders: DataFrame, names: DataFrame) -> DataFrame:
        return orders.join(names, "id").selectExpr("id AS key", "name AS value")

    names = orders.sparkSession.createDataFrame([("1", "one")], "id string, name string")
    pipeline = Pipeline("joined", {"names": "names", "orders": "orders"}, joined, "named-orders")

    assert [("named-orders", "1", "one")] == records(pipeline, names=names, orders=orders)


def test_the_key_selects_a_column(orders):
    """The value is a JSON object of all columns, or a tombstone if nothing but the key is left."""
    pipeline = Pipeline("amounts", "orders", lambda orders: orders, "amounts", key="id")

    assert [("1", {"id": "1", "amount": 50}), ("2", {"id": "2", "amount": 200}), ("3", None)] == [
        (key, value and json.loads(value)) for _, key, value in records(pipeline, orders=orders)
    ]


@pytest.mark.parametrize(
    ("returned", "key", "message"),
    [
        ("orders", None, "returns the columns id, amount, but not key and value; select them, or set key="),
        ("orders", "code", "returns no column code, which is its key; it returns id, amount"),
        (None, None, "must return a DataFrame, not None"),  # a forgotten `return` is the most frequent reason
        ({}, None, "must return a dict"),
    ],
)
def test_a_query_that_returns_something_else_is_an_error(orders, returned, key, message):
    query = Pipeline("x", "orders", lambda orders: orders if returned == "orders" else returned, "amounts", key=key)

    with pytest.raises(CommandError, match=message):
        records(query, orders=orders)


def query(name: str) -> Any:
    """Return the function of the page with this name."""
    return sample(f"def {name}(")[name]


def sample(part: str) -> dict[str, Any]:
    """Run the code of the page that contains this text. Returns what it defines."""
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if part in code]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own docs
    return names


def test_the_query_that_rejects_records(spark):
    """A value that is not an amount becomes a dead letter. The other record becomes a result."""
    rows = kafka_rows(spark, ("1", "9.50"), ("2", "much"))
    pipeline = Pipeline("paid", source="orders", query=query("paid"), sink="paid")

    bad = bad_records(pipeline, {"orders": rows})

    assert bad is not None
    assert [(b"2", "its value is not an amount")] == [(bytes(row.key), row.problem) for row in bad.collect()]
    assert [b"9.50"] == [bytes(row.value) for row in query("paid")(rows).collect()]


def test_the_query_with_an_operator(spark):
    rows = kafka_rows(spark, ("1", '{"shop": "a", "amount": 5}'), ("2", '{"shop": "a", "amount": 7}'))

    *_, last = query("largest_orders")(rows).sort("version").collect()

    assert ("a", '[{"shop":"a","amount":7},{"shop":"a","amount":5}]') == (last.key, last.value)


def test_the_pipeline_that_counts(spark):
    """The version is the highest offset, so each record of a page increases it. The default mode accepts the query."""
    views = sample("def count(")["views"]
    rows = kafka_rows(spark, ("home", None), ("shop", None), ("home", None))

    counts = sink_rows.sink_rows(views, lambda: {"events": rows}).sort("key").collect()

    assert [("home", '{"page":"home","views":2}', 2), ("shop", '{"page":"shop","views":1}', 1)] == [
        (row.key, row.value, row.version) for row in counts
    ]
    assert explain(spark, views).rejections[views.mode] is None
