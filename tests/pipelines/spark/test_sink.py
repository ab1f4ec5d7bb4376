"""The records that a pipeline writes: headers, size, keys and dead letters. Results older than those in the sink are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.checkpoints import sink_versions
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.kafka import contract
from kafkasse.pipelines.kafka.contract import GENERATION, SOURCE, VERSION
from kafkasse.pipelines.kafka.sink_rows import VERSIONED_BY
from kafkasse.pipelines.spark import private_spark
from kafkasse.pipelines.spark.files import Files
from tests.pipelines.spark.runs import codes, defined
from tests.pipelines.topics import Topics, country, fields, top
from tests.support.waiting import wait_until

REASON = "kafkasse-dead-letter-reason"


def large_country(code: str, size: int, name_bytes: int) -> tuple[bytes, bytes]:
    return code.encode(), json.dumps(fields(code, size) | {"name": "x" * name_bytes}).encode()


@pytest.mark.long
def test_a_result_that_kafka_would_reject_becomes_a_dead_letter(runs):
    """Two legal records have a Top 3 that is too large. The pipeline continues, and the sink keeps the result before it."""
    topics = runs.topics
    topics.send(large_country("FR", 5, 900_000))

    with runs.running(runs.topn()):
        topics.read(bool)
        topics.send(large_country("DE", 4, 900_000))
        [letter] = runs.letters(1)
        topics.send(country("DE", 4))
        topics.read(lambda latest: top(latest["Europe"]) == ["FR", "DE"])

    headers = dict(letter.headers)
    assert (b"Europe", None) == (letter.key, letter.value)
    assert b"bytes, but Kafka accepts" in headers[REASON]
    assert topics.sink.encode() == headers["kafkasse-dead-letter-topic"]
    assert b"value" == headers["kafkasse-dead-letter-omitted"]


def copy(records: DataFrame) -> DataFrame:
    """A query that changes nothing, except that a value can ask for a null key."""
    key = F.when(F.col("value") != b"no key", F.col("key"))
    position = F.create_map("partition", "offset")
    return records.select(key.alias("key"), "value", (F.col("offset") + 1).alias("version"), position.alias("position"))


def test_each_record_has_the_headers_of_the_contract(runs):
    """The headers contain the pipeline and its version, the version of the key, and the position in the source.

    A row without a key becomes a dead letter, because a compacted topic would reject the record.
    """
    runs.topics.send((b"a", b"1"), (b"a", b"2"), (b"a", b"no key"))

    runs.once(runs.pipeline(copy, version=7, mode="once"))

    partition = ord("a") % 3
    expected = [
        {
            "kafkasse-pipeline": b"copy/7",
            "kafkasse-version": str(offset + 1).encode(),
            "kafkasse-source": b'{"%d":%d}' % (partition, offset),
        }
        for offset in (0, 1)
    ]
    assert expected == [dict(record.headers) for record in runs.results(2)]
    [letter] = runs.letters(1)
    assert (None, b"no key", b"it has no key") == (letter.key, letter.value, dict(letter.headers)[REASON])


def test_each_bad_record_becomes_a_dead_letter_with_its_bytes_and_position(runs, monkeypatch, caplog):
    """The dead letter has the key, the value and the headers of the record, and says where it is and why it is bad.

    The log counts the dead letters of each batch. After some time without records (here 0.1 s), Spark reports a progress
    with the number of the next batch.

    The query for dead letters needs one slot. Real-time mode starts no batch while the jobs of other queries have more tasks
    than there are free slots.
    """
    monkeypatch.setattr(dead_letters, "INTERVAL_S", 1.0)
    topics, tracker = runs.topics, runs.spark.sparkContext.statusTracker()
    bad = [(b"FR", b"{\xff"), (None, b"[]"), *((b"FR", b"%d" % n) for n in range(10))]

    def others() -> list[StreamingQuery]:
        return [candidate for candidate in runs.spark.streams.active if candidate.id != query.id]

    def jobs_for_dead_letters() -> list[int]:
        return [job for other in others() for job in tracker.getJobIdsForGroup(str(other.runId))]

    def logged() -> int:
        return sum(map(int, re.findall(r"dead letters: (\d+) in", caplog.text)))

    with runs.reports_idle_queries(), runs.running(runs.pipeline(codes)) as query:
        wait_until(lambda: any(progress.batchId for other in others() for progress in other.recentProgress))
        for key, value in bad:
            topics.cluster.send(topics.source, value, key=key, partition=1, headers=[("trace", b"\x00")])
        topics.send(country("DE", 4))
        topics.read(lambda latest: latest["DE"] == b"DE")
        letters = runs.letters(len(bad))
        wait_until(lambda: logged() == len(bad))
        job = tracker.getJobInfo(jobs_for_dead_letters()[0])

    assert bad == [(letter.key, letter.value) for letter in letters]
    assert {("trace", b"\x00")} == {letter.headers[0] for letter in letters}
    headers = dict(letters[1].headers)
    where = [headers[f"kafkasse-dead-letter-{name}"] for name in ("topic", "partition", "offset", "reason")]
    assert [topics.source.encode(), b"1", b"1", b"it has no key"] == where
    assert int(headers["kafkasse-dead-letter-timestamp"]) > 0
    assert job
    stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
    assert [1] == [stage.numTasks for stage in stages if stage]


@pytest.mark.parametrize(
    ("key", "value", "header", "kept", "omitted"),
    [
        (10, 300, 10, [True, True, True], None),
        (10, 800, 10, [True, False, True], b"value"),
        (800, 800, 10, [False, False, True], b"key"),
        (10, 10, 800, [False, False, False], b"headers"),
    ],
)
def test_a_dead_letter_omits_what_kafka_would_reject(spark, key, value, header, kept, omitted):
    """Its value is omitted first, then its key, and then the other headers. The reason has at most 1,000 characters."""
    schema = "topic STRING, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    rows = spark.createDataFrame([("tops", bytes(key), bytes(value), [("trace", bytes(header))])], schema)
    limits = {"tops": 300, "letters": 1000}
    long = rows.withColumns({"problem": F.lit("é" * 1001), "partition": F.lit(3), "offset": F.lit(4)})

    [row] = contract.records(rows, Pipeline("copy", "source", copy, "tops"), "letters", limits, 0).collect()
    [letter] = contract.letters(long.withColumn("timestamp", F.current_timestamp()), "letters", 3000).collect()

    headers = {entry.key: entry.value for entry in row.headers}
    assert ("letters", kept) == (row.topic, [row.key is not None, row.value is not None, "trace" in headers])
    assert omitted == headers["kafkasse-dead-letter-omitted"]
    assert ("é" * 1000).encode() == {entry.key: entry.value for entry in letter.headers}[REASON]


def numbered(records: DataFrame) -> DataFrame:
    return records.select("key", "value", F.col("value").cast("string").cast("bigint").alias("version"))


KEY = b"\xff\0a"  # not UTF-8


def send_versions(topics: Topics, *versions: int) -> None:
    for version in versions:
        topics.cluster.send(topics.sink, b"%d" % version, key=KEY, headers=[(VERSION, b"%d" % version)])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_repeated_result_is_not_written_again(runs, mode):
    """A run that was killed before its first commit reads the source again, and writes only what is new."""
    pipeline = runs.pipeline(numbered, mode=mode)
    runs.topics.send((b"a", b"1"), (b"a", b"2"))
    with runs.running(pipeline):
        runs.results(2)
    for commit in Path(runs.checkpoint(pipeline), "commits").glob("*"):
        commit.unlink()  # as after a kill -9
    runs.topics.send((b"b", b"1"), (b"a", b"3"))

    with runs.running(pipeline):
        runs.results(4)

    assert [b"1", b"2", b"3"] == [record.value for record in runs.results(4) if record.key == b"a"]


def test_finds_the_highest_version_of_each_key(spark, topics):
    """Records without a version do not count. Spark starts no Python processes to use the result.

    A new checkpoint starts a new generation: all of its versions are higher than those in the sink, although it reads the
    source from its start.
    """
    first_generation = sink_versions.next_generation(spark, topics.kafka, [topics.sink])
    send_versions(topics, 1, GENERATION + 7, 2)
    topics.cluster.send(topics.sink, b"x", key=b"b")

    versions = sink_versions.written_versions(spark, topics.kafka, [topics.sink], 0)

    assert versions is not None
    assert [(topics.sink, KEY, GENERATION + 7)] == [(row[0], bytes(row[1]), row[2]) for row in versions.collect()]
    assert "ExistingRDD" not in private_spark.plan(versions)  # how Spark names rows from Python
    assert (0, 2) == (first_generation, sink_versions.next_generation(spark, topics.kafka, [topics.sink]))


def test_compares_the_offsets_of_one_source_partition(spark, topics):
    """A result of one record has an offset as its version. The results of operators have versions that all compare."""
    for version, position in ((11, b'{"0":10}'), (3, b'{"1":2}'), (1, b"damaged")):
        headers = [(VERSION, b"%d" % version), (SOURCE, position)]
        topics.cluster.send(topics.sink, b"x", key=KEY, headers=headers)
    given = [(0, 11), (0, 12), (1, 3), (1, 4), (2, 1), (None, 11), (None, 12)]
    rows = spark.createDataFrame(given, f"{VERSIONED_BY} INT, version BIGINT").withColumns(
        {"topic": F.lit(topics.sink), "key": F.lit(KEY)}
    )
    written = sink_versions.written_versions(spark, topics.kafka, [topics.sink], 0)

    assert written is not None
    newer = sink_versions.only_newer(rows, written, 0)

    assert [(0, 12), (1, 4), (2, 1), (None, 12)] == [
        (row[0], row[1]) for row in newer.select(VERSIONED_BY, "version").collect()
    ]


@pytest.mark.long
def test_a_restart_writes_the_results_of_another_source(runs, tmp_path):
    """The second source has a lower offset than the record of the key in the sink."""
    topics = runs.topics
    other = topics.cluster.create(f"{topics.source}-other", 3)
    sources = {
        name: {"topic": topic, "schema": {"properties": {"n": {}}}}
        for name, topic in (("a", topics.source), ("b", other))
    }
    pipeline = defined(tmp_path / "pipelines.yaml", sources=sources, sink=topics.sink, mode="once")
    topics.send(*((b"a", b"{}") for _ in range(3)))
    runs.once(pipeline)
    topics.cluster.send(other, b"{}", key=b"a")

    runs.once(pipeline)

    assert 4 == len(runs.results(4))


def test_an_older_checkpoint_does_not_start(runs):
    """The pipeline has run with a newer checkpoint, so clients would drop all results of the older one as outdated."""
    pipeline = runs.pipeline(numbered, mode="once")
    runs.topics.send((b"a", b"1"))
    runs.once(pipeline)
    send_versions(runs.topics, GENERATION + 1)

    newer = f"{runs.topics.sink} contains results of a newer checkpoint than {runs.directory}/num"
    with pytest.raises(CommandError, match=newer):
        runs.once(pipeline)


@pytest.mark.parametrize("file", ["offsets/0", "commits/0", "dead-letters/offsets/0"])
def test_a_damaged_checkpoint_does_not_start(runs, file):
    pipeline = runs.pipeline(numbered)
    damaged = Path(runs.checkpoint(pipeline)) / file
    damaged.parent.mkdir(parents=True)
    damaged.write_text('v1\n{"batchWaterma')

    advice = f"the file {damaged} is damaged; restore the checkpoint from a copy, or use ano"
    with pytest.raises(CommandError, match=advice):
        runs.once(pipeline)


def test_files_work_on_file_systems_of_hadoop(spark, tmp_path):
    """The path may have a scheme."""
    files = Files(spark)
    path = f"file://{tmp_path}/new/manifest"
    missing = files.read(path), files.exists(path), files.changed_at_ms(path)
    files.write(path, "é")
    files.write(path, "ü")

    found = files.read(path), files.exists(path), [entry.name for entry in (tmp_path / "new").glob("[!.]*")]
    files.delete(path)

    assert (None, False, None) == missing
    assert ("ü", True, ["manifest"]) == found
    assert not files.exists(path)
