"""The queries of a YAML file return the expected records for given records."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.definition.definitions import Definitions
from kafkasse.pipelines.definition.fields import fields
from kafkasse.pipelines.definition.steps import DeclaredQuery, DeclaredSource
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.json_records import validate
from kafkasse.pipelines.kafka import tables
from kafkasse.pipelines.observe.status import Status
from tests.pipelines.spark.rows import MicroBatches, kafka_rows

ORDER = {
    "properties": {
        "id": {"type": "string"},
        "amount": {"type": "integer"},
        "customer": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "items": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
    "required": ["amount"],
}
WINDOW = {"size": "1 hour", "aggregates": {"n": "count(*)"}}
ONE_SOURCE = {"source": {"topic": "orders", "schema": ORDER}, "sink": "result"}


def order(key: str, amount: int | None, **more: Any) -> tuple[str, str | None]:
    return key, None if amount is None else json.dumps({"amount": amount, **more})


class Defined:
    """Runs the query of a definition."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory

    def pipeline(self, definition: dict[str, Any]) -> Pipeline:
        path = self.directory / "pipelines.yaml"
        path.write_text(yaml.safe_dump({"pipelines": {"x": definition}}))
        return Definitions(path).pipeline("x")

    def frame(self, definition: dict[str, Any], **sources: DataFrame) -> dict[str, DataFrame]:
        results: Any = self.pipeline(definition).query(**sources)
        return dict(results)

    def __call__(self, query: dict[str, Any], *records: Any, **more: Any) -> list[tuple[str, Any]]:
        """The keys and the values that a query of one source and one sink returns."""
        rows = self.frame(ONE_SOURCE | {"query": query} | more, source=kafka_rows(self.spark, *records))["sink"]
        return [(row.key, row.value and json.loads(row.value)) for row in rows.collect()]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Defined:
    return Defined(spark, tmp_path)


def test_a_filter_retracts_a_row_that_stops_matching(run):
    """The tombstone removes the key from the sink. A condition that is null does not match."""
    query = {"where": "amount > 100 AND customer = 'x'", "select": ["amount"]}
    records = [order("a", 200, customer="x"), order("a", 50, customer="x"), order("b", 300, customer="x")]
    expected = [("a", {"amount": 200}), ("a", None), ("b", {"amount": 300}), ("b", None), ("c", None)]

    assert expected == run(query, *records, order("b", None), order("c", 200))


def test_select_computes_columns(run):
    """The expressions are those of Spark SQL. `*` stands for all fields. The version increases with the offset."""
    query = {"select": ["*", "amount * 2 AS double", "_key AS k", "size(items) AS n", "items[0].price AS first"]}
    records = kafka_rows(run.spark, order("a", 7, items=[{"price": 1.5}, {"price": 2}]), order("a", 2))

    rows = run.frame(ONE_SOURCE | {"query": query}, source=records)["sink"].collect()

    expected = {"double": 14, "k": "a", "n": 2, "first": 1.5, "amount": 7, "id": None}
    value = json.loads(rows[0].value)
    assert expected == {name: value[name] for name in expected}
    assert [(1, {0: 0}), (2, {0: 1})] == [(row.version, row.position) for row in rows]


def test_records_that_do_not_match_the_schema_are_left_out(run):
    """An optional field may be absent or null, but it has its type."""
    bad = [("a", b"{"), ("a", "{}"), ("a", '{"amount": "1"}'), ("a", '{"amount": 1, "customer": 5}'), (None, b"{}")]
    good = [("a", '{"amount": 1, "customer": null}')]

    assert [("a", {"amount": 1})] == run({"select": ["amount"]}, *bad, *good)


def test_the_problem_of_a_record_names_the_field(spark):
    """A time without a date would be one of today. A number that is too large would be infinity."""
    types = fields({"properties": ORDER["properties"] | {"price": {"type": "number"}}})
    bad = ['{"at": "yesterday"}', '{"at": 5}', '{"at": "10:00"}', '{"items": {}}', '{"price": 1e999}', "[]"]
    good = ['{"at": " 2026-11-01T12:00:00Z", "price": -1e308}', '{"at": "2026-11-01 12:00", "price": 0.5}', "{}"]

    rows = validate(kafka_rows(spark, *(("a", value) for value in bad + good)), types, None).select("problem").collect()

    expected = ["its at is not a time"] * 3 + ["its items is not an array", "its price is not a number"]
    assert [*expected, "its value is not an object", *[None] * len(good)] == [row.problem for row in rows]


def test_the_prefix_of_a_schema_registry_is_removed(run):
    """A value starts with the ID or the GUID of its schema."""
    query = DeclaredQuery({"sink": {"select": ["amount"]}}, {"source": DeclaredSource(fields(ORDER), framed=True)}, {})
    json_ = b'{"amount": 1}'
    rows = kafka_rows(run.spark, ("a", b"\0\0\0\0\5" + json_), ("b", b"\1" + bytes(16) + json_), ("c", json_))

    assert ['{"amount":1}'] * 3 == [row.value for row in query(source=rows)["sink"].collect()]


def test_latest_writes_only_changes(run):
    """A row that is repeated, and the removal of a row that is not in the result, give no record."""
    query = {"where": "amount > 100", "select": ["amount"], "latest": True}
    records = [order("a", amount) for amount in (50, 200, 200, 50, 60)]

    assert [("a", {"amount": 200}), ("a", None)] == run(query, *records)


@pytest.mark.parametrize("last", [order("a", 3), ("a", None)], ids=["a new row", "a removed row"])
def test_latest_gives_a_key_of_several_sources_increasing_versions(run, last):
    """The version contains the offsets of all sources, so a low offset of the second source does not lower it."""
    source = {"topic": "eu", "schema": ORDER}
    sources = {"eu": source, "us": source | {"topic": "us"}}
    pipeline = run.pipeline({"sources": sources, "query": {"latest": True}, "sink": "result"})

    def sink(rows: DataFrame) -> Any:
        return pipeline.query(**{name: rows.where(F.col("topic") == name) for name in sources})["sink"]

    eu, us = kafka_rows(run.spark, order("a", 1), order("a", 2), last), kafka_rows(run.spark, order("a", 4))
    results = MicroBatches(run.spark, run.directory, sink).process(
        eu.withColumn("topic", F.lit("eu")), us.withColumn("topic", F.lit("us"))
    )

    *_, before, after = results
    assert (last[1] is None, 3, 4) == (before.value is None, before.version, after.version)


def test_top_ranks_the_rows_of_each_group(run):
    """A row that stops matching leaves the ranking."""
    top = {"n": 2, "by": "amount", "group": "customer", "as": "orders"}
    query = {"where": "amount < 500", "select": ["id", "amount", "customer"], "top": top}
    records = [order(key, amount, id=key, customer="x") for key, amount in (("a", 1), ("b", 2), ("c", 3), ("c", 900))]

    *_, (key, value) = run(query, *records)

    assert ("x", "x", ["b", "a"]) == (key, value["customer"], [item["id"] for item in value["orders"]])


def test_top_can_rank_in_ascending_order(run):
    """The smallest row is the first, also if it is the smallest BIGINT, whose negative value is not a BIGINT."""
    top = {"n": 2, "by": "amount", "group": "customer", "order": "ascending"}
    records = [order(key, amount, id=key, customer="x") for key, amount in (("a", 2), ("b", 1), ("c", -(2**63)))]

    *_, (_, value) = run({"top": top}, *records)

    assert ["c", "b"] == [item["id"] for item in value["items"]]


def test_a_window_aggregates_records(run):
    """A sliding window counts each record in several windows."""
    window = {
        "size": "2 minutes",
        "slide": "1 minute",
        "by": ["customer"],
        "aggregates": {"orders": "count(*)", "total": "sum(amount)"},
    }
    records = [order("a", 1, customer="x"), order("b", 2, customer="x"), order("c", 9, customer="y")]

    results = run({"where": "amount < 5", "window": window}, *records)

    assert {
        ('{"customer":"x","window_start":"2026-11-01T11:59:00.000Z"}', 1, 1),
        ('{"customer":"x","window_start":"2026-11-01T12:00:00.000Z"}', 2, 3),
        ('{"customer":"x","window_start":"2026-11-01T12:01:00.000Z"}', 1, 2),
    } == {(key, value["orders"], value["total"]) for key, value in results}
    assert {"customer", "window_start", "window_end", "orders", "total"} == results[0][1].keys()


def test_each_group_of_a_window_has_its_own_key(run):
    """Null, spaces and an empty text do not make two groups equal. The time is a field, and a record needs no key."""
    window = {"time": "at", "size": "1 hour", "by": ["id", "customer"], "aggregates": {"n": "count(*)"}}
    groups = [("a b", "c"), ("a", "b c"), (None, "a"), ("a", None), ("", "a")]
    records = [order("", 1, id=id_, customer=customer, at="2026-01-02T03:04:05Z") for id_, customer in groups]

    results = run({"window": window}, *((None, value) for _, value in records))

    assert len(groups) == len({key for key, _ in results})
    assert {("2026-01-02T03:00:00.000Z", 1)} == {(value["window_start"], value["n"]) for _, value in results}


def test_final_results_are_written_once(run):
    """A window is written when the watermark has passed its end. A record that arrives later is counted as late instead."""
    window = {"time": "at", "size": "1 minute", "watermark": "10 seconds", "aggregates": {"n": "count(*)"}}
    query = {"window": window | {"results": "final"}}
    pipeline = run.pipeline(ONE_SOURCE | {"mode": "microbatch", "query": query})

    batches = MicroBatches(
        run.spark, run.directory, lambda rows: pipeline.query(source=rows)["sink"], pipeline.output_mode
    )
    times = [["12:00:10", "12:00:50", "12:02:00"], ["12:03:30"], ["12:00:20", "12:05:00"], ["12:09:00"]]

    results = batches.process(
        *(kafka_rows(run.spark, *(order("a", 1, at=f"2026-11-01T{time}Z") for time in batch)) for batch in times)
    )

    values = [json.loads(row.value) for row in results]
    counts = [(value["window_start"][11:16], value["n"]) for value in values]
    assert [("12:00", 2), ("12:02", 1), ("12:03", 1), ("12:05", 1)] == counts
    assert 1 == sum(Status.of(pipeline).committed(progress) for progress in batches.progress)


HOURLY = {
    "size": "1 hour",
    "time": "at",
    "watermark": "1 day",
    "aggregates": {"n": "count(*)", "known": "count(amount)", "total": "SUM(amount * 2)", "mean": "avg(amount)"},
}


def test_a_window_of_the_latest_rows_follows_corrections(run, tmp_path):
    """Corrections, moves, removals and rows that stop matching give what plain Python computes, in two micro-batches."""
    chance = Random(11)  # noqa: S311 - not used for cryptography
    records = [random_order(chance) for _ in range(120)]
    definition = ONE_SOURCE | {"query": {"where": "amount < 90", "window": HOURLY, "latest": True}}
    stream = MicroBatches(run.spark, tmp_path, lambda rows: run.frame(definition, source=rows)["sink"])
    rows = kafka_rows(run.spark, *records)

    stream.process(rows.where("offset < 60"), rows.where("offset >= 60"))

    newest = {row.key: row for row in sorted(stream.results, key=lambda row: row.version)}
    values = [json.loads(row.value) for row in newest.values() if row.value is not None]
    aggregates = {
        value["window_start"][11:13]: tuple(value[name] for name in ("n", "known", "total", "mean")) for value in values
    }
    assert hourly(records) == aggregates


def random_order(chance: Random) -> tuple[str, str | None]:
    """An order of one of a few customers at a random hour, or a tombstone."""
    key, at = chance.choice("abcdefghij"), f"2026-11-01T0{chance.randint(1, 4)}:30:00Z"
    return order(key, None if chance.random() < 0.2 else chance.randint(0, 100), at=at)


def test_a_window_of_the_latest_rows_can_lose_all_of_its_values(run, tmp_path):
    """Then the average is null, as with Spark's own aggregates."""
    source = {"topic": "orders", "schema": {"properties": ORDER["properties"]}}
    definition = {"source": source, "query": {"window": HOURLY, "latest": True}, "sink": "result"}
    stream = MicroBatches(run.spark, tmp_path, lambda rows: run.frame(definition, source=rows)["sink"])
    at = "2026-11-01T01:00:00Z"

    results = stream.process(
        kafka_rows(run.spark, order("a", 5, at=at)),
        kafka_rows(run.spark, ("a", json.dumps({"at": at})), first_offset=1),
        kafka_rows(run.spark, ("a", None), first_offset=2),
    )

    values = [row.value and json.loads(row.value) for row in results]
    assert [(1, 5.0), (1, None), None] == [value and (value["n"], value["mean"]) for value in values]


def hourly(records: list[tuple[str, str | None]]) -> dict[str, tuple[int, int, int, float]]:
    latest = [json.loads(value) for value in dict(records).values() if value is not None]
    hours: dict[str, list[int]] = {}
    for row in latest:
        if row["amount"] < 90:
            hours.setdefault(row["at"][11:13], []).append(row["amount"])
    return {hour: (len(of), len(of), 2 * sum(of), sum(of) / len(of)) for hour, of in hours.items()}


def test_enrich_adds_the_columns_of_tables(run):
    """A row without a match keeps null. A table with the same key twice does not duplicate rows."""
    pa, pq = (pytest.importorskip(name, reason="pip install pyarrow") for name in ("pyarrow", "pyarrow.parquet"))
    (run.directory / "customers.csv").write_text("id,csv\nx,Ann\ny,Bob\ny,Bob\n")
    rows = pa.table({"id": ["x", "y", "y"], "parquet": ["Ann", "Bob", "Bob"]})
    pq.write_table(rows, run.directory / "customers.parquet")
    tables = {name: {name: f"customers.{name}"} for name in ("csv", "parquet")}
    enrich = [{"table": name, "on": {"customer": "id"}} for name in tables]
    records = [order("a", 1, customer="y"), order("b", 1, customer="z"), order("c", 1)]

    results = run({"enrich": enrich, "select": [*tables]}, *records, tables=tables)

    none = dict.fromkeys(tables)
    assert [("a", {"csv": "Bob", "parquet": "Bob"}), ("b", none), ("c", none)] == results


def test_a_table_keeps_microseconds(spark):
    rows = spark.sql("SELECT timestamp '2026-11-01 12:00:00.123456' AS at, timestamp_ntz '2026-11-01 12:00:00.123456'")

    assert rows.collect() == tables.local(rows).collect()


def test_a_table_has_the_newest_record_of_a_key(spark):
    """The key moves to another partition if partitions are added to the topic. The offsets of two cannot be compared."""
    before = kafka_rows(spark, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"))
    after = kafka_rows(spark, ("b", None), ("a", "5"), ("a", "6")).withColumn("partition", F.lit(1))
    after = after.withColumn("timestamp", F.col("timestamp") + F.expr("INTERVAL 1 hour"))

    rows = tables.latest(before.union(after)).collect()

    assert {("a", "6"), ("c", "4")} == {(row.key.decode(), row.value.decode()) for row in rows}


@pytest.mark.parametrize(
    ("format_", "path", "reason"),
    [
        ("csv", "shop.csv", r"\[PATH_NOT_FOUND\] .*/shop.csv"),
        ("csv", "empty.csv", "the table shops of the query have no column id"),
        ("csv", "shops.csv", r"the table shops of the query have no column id \(did you mean ids\?\)"),
        ("csv", "short.csv", r"the row \[y,null\] of the table shops does not fit its columns"),
        ("csv", "twice.csv", "the table shops of the query have no column id .*id0, name, ID2"),
        ("parquet", "shop.parquet", r"\[PATH_NOT_FOUND\]"),
        ("parquet", "shops.csv", ".*/shops.csv is not a Parquet file"),
    ],
)
def test_an_unusable_table_is_an_error(run, format_, path, reason):
    """The error names the step of the query that needs the table."""
    for name, text in (
        ("empty", ""),
        ("shops", "ids,name\nx,Ann\n"),
        ("twice", "id,name,ID\nx,Ann,y\n"),
        ("short", "id,name\nx,Ann\ny\n"),
    ):
        (run.directory / f"{name}.csv").write_text(text)
    enrich = [{"table": "shops", "on": {"customer": "id"}}]

    with pytest.raises(CommandError, match=rf"pipelines.yaml:\d+: pipelines.x.query.enrich.0: {reason}"):
        run({"enrich": enrich}, order("a", 1), tables={"shops": {format_: path}})


def test_sources_are_combined_and_each_sink_has_its_query(run):
    """A column that a source lacks is null."""
    other = {"properties": {"amount": {"type": "integer"}, "shop": {"type": "string"}}}
    definition = {
        "sources": {"eu": {"topic": "eu", "schema": ORDER}, "us": {"topic": "us", "schema": other}},
        "sinks": {
            "all": {"topic": "all", "query": {"select": ["amount", "shop"]}},
            "us": {"topic": "only-us", "query": {"from": "us", "select": ["amount"]}},
        },
    }
    eu, us = kafka_rows(run.spark, order("a", 1)), kafka_rows(run.spark, order("b", 2, shop="s"))

    frames = run.frame(definition, eu=eu, us=us)

    assert {'{"amount":1,"shop":null}', '{"amount":2,"shop":"s"}'} == {row.value for row in frames["all"].collect()}
    assert ['{"amount":2}'] == [row.value for row in frames["us"].collect()]


@pytest.mark.parametrize(
    ("query", "line", "path", "reason"),
    [
        (
            {"where": "amont > 100"},
            4,
            "where",
            r"\[UNRESOLVED_COLUMN.WITH_SUGGESTION\] .*`amont` cannot be resolved.*`amount`",
        ),
        ({"where": "amount >"}, 4, "where", r"\[PARSE_SYNTAX_ERROR\]"),
        # Otherwise, the query would fail at the first record.
        ({"where": "id"}, 4, "where", "needs a condition, but id has the type string; compare it"),
        ({"select": ["amont"]}, 4, "select", "`amont` cannot be resolved"),
        (
            {"top": {"n": 1, "by": "amont", "group": "id"}},
            4,
            "top",
            r"no column amont \(did you mean amount\?\); the columns are: amount, at, customer, id, items$",
        ),
        (WINDOW | {"by": ["ids"]}, 4, "window", r"the rows of the query have no column ids \(did you mean id\?\)"),
        (WINDOW | {"aggregates": {"n": "sums(amount)"}}, 4, "window", "`sums`"),
        (
            {"select": ["*", "upper(id) AS ID"]},
            4,
            "select",
            "the result has two columns named ID; rename or remove one",
        ),
        ({"select": ["id", "amount AS _offset"]}, 4, "select", "the result has two columns named _offset"),
        # Otherwise, a result would contain this name twice.
        (
            WINDOW | {"aggregates": {"window_start": "count(*)"}},
            4,
            "window",
            "the result has two columns named window_start",
        ),
        (
            {"latest": True, "select": ["map(1, id) AS m"]},
            4,
            "latest",
            "the keys of the map m have the type int, but JSON",
        ),
        # A rank with a fraction would be cut off, and the ranking wrong.
        (
            {"select": ["amount / 2 AS half", "id"], "top": {"n": 1, "by": "half", "group": "id"}},
            7,
            "top",
            "top needs a column of whole numbers, but half has the type double; convert",
        ),
    ],
)
def test_a_query_that_spark_rejects_is_an_error(run, query, line, path, reason):
    """Spark's own message contains neither the file nor the path of the field."""
    query = {"window": query} if "aggregates" in query else query

    with pytest.raises(CommandError, match=rf"pipelines\.yaml:{line}: pipelines\.x\.query\.{path}: .*{reason}"):
        run(query, order("a", 1))


def test_a_bad_record_is_one_dead_letter_although_two_sinks_read_it(run):
    """A source that several sinks use is checked once."""
    definition = {
        "source": {"topic": "orders", "schema": ORDER},
        "sinks": {"one": {"topic": "one"}, "two": {"topic": "two", "query": {"where": "amount > 1"}}},
    }
    pipeline = run.pipeline(definition)
    rows = kafka_rows(run.spark, ("a", "{"), order("b", 1))

    bad = dead_letters.bad_records(pipeline, {"source": rows})

    assert bad
    assert [(b"a", b"{", 0, "its value is not JSON")] == [
        (bytes(row.key), bytes(row.value), row.offset, row.problem) for row in bad.collect()
    ]


def test_a_record_without_a_key_is_a_dead_letter_if_the_source_names_the_field_of_the_key(run):
    """Its key differs from the field, although a window needs no key."""
    source = ONE_SOURCE["source"] | {"key": "id"}
    pipeline = run.pipeline({"source": source, "query": {"window": WINDOW}, "sink": "n"})
    rows = kafka_rows(run.spark, (None, '{"amount": 1, "id": "a"}'), order("a", 1, id="a"))

    bad = dead_letters.bad_records(pipeline, {"source": rows})
    results = pipeline.query(source=rows)["sink"]

    assert bad
    assert ["it has no key"] == [row.problem for row in bad.collect()]
    assert [1] == [json.loads(row.value)["n"] for row in results.collect()]


def test_a_record_without_a_key_is_a_dead_letter_if_one_of_the_sinks_needs_a_key(run):
    """The first sink counts it in a window, which needs no key."""
    window, changes = ({"topic": name, "query": query} for name, query in (("n", {"window": WINDOW}), ("changes", {})))
    sinks = {"sinks": {"1": window, "2": changes}}
    pipeline = run.pipeline({"source": ONE_SOURCE["source"], "mode": "microbatch"} | sinks)

    bad = dead_letters.bad_records(pipeline, {"source": kafka_rows(run.spark, (None, '{"amount": 1}'))})

    assert bad
    assert ["it has no key"] == [row.problem for row in bad.collect()]
