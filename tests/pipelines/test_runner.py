"""A pipeline runs from Kafka through Spark in real-time mode to Kafka."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source, checkpoint, failing_record, private_spark, runner
from kafkasse.pipelines.catalog import TOPN
from kafkasse.pipelines.pipeline import MIN_COMMIT_INTERVAL_S, Mode
from kafkasse.pipelines.runner import Attempt, checkpoint_path, running_query, wait_until_running
from kafkasse.pipelines.supervisor import Crashed, State, StopRequests
from kafkasse.pipelines.topics import read, write
from tests.pipelines.countries import country, tombstone, top
from tests.pipelines.topics import PARTITIONS, Record, Topics
from tests.support.waiting import wait_until

COUNTRIES = Path(__file__).parents[2] / "kafkasse" / "data" / "countries.csv"


@pytest.fixture
def pipeline(topics: Topics) -> Pipeline:
    """The Top 3 pipeline with this test's topics."""
    return replace(TOPN, source=topics.source, sink=topics.sink)


def all_countries() -> list[Record]:
    """The countries of the demo."""
    with COUNTRIES.open(encoding="utf-8") as file:
        rows = [row | {"population": int(row["population"]), "size": int(row["size"])} for row in csv.DictReader(file)]
    return [(row["code"].encode(), json.dumps(row).encode()) for row in rows]


def test_keeps_the_top_3_of_the_world(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """All countries of the demo, in three partitions, give the right Top 3, and so do corrections, moves and removals.

    An aborted transaction has no effect, and the marker at the end of a transaction does not stop the query.
    """
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
    changed = {"Europe": ["UA", "FR", "ES"], "Asia": ["RU", "CN", "IN"], "Africa": ["CD", "SD", "LY"]}

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(lambda latest: world == {continent: top(value) for continent, value in latest.items()})
        topics.transaction(country("RU", 17_100_000, "Asia"), commit=True)
        topics.transaction(country("LY", 99_000_000, "Africa"), commit=False)
        topics.send(tombstone("DZ"), country("CD", 3_000_000, "Africa"))
        topics.read(lambda latest: changed == {continent: top(value) for continent, value in latest.items()})


def test_resumes_from_its_checkpoint(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """A restarted query knows all countries and repeats no committed result. Spark uses the commit interval."""
    pipeline = replace(pipeline, commit_interval_s=MIN_COMMIT_INTERVAL_S)
    records = [country("FR", 5), country("DE", 4), country("IT", 3), country("ES", 2), country("CN", 9, "Asia")]
    topics.send(*records)
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)) as query:
        topics.read(lambda latest: {"Europe", "Asia"} == latest.keys() and top(latest["Europe"]) == ["FR", "DE", "IT"])
        while sum(progress.numInputRows for progress in query.recentProgress) < len(records):
            query.awaitTermination(1)
        assert (
            1000 * MIN_COMMIT_INTERVAL_S == private_spark.java_query(query).streamingQuery().trigger().batchDurationMs()
        )
    topics.send(country("FR", 1))

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        emitted = topics.read(bool)

    assert [("Europe", ["DE", "IT", "ES"])] == [(continent, top(value)) for continent, value in emitted]


@pytest.mark.long
def test_reads_uncommitted_records_again(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """A query that ended before its first commit starts again at the beginning of the topic, and repeats no result."""
    topics.send(country("FR", 5))
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(bool)
    topics.send(country("DE", 4))

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        emitted = topics.read(bool)

    assert [("Europe", ["FR", "DE"])] == [(continent, top(value)) for continent, value in emitted]


def test_a_recreated_topic_has_another_checkpoint(spark: SparkSession, topics: Topics, pipeline: Pipeline) -> None:
    """A recreated topic has a new ID, which is a part of the checkpoint's name."""
    before = checkpoint_path(spark, pipeline, topics.kafka, "/checkpoints")
    topics.cluster.delete(topics.source)
    topics.cluster.create(topics.source, PARTITIONS)

    after = checkpoint_path(spark, pipeline, topics.kafka, "/checkpoints")

    assert before != after


def test_starts_after_a_kill_during_its_first_commit(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The killed query has left temporary files. Spark rejects a checkpoint without a commit if it contains any file."""
    path = Path(checkpoint_path(spark, pipeline, topics.kafka, str(tmp_path)))
    for directory in ("offsets", "commits"):
        (path / directory).mkdir(parents=True)
        (path / directory / ".0.6867af5b-82c6-4f2d-9940-c8de87b0672d.tmp").write_text("v2\n")
    topics.send(country("FR", 5))

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        emitted = topics.read(bool)

    assert [("Europe", ["FR"])] == [(continent, top(value)) for continent, value in emitted]


@pytest.mark.long
def test_reads_a_recreated_topic_from_its_start(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The state and the offsets of the old topic are not used."""
    topics.send(country("FR", 5), country("DE", 4))
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "DE"])
    topics.cluster.delete(topics.source)
    topics.cluster.create(topics.source, PARTITIONS)
    topics.send(country("IT", 3))

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        emitted = topics.read(bool)

    assert [("Europe", ["IT"])] == [(continent, top(value)) for continent, value in emitted]


def test_a_second_run_with_the_same_checkpoint_is_rejected(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Otherwise, each of them would crash at each commit of the other."""
    with (
        running_query(spark, pipeline, topics.kafka, str(tmp_path)) as query,
        pytest.raises(CommandError, match="another run of the pipeline uses the checkpoint"),
        running_query(spark, pipeline, topics.kafka, str(tmp_path)),
    ):
        pass

    assert query.exception() is None


def test_a_missing_topic_is_reported(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """The error names the topic, and the topic is not created."""
    incomplete = replace(pipeline, sink=f"{topics.sink}-2")

    with (
        pytest.raises(CommandError, match=f"the topic {topics.sink}-2 does not exist"),
        running_query(spark, incomplete, topics.kafka, str(tmp_path)),
    ):
        pass


def test_too_few_slots_are_reported(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """Without the error, a query with more partitions than Spark has slots would wait forever."""
    slots = spark.sparkContext.defaultParallelism
    wide = replace(pipeline, source=topics.cluster.create(f"{topics.source}-wide", slots))

    with (
        running_query(spark, wide, topics.kafka, str(tmp_path)) as query,
        pytest.raises(CommandError, match=f"too few slots: {slots}, but the pipeline needs {slots + 3}"),
    ):
        wait_until_running(spark, query, wide.mode, StopRequests())


def test_a_query_does_not_run_until_its_broadcast_joins_are_ready(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """The job that collects the small side of a join does not count, neither while it runs nor when it has ended."""
    small = spark.sparkContext.parallelize(["a"], 1).map(lambda key: time.sleep(2) or (key,)).toDF("small string")
    rows = read(spark, topics.kafka, Source(topics.source)).select(F.lit(topics.sink).alias("topic"), "key", "value")
    joined = rows.join(F.broadcast(small), F.col("small") == F.col("key").cast("string"), "left").drop("small")
    query = write(joined, topics.kafka, pipeline, str(tmp_path))

    for _ in range(2):
        assert wait_until_running(spark, query, pipeline.mode, StopRequests())
        assert ["SUCCEEDED", "RUNNING"] == job_states(spark, query)
    query.stop()


def job_states(spark: SparkSession, query: StreamingQuery) -> list[str]:
    """The states of the query's jobs, oldest first."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(str(query.runId)))]
    return [job.status for job in jobs if job]


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_query_without_slots_does_not_run(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """Spark starts such a query. For example, no worker of the cluster has registered yet."""
    monkeypatch.setattr(runner, "SLOTS_TIMEOUT_S", 0)
    monkeypatch.setattr(private_spark, "slots", lambda _: 0)

    with (
        running_query(spark, replace(pipeline, mode=mode), topics.kafka, str(tmp_path)) as query,
        pytest.raises(CommandError, match="Spark has too few slots: 0"),
    ):
        wait_until_running(spark, query, mode, StopRequests())


def test_the_query_for_dead_letters_needs_one_slot(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Real-time mode starts no batch while the jobs of other queries have more tasks than there are free slots."""
    topics.send((b"a", b"bad"), (b"b", b"bad"), (b"c", b"bad"))
    tracker = spark.sparkContext.statusTracker()

    def jobs_for_dead_letters() -> list[int]:
        others = [each for each in spark.streams.active if each.id != query.id]
        return [job for each in others for job in tracker.getJobIdsForGroup(str(each.runId))]

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)) as query:
        wait_until(jobs_for_dead_letters)
        job = tracker.getJobInfo(jobs_for_dead_letters()[0])

    assert job
    stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
    assert [1] == [stage.numTasks for stage in stages if stage]


@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_running_query_in_real_time_mode_keeps_a_slot_for_the_dead_letters(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """A cluster has lost an executor on which no task ran. Micro-batches share their slots with the dead letters."""
    slots = PARTITIONS + 2 if mode == "realtime" else 1  # topn has two stages with one task each after the source
    stop, polls = StopRequests(), iter(range(5))

    def lose_slots(state: State, _: str) -> None:
        if state is State.RUNNING:
            wait_until(lambda: len(spark.streams.active) == 2)
            monkeypatch.setattr(private_spark, "slots", lambda _: slots)
            monkeypatch.setattr(runner, "SLOTS_TIMEOUT_S", 0)

    def stop_after_polls() -> None:
        if next(polls, None) is None:
            stop.signals.put(15)

    attempt = Attempt(
        replace(pipeline, mode=mode),
        topics.kafka,
        str(tmp_path),
        stop,
        lose_slots,
        print,
        drains=False,
        polled=stop_after_polls,
    )
    if mode == "microbatch":
        attempt.run(spark)
    else:
        with pytest.raises(CommandError, match=f"too few slots: {slots}, but the pipeline needs {slots + 1}"):
            attempt.run(spark)


class StopAfterOutput(StopRequests):
    """A stop request that arrives when the sink contains results."""

    def __init__(self, topics: Topics) -> None:
        super().__init__()
        self._topics = topics

    def install_after(self, state: State, _: str) -> None:
        if state is State.RUNNING:
            self._topics.read(bool)
            self.signals.put(15)


def test_a_stop_request_waits_for_the_commit(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """A planned restart repeats no record: the last commit contains the offsets of all records that were read."""
    pipeline = replace(pipeline, commit_interval_s=MIN_COMMIT_INTERVAL_S)
    topics.send(country("FR", 5))
    stop = StopAfterOutput(topics)

    Attempt(pipeline, topics.kafka, str(tmp_path), stop, stop.install_after, print, drains=True).run(spark)

    committed = checkpoint.last_commit(spark, checkpoint_path(spark, pipeline, topics.kafka, str(tmp_path)))
    assert 1 == sum(committed[topics.source].values())


def named(orders: DataFrame, names: DataFrame) -> DataFrame:
    """A query that adds the name of the order's customer, which is the order's key."""
    known = names.select("key", F.col("value").alias("name"))
    return orders.select("key", "value").join(known, "key").select("key", F.col("name").alias("value"))


def test_reads_its_side_tables_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """With refresh_tables_s, the query starts again from its checkpoint after a commit. It repeats no record."""
    table = topics.cluster.create(f"{topics.source}-names")
    topics.cluster.send(table, b"Ann", key=b"a")
    topics.send((b"a", b"order"))
    sources = {"orders": topics.source, "names": Source(table, table=True)}
    pipeline = Pipeline("named", sources, named, topics.sink, mode="microbatch", refresh_tables_s=1)
    stop = StopRequests()
    states: list[State] = []

    def report(state: State, _: str) -> None:
        states.append(state)
        if state is State.RUNNING and states.count(state) == 1:
            assert [("a", b"Ann")] == topics.read(bool)
            topics.cluster.send(table, b"Anna", key=b"a")
        elif state is State.RUNNING:
            topics.send((b"a", b"order"))
            assert [("a", b"Anna")] == topics.read(bool)
            stop.signals.put(15)

    Attempt(pipeline, topics.kafka, str(tmp_path), stop, report, print, drains=False).run(spark)

    assert [State.RUNNING, State.DRAINING, State.STARTING, State.RUNNING] == states


def poisoned(records: DataFrame) -> DataFrame:
    """A query that fails for the value `poison`."""
    value = F.col("value").cast("string")
    return records.select(
        "key",
        F.when(value == "poison", F.raise_error(F.lit("found poison"))).otherwise(value).alias("value"),
        "headers",
    )


def test_names_the_record_that_the_query_cannot_pass(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """Spark's error contains no offset, so the record is searched for."""
    pipeline = Pipeline("poisoned", source=topics.source, query=poisoned, sink=topics.sink)
    topics.send(*[(b"a", b"%d" % number) for number in range(10)], (b"a", b"poison"), (b"a", b"1"), (b"b", b"poison"))

    with pytest.raises(Crashed, match="found poison"):
        Attempt(pipeline, topics.kafka, str(tmp_path), StopRequests(), lambda *_: None, print, drains=False).run(spark)

    found = failing_record.find(spark, pipeline, topics.kafka, str(tmp_path))
    assert f"{topics.source}, partition 1, offset 10" == found
