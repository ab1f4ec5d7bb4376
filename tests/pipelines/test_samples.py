"""The queries in docs/pipelines.md, with real Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafkasse.pipelines.dead_letters import bad_records
from kafkasse.pipelines.pipeline import Pipeline
from tests.pipelines.rows import kafka_rows

PAGE = (Path(__file__).parents[2] / "docs/pipelines.md").read_text()


def query(name: str) -> Any:
    """Return the function of the page with this name."""
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if f"def {name}(" in code]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own docs
    return names[name]


def test_the_query_that_rejects_records(spark: SparkSession) -> None:
    """A value that is not an amount becomes a dead letter. The other record becomes a result."""
    rows = kafka_rows(spark, ("1", "9.50"), ("2", "much"))
    pipeline = Pipeline("paid", source="orders", query=query("paid"), sink="paid")

    bad = bad_records(pipeline, {"orders": rows})

    assert bad is not None
    assert [(b"2", "its value is not an amount")] == [(bytes(row.key), row.problem) for row in bad.collect()]
    assert [b"9.50"] == [bytes(row.value) for row in query("paid")(rows).collect()]


def test_the_query_with_an_operator(spark: SparkSession) -> None:
    """The result contains the largest orders of each shop, in order."""
    rows = kafka_rows(spark, ("1", '{"shop": "a", "amount": 5}'), ("2", '{"shop": "a", "amount": 7}'))

    *_, last = query("largest_orders")(rows).sort("version").collect()

    assert ("a", '[{"shop":"a","amount":7},{"shop":"a","amount":5}]') == (last.key, last.value)
