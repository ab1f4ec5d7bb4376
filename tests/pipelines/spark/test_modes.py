"""Modes, start positions, rate limits, and several sources and sinks, with a real broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gevent
import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.execution import runner
from kafkasse.pipelines.manifest import FILE
from kafkasse.pipelines.observe.status import Status
from kafkasse.pipelines.spark import jvm, private_spark, session
from kafkasse.pipelines.supervisor import PipelineState, StopRequests
from tests.pipelines.spark.runs import Runs, copy, defined
from tests.pipelines.topics import read
from tests.support.examples import first_of
from tests.support.waiting import wait_until

KEPT_BATCHES = 10
# A condition with which the backlog takes longer than the commit interval.
SLOW = "aggregate(sequence(1, 30000 + _offset % 2), 0L, (sum, number) -> sum + number) > 0"


def copied(runs: Runs, **source: Any) -> set[str]:
    """Run a pipeline of mode `once` and return the keys that it wrote. The key "last" comes after them."""
    runs.once(runs.pipeline(copy, source=Source(runs.topics.source, **source), mode="once"))
    runs.topics.cluster.send(runs.topics.sink, b"", key=b"last")
    return {key for key, _ in runs.topics.read(lambda latest: "last" in latest)} - {"last"}


def test_mode_once_processes_what_the_topic_contains(runs):
    """A run without a checkpoint starts at a time or at offsets. Another version cannot continue after it."""
    a, b = ({0: b"c", 1: b"a", 2: b"b"}[number] for number in (1, 2))  # in partitions 1 and 2
    between = datetime.now(UTC).replace(microsecond=0)
    between_ms = int(between.timestamp()) * 1000
    runs.topics.send((a, b"1"), (b, b"2"), timestamp_ms=between_ms - 1)
    runs.topics.send((a + b"\x03", b"3"), (b + b"\x03", b"4"), timestamp_ms=between_ms)  # in the same partitions

    since = copied(runs, start=between)
    with pytest.raises(CommandError, match="version was 1 and is 2 now"):
        runs.once(runs.pipeline(copy, source=Source(runs.topics.source, start=between), mode="once", version=2))
    runs.directory /= "new"
    after = copied(runs, start={0: 0, 1: 1, 2: 0})

    assert [{"a\x03", "b\x03"}, {"a\x03", "b", "b\x03"}] == [since, after]


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        ({0: 0, 1: 0}, "an offset for each partition of its topic, and for no others: the number of partitions of"),
        ({0: 0, 1: 2, 2: 0}, "can start at 0 to 1, but not at 2"),
    ],
)
def test_a_start_that_does_not_match_the_topic_is_an_error(runs, start, problem):
    """No manifest is written, so the next run can have another start."""
    runs.topics.send((b"a", b"1"))  # in partition 1
    pipeline = runs.pipeline(copy, source=Source(runs.topics.source, start=start), mode="once")

    with pytest.raises(CommandError, match=problem):
        runs.once(pipeline)

    assert not (Path(runs.checkpoint(pipeline)) / FILE).exists()


def test_the_rate_limit_bounds_each_batch_and_few_of_them_have_files(runs, monkeypatch):
    """A limit of 100 records/s allows one record in a batch of 10 ms.

    Spark keeps the files of 100 batches by default. A thread deletes the others after a commit.
    """
    monkeypatch.setattr("kafkasse.pipelines.kafka.topics.MICRO_BATCH_S", 0.01)
    source = Source(runs.topics.source, max_records_per_s=100)
    pipeline = runs.pipeline(copy, source=source, mode="microbatch")
    offsets = Path(runs.checkpoint(pipeline)) / "offsets"
    assert ["microbatch"] == list(runner.modes(runs.of(pipeline)))

    def batches() -> list[int]:
        return [int(file.name) for file in offsets.iterdir() if file.name.isdecimal()]

    with runs.running(pipeline) as query:
        runs.topics.send(*[(b"a", b"")] * (KEPT_BATCHES + 4))
        runs.results(KEPT_BATCHES + 4)
        assert 1 == max(progress.numInputRows for progress in query.recentProgress)
        assert max(batches()) >= KEPT_BATCHES + 3

        def has_few_files() -> bool:
            if len(batches()) <= KEPT_BATCHES + 1:
                return True
            runs.topics.send(
                (b"a", b"")
            )  # while the thread is busy with the files of a batch, it skips those of the next one
            gevent.sleep(1)
            return False

        wait_until(has_few_files)


def test_real_time_mode_reads_several_sources_and_writes_several_sinks(runs):
    """A single Spark query writes both sinks, although real-time mode rejects a query that reads a DataFrame twice.

    The query reads each source for each sink. The status counts a record once.
    """
    topics = runs.topics
    more = topics.cluster.create(f"{topics.source}-more")
    other = topics.cluster.create(f"{topics.sink}-other")

    def split(one: DataFrame, two: DataFrame) -> dict[str, DataFrame]:
        rows = one.unionByName(two).selectExpr("key", "CAST(value AS STRING) AS value")
        return {"even": rows.where("value % 2 = 0"), "odd": rows.where("value % 2 = 1")}

    sinks = {"even": topics.sink, "odd": other}
    pipeline = Pipeline("split", {"one": topics.source, "two": more}, split, sinks, commit_interval_s=5)
    topics.send((b"a", b"1"), (b"b", b"2"))
    topics.cluster.send(more, b"4", key=b"d")
    topics.cluster.send(more, b"3", key=b"c")

    def input_records() -> int:
        status = Status.of(pipeline)
        for progress in query.recentProgress:
            status.committed(json.loads(progress.json))
        return status.input_records

    with runs.running(pipeline) as query:
        even = topics.read(lambda latest: len(latest) == 2)
        odd = [(record.key.decode(), record.value) for record in read(topics, other, 2)]
        wait_until(lambda: input_records() >= 4)
        assert 4 == input_records()

    assert {("b", b"2"), ("d", b"4")} == set(even)
    assert {("a", b"1"), ("c", b"3")} == set(odd)


@pytest.mark.long
def test_a_field_can_be_added(runs, tmp_path):
    """The pipeline continues with its checkpoint. The field is null in rows that were read before.

    A field cannot be removed.
    """
    topics = runs.topics

    def run(*names: str) -> None:
        source = {"topic": topics.source, "schema": {"properties": {name: {} for name in names}}}
        query = {"select": ["CAST(amount AS INT)", *names[1:]], "top": {"n": 2, "by": "amount", "group": "shop"}}
        runs.once(defined(tmp_path / "pipelines.yaml", source=source, query=query, sink=topics.sink, mode="once"))

    topics.send((b"a", b'{"amount": 2, "shop": "s", "name": "A"}'))
    run("amount", "shop")
    topics.send((b"b", b'{"amount": 1, "shop": "s", "name": "B"}'))
    run("amount", "shop", "name")

    [_, (_, value)] = topics.read(lambda latest: b"B" in (latest["s"] or b""))
    assert [(2, None), (1, "B")] == [(item["amount"], item["name"]) for item in json.loads(value or b"")["items"]]
    with pytest.raises(CommandError, match="select no longer contains name"):
        run("amount", "shop")


@pytest.mark.parametrize("is_rebuild", first_of(False, True))
def test_no_record_of_a_backlog_is_late(runs, tmp_path, is_rebuild):
    """Real-time mode would read the short partition to its end, and the watermark would pass the records of the long one."""
    topics, minutes, stop = runs.topics, 500, StopRequests()
    pipeline = defined(
        tmp_path / "pipelines.yaml",
        source={"topic": topics.source, "schema": {"properties": {"id": {}}}},
        query={"where": SLOW, "window": {"size": "1 hour", "aggregates": {"n": "count(*)"}}},
        sink=topics.sink,
        commit_interval_s=5,
    )
    if is_rebuild:
        topics.send((b"a", b"{}"), timestamp_ms=1)
        with runs.running(pipeline):
            runs.results(1)
    producer = KafkaProducer(bootstrap_servers=topics.cluster.bootstrap_servers, linger_ms=100)
    for minute in range(minutes):
        for _ in range(20):
            producer.send(topics.source, b"{}", partition=0, timestamp_ms=60_000 * minute + 1)
    producer.send(topics.source, b"{}", partition=1, timestamp_ms=60_000 * minutes)
    producer.close()

    def report(state: PipelineState, reason: str) -> None:
        if state is PipelineState.RUNNING and not reason:  # the backlog is read
            stop.signals.put(15)

    if is_rebuild:
        assert runs.rebuild(pipeline)
    else:
        runs.attempt(pipeline, report, stop)

    counts: dict[str, int] = {}
    expected = 20 * minutes + 1 + is_rebuild

    def counted(latest: dict[str, bytes | None]) -> bool:
        counts.update((key, json.loads(value)["n"]) for key, value in latest.items() if value)
        return sum(counts.values()) == expected

    topics.read(counted)


def test_a_file_defines_a_filter_and_a_table_in_real_time_mode(runs, tmp_path):
    """A record is enriched with the latest record of a topic, and a tombstone retracts it when it stops matching.

    A tombstone removes a row of the table.
    """
    topics = runs.topics
    customers = topics.cluster.create(f"{topics.source}-customers")
    for name in (b"Ann", b"Anna"):
        topics.cluster.send(customers, b'{"id": "x", "name": "%b"}' % name, key=b"x")
    fields = {"amount": {"type": "integer"}, "customer": {"type": "string"}}
    names = {"id": {"type": "string"}, "name": {"type": "string"}}
    enrich = [{"table": "customers", "on": {"customer": "id"}}]
    large = defined(
        tmp_path / "pipelines.yaml",
        source={"topic": topics.source, "schema": {"properties": fields}},
        tables={"customers": {"topic": customers, "schema": {"properties": names}}},
        query={"enrich": enrich, "where": "amount > 100", "select": ["amount", "name"]},
        sink=topics.sink,
    )
    topics.cluster.send(customers, b'{"id": "y", "name": "Bob"}', None, key=b"y")
    topics.send((b"1", b'{"amount": 200, "customer": "x"}'), (b"2", b'{"amount": 300, "customer": "y"}'))

    with runs.running(large):
        first = topics.read(lambda latest: len(latest) == 2)
        topics.send((b"1", b'{"amount": 50, "customer": "x"}'))
        second = topics.read(bool)

    assert {("1", b'{"amount":200,"name":"Anna"}'), ("2", b'{"amount":300,"name":null}')} == set(first)
    assert [("1", None)] == second


def test_spark_knows_the_settings(spark):
    """Spark ignores a setting that it does not know, for example because a new version has renamed it."""
    jvm: Any = private_spark.java(spark)
    settings = jvm.org.apache.spark.sql.internal.SQLConf.get()  # registers the settings of Spark SQL
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    unknown = [name for name in session.SETTINGS if entries.findEntry(name) is None]
    state = jvm.org.apache.spark.sql.execution.streaming.state
    parsed = state.RocksDBConf.apply(state.StateStoreConf(settings, jvm.PythonUtils.toScalaMap({})))

    prefix = "spark.sql.streaming.stateStore.rocksdb"
    assert [f"{prefix}.changelogCheckpointing.enabled", f"{prefix}.allowFAllocate"] == unknown
    assert parsed.enableChangelogCheckpointing()
    assert not parsed.allowFAllocate()


@pytest.mark.parametrize("value", ["a=b c:d", "C:\\new\\users", " #é\t\n!"])
def test_sparks_launcher_reads_the_settings(spark, value):
    """It reads them from a file of Java properties."""
    java: Any = private_spark.java(spark)
    properties = java.java.util.Properties()
    properties.load(java.java.io.StringReader(f"{jvm._escaped('spark.a b')}={jvm._escaped(value)}\n"))

    assert value == properties.getProperty("spark.a b")
    assert "false" == java.java.lang.System.getProperty("spark.sql.adaptive.enabled")
