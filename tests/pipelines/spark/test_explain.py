"""`pipeline check` says which modes accept a query, and why one does not."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.commands import main
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.definition.catalog import TOPN, find
from kafkasse.pipelines.definition.steps import DeclaredQuery, DeclaredSource
from kafkasse.pipelines.explain import Explanation, explain, text
from kafkasse.pipelines.rejected_records import reject
from tests.pipelines.spark.runs import copy
from tests.pipelines.topics import country
from tests.support.waiting import wait_until


def counts(rows: DataFrame, window: Any = F.window) -> DataFrame:
    """The records of each key per minute."""
    windows = rows.withWatermark("timestamp", "1 minute").groupBy("key", window("timestamp", "1 minute"))
    return windows.count().selectExpr("key", "CAST(count AS STRING) AS value")


def sessions(rows: DataFrame) -> DataFrame:
    return counts(rows, F.session_window)


CITIES = Path(__file__).parents[3] / "examples/cities/pipelines.yaml"
REAL_TIME, MICRO_BATCHES = "  real-time mode: ", "  micro-batches: "


@pytest.mark.parametrize(
    ("pipeline", "stages", "realtime", "microbatch"),
    [
        (Pipeline("copy", "a-b", copy, "b"), "none", "accepted", "accepted"),
        (find(f"{CITIES}:city-changes"), "StateStoreSave", "accepted", "accepted"),
        (
            Pipeline("final", "a", counts, "b", mode="once", output_mode="append"),
            "StateStoreSave",
            "rejected: it writes only final results",
            "accepted",
        ),
        (
            Pipeline("sessions", "a", sessions, "b"),
            "SessionWindowStateStoreSave",
            "rejected: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]",
            "rejected: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]",
        ),
        (
            Pipeline("both", "a", lambda rows: {"b": counts(rows), "c": counts(rows)}, ["b", "c"]),
            "StateStoreSave, StateStoreSave",
            "rejected: [STREAMING_REAL_TIME_MODE.STATEFUL_OPERATORS_BEFORE_UNION_NOT_SUPPORTED]",
            "accepted",
        ),
    ],
    ids=["copy", "example", "final", "sessions", "both"],
)
def test_says_which_modes_accept_the_query(spark, pipeline, stages, realtime, microbatch):
    """Spark itself decides. Nothing is read from Kafka."""
    lines = list(text(pipeline, explain(spark, pipeline)))

    assert f"  stateful stages: {stages}" in lines
    assert any(line.startswith(REAL_TIME + realtime) for line in lines), lines
    assert any(line.startswith(MICRO_BATCHES + microbatch) for line in lines), lines
    assert "== Physical Plan ==" in lines


def test_warns_of_a_window_that_counts_corrected_records():
    """An aggregate cannot take a record back. `latest` is impossible with a maximum."""
    source = DeclaredSource({})
    count, largest = ({"aggregates": {"n": aggregate}} for aggregate in ("count(*)", "max(n)"))
    queries = {
        "all": {"window": count, "latest": True},
        "hourly": {"window": count},
        "sink": {"window": count},
        "largest": {"window": largest},
    }
    query = DeclaredQuery(queries, {"orders": source}, {})
    pipeline = Pipeline("x", {"orders": "orders"}, query, {name: name for name in queries})

    lines = list(text(pipeline, Explanation("", [], {})))

    warning = "also counts rows that a later record of their key corrects or removes"
    warning += "; to count only the latest row of each key, add latest: true"
    names = ("`window` of hourly", "`window`")
    assert [f"  warning: {name} {warning}" for name in names] == [line for line in lines if "warning" in line]


def headers(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "value", "'text' AS headers")


def letters(rows: DataFrame) -> DataFrame:
    return reject(rows.selectExpr("key", "value", "'bad' AS problem", "named_struct('key', key) AS record"))


@pytest.mark.parametrize(
    ("query", "reason"),
    [(headers, "DATATYPE_MISMATCH.CAST_WITHOUT_SUGGESTION"), (letters, "UNRESOLVED_COLUMN.WITH_SUGGESTION")],
)
def test_the_sinks_and_the_dead_letters_are_checked(spark, query, reason):
    """A column of the result has the wrong type, or the column `record` lacks a part of the record."""
    rejections = explain(spark, Pipeline("x", "a", query, "b")).rejections

    for rejection in rejections.values():
        assert rejection
        assert rejection.startswith(f"rejected: [{reason}]")


@pytest.mark.long
def test_real_time_mode_accepts_the_demo(spark):
    assert explain(spark, TOPN).rejections == {"realtime": None, "microbatch": None}


def test_describes_the_sources(spark):
    def joined(orders: DataFrame, shops: DataFrame) -> DataFrame:
        return orders.join(shops.select("key"), "key").select("key", "value")

    sources = {"orders": Source("all-orders", "latest", 5), "shops": Source("shops", table=True)}
    pipeline = Pipeline("joined", sources, joined, "b", mode="microbatch")

    lines = list(text(pipeline, explain(spark, pipeline)))

    assert [
        "  reads orders (all-orders) from latest, at most 5 records/s",
        "  reads shops as a table, when the query starts",
        "  writes b",
    ] == lines[1:4]


def test_an_invalid_query_is_an_error(spark, monkeypatch, capfd):
    """The message is one line, and PySpark does not print the stack trace of the JVM."""
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)  # Spark's default
    pipeline = Pipeline("wrong", "a", lambda rows: rows.select("keys"), "b")

    with pytest.raises(CommandError, match=r"the query of the pipeline wrong is not valid: \[UNRESOLVED_COLUMN.*keys"):
        explain(spark, pipeline)
    assert "" == capfd.readouterr().err


def test_the_exit_code_says_whether_the_mode_accepts_the_query(tmp_path, monkeypatch, capsys):
    """Here, only micro-batches accept it."""
    source = {"topic": "orders", "schema": {"properties": {"id": {"type": "string"}}}}
    definition = {"source": source, "query": {"select": ["id"]}, "sink": "ids"}
    file = tmp_path / "pipelines.yaml"
    monkeypatch.setattr("signal.signal", MagicMock())  # the command would change the handlers of this process
    monkeypatch.setattr("kafkasse.pipelines.spark.session.session", lambda *_: nullcontext(MagicMock()))
    explanation = Explanation("", [], {"realtime": "rejected: no", "microbatch": None})
    monkeypatch.setattr("kafkasse.pipelines.explain.explain", lambda *_: explanation)
    for mode, code in (("realtime", 1), ("microbatch", 0)):
        file.write_text(json.dumps({"pipelines": {"ids": definition | {"mode": mode}}}))

        exit_code = main(["pipeline", "check", str(file)])

        out, err = capsys.readouterr()
        assert code == exit_code
        assert "  micro-batches: accepted\n" in out
        assert ("the mode realtime of the pipeline ids is rejected" in err) == bool(code)


@pytest.mark.long
def test_the_state_has_a_new_snapshot(runs):
    """After a restart, Spark repeats the changes since the last snapshot of the state, so this must not be old."""
    with runs.running(runs.topn(mode="microbatch")):
        for commit in range(12):
            runs.topics.send(country("FR", commit))
            runs.results(commit + 1)

        wait_until(lambda: list(runs.directory.glob("topn-*/state/0/0/1[0-2]_*.zip")))
