"""Modes, start positions, rate limits, and several sources and sinks, with a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.catalog import find
from kafkasse.pipelines.runner import running_query
from tests.pipelines.topics import PARTITIONS, Topics, read

TIMEOUT_S = 120


def copy(rows: DataFrame) -> DataFrame:
    """A query that copies its records."""
    return rows.select("key", "value")


def copied(spark: SparkSession, topics: Topics, checkpoint: Path, source: Source) -> set[str]:
    """Run a pipeline of mode `once` and return the keys that it wrote. The key "last" comes after them."""
    pipeline = Pipeline("copy", source, copy, topics.sink, mode="once")
    with running_query(spark, pipeline, topics.kafka, str(checkpoint)) as query:
        assert query.awaitTermination(TIMEOUT_S)
    topics.cluster.send(topics.sink, b"", key=b"last")
    return {key for key, _ in topics.read(lambda latest: "last" in latest)} - {"last"}


def test_mode_once_processes_what_the_topic_contains(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """The next run continues after it."""
    topics.send((b"a", b"1"), (b"b", b"2"))
    first = copied(spark, topics, tmp_path, Source(topics.source))
    topics.send((b"c", b"3"))

    second = copied(spark, topics, tmp_path, Source(topics.source))

    assert [{"a", "b"}, {"c"}] == [first, second]


def test_starts_at_a_position(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """A run without a checkpoint starts at a time or at offsets."""
    a, b = ({0: b"c", 1: b"a", 2: b"b"}[number] for number in (1, 2))  # in partitions 1 and 2
    topics.send((a, b"1"), (b, b"2"))
    between = datetime.now(UTC)
    topics.send((a + b"\x03", b"3"), (b + b"\x03", b"4"))  # in the same partitions
    offsets = {0: 0, 1: 1, 2: 0}

    since = copied(spark, topics, tmp_path / "time", Source(topics.source, start=between))
    after = copied(spark, topics, tmp_path / "offsets", Source(topics.source, start=offsets))

    assert {"a\x03", "b\x03"} == since
    assert {"a\x03", "b", "b\x03"} == after


def test_the_rate_limit_bounds_each_batch(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """A limit of 3 records/s allows at most 3 records in a batch, and one batch starts per second."""
    topics.send(*((f"{number}".encode(), b"") for number in range(10)))
    source = Source(topics.source, max_records_per_s=PARTITIONS)
    pipeline = Pipeline("copy", source, copy, topics.sink, mode="microbatch")

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)) as query:
        topics.read(lambda latest: len(latest) == 10)
        batches = [progress.numInputRows for progress in query.recentProgress]

    assert max(batches) <= PARTITIONS


def test_real_time_mode_reads_several_sources_and_writes_several_sinks(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """A single Spark query writes both sinks, although real-time mode rejects a query that reads a DataFrame twice."""
    more = topics.cluster.create(f"{topics.source}-more")
    other = topics.cluster.create(f"{topics.sink}-other")

    def split(one: DataFrame, two: DataFrame) -> dict[str, DataFrame]:
        rows = one.unionByName(two).selectExpr("key", "CAST(value AS STRING) AS value")
        return {"even": rows.where("value % 2 = 0"), "odd": rows.where("value % 2 = 1")}

    pipeline = Pipeline("split", {"one": topics.source, "two": more}, split, {"even": topics.sink, "odd": other})
    topics.send((b"a", b"1"), (b"b", b"2"))
    topics.cluster.send(more, b"4", key=b"d")
    topics.cluster.send(more, b"3", key=b"c")

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        even = topics.read(lambda latest: len(latest) == 2)
        odd = [(record.key.decode(), record.value) for record in read(topics, other, 2)]

    assert {("b", b"2"), ("d", b"4")} == set(even)
    assert {("a", b"1"), ("c", b"3")} == set(odd)


def test_a_field_can_be_added(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """The pipeline continues with its checkpoint. The field is null in rows that were read before."""
    file = tmp_path / "pipelines.yaml"

    def run(*names: str) -> None:
        definition = {
            "mode": "once",
            "source": {"topic": topics.source, "schema": {"properties": {name: {} for name in names}}},
            "query": {"select": ["CAST(amount AS INT)", *names[1:]], "top": {"n": 2, "by": "amount", "group": "shop"}},
            "sink": topics.sink,
        }
        file.write_text(json.dumps({"pipelines": {"largest": definition}}))
        with running_query(spark, find(str(file)), topics.kafka, str(tmp_path / "checkpoint")) as query:
            assert query.awaitTermination(TIMEOUT_S)

    topics.send((b"a", b'{"amount": 2, "shop": "s", "name": "A"}'))
    run("amount", "shop")
    topics.send((b"b", b'{"amount": 1, "shop": "s", "name": "B"}'))
    run("amount", "shop", "name")

    [_, (_, value)] = topics.read(lambda latest: b"B" in (latest["s"] or b""))
    assert [(2, None), (1, "B")] == [(item["amount"], item["name"]) for item in json.loads(value or b"")["items"]]
    with pytest.raises(CommandError, match="select no longer contains name"):
        run("amount", "shop")


def test_a_file_defines_a_filter_and_a_table_in_real_time_mode(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """A record is enriched from a compacted topic, and a tombstone retracts it when it stops matching."""
    customers = topics.cluster.create(f"{topics.source}-customers")
    for name in (b"Ann", b"Anna"):
        topics.cluster.send(customers, b'{"id": "x", "name": "%b"}' % name, key=b"x")
    file = tmp_path / "pipelines.yaml"
    fields = {"amount": {"type": "integer"}, "customer": {"type": "string"}}
    names = {"id": {"type": "string"}, "name": {"type": "string"}}
    definition = {
        "source": {"topic": topics.source, "schema": {"properties": fields}},
        "tables": {"customers": {"topic": customers, "schema": {"properties": names}}},
        "query": {
            "enrich": [{"table": "customers", "on": {"customer": "id"}}],
            "where": "amount > 100",
            "select": ["amount", "name"],
        },
        "sink": topics.sink,
    }
    file.write_text(json.dumps({"pipelines": {"large": definition}}))
    topics.send((b"1", b'{"amount": 200, "customer": "x"}'))

    with running_query(spark, find(str(file)), topics.kafka, str(tmp_path / "checkpoint")):
        first = topics.read(bool)
        topics.send((b"1", b'{"amount": 50, "customer": "x"}'))
        second = topics.read(bool)

    assert [("1", b'{"amount":200,"name":"Anna"}')] == first
    assert [("1", None)] == second
