"""A pipeline runs from Kafka through Spark in real-time mode to Kafka."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import Source, application
from kafkasse.pipelines.checkpoints import checkpoint
from kafkasse.pipelines.execution import runner
from kafkasse.pipelines.execution.runner import wait_until_running
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.kafka.topics import read, write
from kafkasse.pipelines.observe.lag import Lag, LagReader
from kafkasse.pipelines.observe.status import Status
from kafkasse.pipelines.observe.status_topic import StatusTopic
from kafkasse.pipelines.spark import private_spark, session
from kafkasse.pipelines.spark.files import Files
from kafkasse.pipelines.supervisor import PipelineState, StopRequests
from tests.pipelines.spark.runs import Runs, codes, copy
from tests.pipelines.topics import PARTITIONS, Record, country, tombstone, top
from tests.support.waiting import wait_until

MIN_COMMIT_INTERVAL_S = 5  # Spark's minimum
COUNTRIES = Path(__file__).parents[3] / "kafkasse" / "assets" / "data" / "countries.csv"


def all_countries() -> list[Record]:
    with COUNTRIES.open(encoding="utf-8") as file:
        rows = [row | {"population": int(row["population"]), "size": int(row["size"])} for row in csv.DictReader(file)]
    return [(row["code"].encode(), json.dumps(row).encode()) for row in rows]


def test_keeps_the_top_3_of_the_world(runs):
    """All countries of the demo, in three partitions, give the right Top 3, and so do corrections, moves and removals.

    A continent without countries becomes a tombstone. An aborted transaction has no effect, and the marker at the end of a
    transaction does not stop the query.
    """
    topics = runs.topics
    topics.transaction(country("IT", 99_000_000), commit=False)
    topics.send(*all_countries())
    world = {
        "Europe": ["RU", "UA", "FR"],
        "Asia": ["CN", "IN", "KZ"],
        "North America": ["CA", "US", "GL"],
        "Africa": ["DZ", "CD", "SD"],
        "Antarctica": ["AQ", "TF", "GS"],
        "South America": ["BR", "AR", "PE"],
        "Oceania": ["AU", "PG", "NZ"],
    }
    changed = {"Europe": ["UA", "FR", "ES"], "Asia": ["RU", "CN", "IN"], "Africa": ["CD", "SD", "LY"], "Antarctica": []}
    antarctica = [(key, None) for key, value in all_countries() if b'"Antarctica"' in (value or b"")]

    with runs.running(runs.topn()):
        topics.read(lambda latest: world == {continent: top(value) for continent, value in latest.items()})
        topics.transaction(country("RU", 17_100_000, "Asia"), commit=True)
        topics.transaction(country("LY", 99_000_000, "Africa"), commit=False)
        topics.send(tombstone("DZ"), country("CD", 3_000_000, "Africa"), *antarctica)
        results = topics.read(lambda latest: changed == {continent: top(value) for continent, value in latest.items()})

    assert ("Antarctica", None) in results


def test_resumes_from_its_checkpoint(runs):
    """A stop request waits for the commit of all records, so the next run knows all countries and repeats no result.

    A run that was killed during its first commit has left temporary files. Spark rejects a checkpoint without a commit if it
    contains any file.
    """
    topics, pipeline = runs.topics, runs.topn(commit_interval_s=MIN_COMMIT_INTERVAL_S)
    path = Path(runs.checkpoint(pipeline))
    for directory in ("offsets", "commits"):
        (path / directory).mkdir(parents=True)
        (path / directory / ".0.6867af5b-82c6-4f2d-9940-c8de87b0672d.tmp").write_text("v2\n")
    topics.send(country("DE", 4), country("IT", 3), country("ES", 2), country("CN", 9, "Asia"))
    stop = StopRequests()

    def stop_after_output(state: PipelineState, _: str) -> None:
        if state is PipelineState.RUNNING:
            topics.read(lambda latest: len(latest) == 2 and top(latest["Europe"]) == ["DE", "IT", "ES"])
            topics.send(country("FR", 5))
            topics.read(lambda latest: top(latest["Europe"]) == ["FR", "DE", "IT"])
            stop.signals.put(15)

    runs.attempt(pipeline, stop_after_output, stop, drains=True)
    committed = checkpoint.last_commit(Files(runs.spark), str(path))
    topics.send(country("FR", 1))
    with runs.running(pipeline) as query:
        emitted = topics.read(bool)
        interval_ms = private_spark.java_query(query).streamingQuery().trigger().batchDurationMs()

    assert 1000 * MIN_COMMIT_INTERVAL_S == interval_ms
    assert 5 == sum(committed.values())
    assert [("Europe", ["DE", "IT", "ES"])] == [(continent, top(value)) for continent, value in emitted]


@pytest.mark.long
def test_reads_uncommitted_records_again(runs):
    """A query that ended before its first commit starts again at the beginning of the topic, and repeats no result."""
    topics = runs.topics
    topics.send(country("FR", 5))
    with runs.running(runs.topn()):
        topics.read(bool)
    topics.send(country("DE", 4))

    with runs.running(runs.topn()):
        emitted = topics.read(bool)

    assert [("Europe", ["FR", "DE"])] == [(continent, top(value)) for continent, value in emitted]


def test_a_recreated_topic_has_another_checkpoint(runs):
    """A recreated topic has a new ID, which is a part of the checkpoint's name."""
    before = runs.checkpoint(runs.topn())
    runs.topics.cluster.delete(runs.topics.source)
    runs.topics.cluster.create(runs.topics.source, PARTITIONS)

    assert before != runs.checkpoint(runs.topn())


@pytest.mark.long
def test_reads_a_recreated_topic_from_its_start(runs):
    """The state and the offsets of the old topic are not used."""
    topics = runs.topics
    topics.send(country("FR", 5), country("DE", 4))
    with runs.running(runs.topn()):
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "DE"])
    topics.cluster.delete(topics.source)
    topics.cluster.create(topics.source, PARTITIONS)
    topics.send(country("IT", 3))

    with runs.running(runs.topn()):
        emitted = topics.read(bool)

    assert [("Europe", ["IT"])] == [(continent, top(value)) for continent, value in emitted]


def test_a_second_run_with_the_same_checkpoint_is_rejected(runs):
    """Otherwise, each of them would crash at each commit of the other."""
    pipeline = runs.pipeline(copy, mode="microbatch")
    with (
        runs.running(pipeline) as query,
        pytest.raises(CommandError, match=r"another run of the pipeline uses the checkpoint .* --rebuild"),
        runs.running(pipeline),
    ):
        pass

    assert query.exception() is None


def test_a_missing_topic_is_reported(runs):
    """The error names the topic and a command, which creates a compacted sink. The topic is not created."""
    missing = f"{runs.topics.sink}-2"

    for role, settings in (("source", ""), ("sink", " --config cleanup.policy=compact")):
        error = f"the topic {missing} does not exist.* topics create {missing}{settings}$"
        with pytest.raises(CommandError, match=error):
            runs.once(runs.pipeline(copy, **{role: missing}))


class Operations:
    """Kafka's description of topics, of which the user may do only some operations."""

    def __init__(self, allowed: dict[str, list[str]]) -> None:
        self._allowed = allowed

    def describeTopics(self, topics: list[str], _: object) -> Any:
        answers = {topic: Mock() for topic in topics}
        for topic, answer in answers.items():
            names = [Mock(**{"name.return_value": name}) for name in self._allowed[topic]]
            answer.get().authorizedOperations.return_value = names or None
        return Mock(**{"topicNameValues.return_value": answers})


@pytest.mark.parametrize(
    ("source", "sink", "missing"),
    [
        (["READ", "DESCRIBE"], ["WRITE", "DESCRIBE"], None),
        ([], [], None),
        (["READ", "DESCRIBE"], ["READ", "DESCRIBE"], "no WRITE permission for the topic topn; add an ACL"),
        (["DESCRIBE"], ["WRITE", "DESCRIBE"], "no READ permission for the topic countries; add an ACL"),
    ],
)
def test_a_missing_permission_is_an_error(runs, source, sink, missing):
    """An old broker does not list the operations, so they are not checked."""
    with Admin(runs.spark, runs.topics.kafka) as admin:
        real, admin._admin = admin._admin, Operations({"countries": source, "topn": sink})
        try:
            with pytest.raises(CommandError, match=missing) if missing else nullcontext():
                admin.check_access(["countries"], ["topn"])
        finally:
            admin._admin = real


def test_too_few_slots_are_reported(runs):
    """Without the error, a query with more partitions than Spark has slots would wait forever."""
    slots = private_spark.slots(runs.spark)
    wide = runs.topics.cluster.create(f"{runs.topics.source}-wide", slots)

    with (
        runs.running(replace(runs.topn(), source=wide)) as query,
        pytest.raises(CommandError, match=f"too few slots: {slots}, but the pipeline needs {slots + 3}"),
    ):
        wait_until_running(runs.spark, query, "realtime", StopRequests())


def test_a_query_does_not_run_until_its_broadcast_joins_are_ready(runs, monkeypatch):
    """The job that collects the small side of a join does not count, neither while it runs nor when it has ended.

    Without slots, the query does not run. For example, no worker of the cluster has registered yet.
    """
    spark, topics, pipeline = runs.spark, runs.topics, runs.topn()
    small = spark.sparkContext.parallelize(["a"], 1).map(lambda key: time.sleep(2) or (key,)).toDF("small string")
    rows = read(spark, topics.kafka, Source(topics.source)).select(F.lit(topics.sink).alias("topic"), "key", "value")
    joined = rows.join(F.broadcast(small), F.col("small") == F.col("key").cast("string"), "left").drop("small")
    query = write(joined, topics.kafka, pipeline, str(runs.directory))

    for _ in range(2):
        assert wait_until_running(spark, query, pipeline.mode, StopRequests())
        assert ["SUCCEEDED", "RUNNING"] == job_states(spark, query)
    lose_slots(monkeypatch, 0)
    with pytest.raises(CommandError, match="Spark has too few slots: 0"):
        wait_until_running(spark, query, pipeline.mode, StopRequests())
    query.stop()


def job_states(spark: SparkSession, query: StreamingQuery) -> list[str]:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(str(query.runId)))]
    return [job.status for job in jobs if job]


def lose_slots(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    monkeypatch.setattr(runner, "SLOTS_TIMEOUT_S", 0)
    monkeypatch.setattr(private_spark, "slots", lambda _: slots)


def test_micro_batches_without_slots_do_not_run(runs, monkeypatch):
    """Spark starts the query, but none of its tasks could run."""
    lose_slots(monkeypatch, 0)

    with (
        runs.running(runs.pipeline(copy, mode="microbatch")) as query,
        pytest.raises(CommandError, match="Spark has too few slots: 0"),
    ):
        wait_until_running(runs.spark, query, "microbatch", StopRequests())


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_running_query_in_real_time_mode_keeps_a_slot_for_the_dead_letters(runs, monkeypatch, mode):
    """A cluster has lost an executor on which no task ran. Micro-batches share their slots with the dead letters."""
    slots = PARTITIONS if mode == "realtime" else 1
    stop, polls = StopRequests(), iter(range(5))

    def lose_a_slot(state: PipelineState, _: str) -> None:
        if state is PipelineState.RUNNING:
            wait_until(lambda: len(runs.spark.streams.active) == 2)
            lose_slots(monkeypatch, slots)

    def stop_after_polls() -> None:
        if next(polls, None) is None:
            stop.signals.put(15)

    pipeline = runs.pipeline(codes, mode=mode)
    if mode == "microbatch":
        runs.attempt(pipeline, lose_a_slot, stop, polled=stop_after_polls)
    else:
        with pytest.raises(CommandError, match=f"too few slots: {slots}, but the pipeline needs {slots + 1}"):
            runs.attempt(pipeline, lose_a_slot)


def named(orders: DataFrame, names: DataFrame) -> DataFrame:
    """A query that adds the name of the order's customer, which is the order's key."""
    known = names.select("key", F.col("value").alias("name"))
    return orders.select("key", "value").join(known, "key").select("key", F.col("name").alias("value"))


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_waits_while_kafka_does_not_answer(runs, broker, monkeypatch, caplog, mode):
    """Spark itself would notice only after minutes. The test stops the broker after the first commit."""
    monkeypatch.setattr(application, "STATUS_INTERVAL_S", 1.0)
    pipeline = runs.pipeline(copy, mode=mode, commit_interval_s=MIN_COMMIT_INTERVAL_S if mode == "realtime" else None)
    stop, states = StopRequests(), []

    class Observer(application.StatusObserver):
        def report(self, state: PipelineState, reason: str) -> None:
            super().report(state, reason)
            states.append((state.value, reason))
            if state is PipelineState.WAITING:
                os.kill(broker.pid, signal.SIGCONT)
            elif len(states) == 3:
                stop.signals.put(15)

        def progressed(self, progress: dict[str, Any]) -> None:
            super().progressed(progress)
            if len(states) == 1:
                os.kill(broker.pid, signal.SIGSTOP)

    observer = Observer(pipeline, None, Mock())
    run = runs.of(pipeline)
    observer.use(run)
    runs.topics.send((b"a", b"1"))

    try:
        runner.Attempt(run, stop, observer, drains=False).start()
    finally:
        os.kill(broker.pid, signal.SIGCONT)

    assert [("running", ""), ("waiting", "Kafka does not respond"), ("running", "")] == states
    assert "WARNING" in {record.levelname for record in caplog.records if "state=waiting" in record.getMessage()}


@pytest.mark.timeout(110)  # less than Kafka's default; contains the start of Spark
def test_the_last_status_does_not_wait_minutes_for_kafka(runs, broker, fresh_name):
    run, status = runs.of(runs.pipeline(copy)), Status("copy", 1, "realtime", ["in"], ["out"])
    topic = StatusTopic(run.spark, run.kafka, fresh_name)
    topic.write(status, wait=True)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        topic.write(status, wait=True)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("error", [OSError("the JVM has ended"), None])
def test_a_waiting_pipeline_runs_again_when_kafka_answers(runs, error):
    """After another error, it is not known whether Kafka answers. `ready` is for starts only."""
    observer = application.StatusObserver(runs.pipeline(copy), None, ready := Mock())
    observer.report(PipelineState.WAITING, "Kafka does not respond")
    observer._lag_reader = Mock(read=Mock(side_effect=error, return_value=Lag(0, None)))

    observer.polled()

    assert (PipelineState.WAITING if error else PipelineState.RUNNING) is observer.status.state
    ready.assert_not_called()


def test_the_lag_is_known_before_the_first_commit(runs):
    """Its position is that of the first start."""
    pipeline = runs.pipeline(copy)
    runs.topics.send((b"a", b"1"), (b"b", b"1"))
    stop, lags = StopRequests(), []

    class Observer(application.StatusObserver):
        def started(self, offsets: Any) -> None:
            super().started(offsets)
            lags.append(self.status.lag_records)

        def polled(self) -> None:
            stop.signals.put(15)

    observer = Observer(pipeline, None, Mock())
    observer.use(run := runs.of(pipeline))
    runner.Attempt(run, stop, observer, drains=False).start()

    assert [2] == lags


def test_a_topic_can_be_a_side_table(runs):
    """The query receives the record of each key that is the latest when the query starts."""
    topics = runs.topics
    table = topics.cluster.create(f"{topics.source}-names")
    for name in (b"Ann", b"Anna"):
        topics.cluster.send(table, name, key=b"a")
    topics.send((b"a", b"order"))
    sources = {"orders": topics.source, "names": Source(table, table=True)}

    runs.once(runs.pipeline(named, source=sources, mode="once"))

    assert [("a", b"Anna")] == topics.read(bool)


def test_settings_of_spark_submit_override_all_others(spark):
    """spark-submit passes its settings as system properties of the JVM."""
    properties = private_spark.java(spark).java.lang.System
    properties.setProperty("spark.executor.memory", "5g")

    kept = session._without_submitted({"spark.executor.memory": "2g", "spark.executor.cores": "2"}, None)

    properties.clearProperty("spark.executor.memory")
    assert {"spark.executor.cores": "2"} == kept


@pytest.fixture
def reader(runs: Runs) -> LagReader:
    """Reads the lag of this test's topics, with Kafka's client in Spark's JVM."""
    return LagReader(runs.spark, runs.topics.kafka)


def test_finds_the_oldest_record_after_the_position(reader, topics):
    """The age does not depend on when the lag was measured before, or on newer records."""
    position = {(topics.source, partition): 0 for partition in range(3)}
    topics.send((b"a", b"1"))
    between_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == between_ms:
        time.sleep(0.001)
    topics.send((b"a", b"2"), (b"b", b"1"))

    before = reader.read(position)
    after = reader.read(position | {(topics.source, 1): 1})
    at_the_end = reader.read({(topics.source, 0): 0, (topics.source, 1): 2, (topics.source, 2): 1})

    assert (3, 2) == (before.records, after.records)
    assert before.oldest_ms is not None
    assert after.oldest_ms is not None
    assert before.oldest_ms <= between_ms < after.oldest_ms
    assert Lag(0, None) == at_the_end


def test_offsets_without_a_record_are_no_lag(reader, topics):
    """The position of a pipeline stays before the markers of transactions and the records of aborted transactions."""
    topics.transaction((b"a", b"1"), commit=True)
    topics.transaction((b"a", b"2"), commit=False)

    assert reader.read({(topics.source, 1): 0}).records
    assert Lag(0, None) == reader.read({(topics.source, 1): 1})
