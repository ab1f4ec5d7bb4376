"""The records that a pipeline writes: headers, size, keys and dead letters, with Spark and a broker."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.pipelines.countries import country, fields, top
from tests.pipelines.spark.runs import Runs
from tests.support.waiting import wait_until

REASON = "kafkasse-dead-letter-reason"


def large_country(code: str, size: int, name_bytes: int) -> tuple[bytes, bytes]:
    """A legal country whose record is large."""
    return code.encode(), json.dumps(fields(code, size) | {"name": "x" * name_bytes}).encode()


@pytest.mark.long
def test_a_result_that_kafka_would_reject_becomes_a_dead_letter(runs: Runs) -> None:
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


def test_each_record_has_the_headers_of_the_contract(runs: Runs) -> None:
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


def test_each_bad_record_becomes_a_dead_letter_with_its_bytes_and_position(runs: Runs) -> None:
    """The dead letter has the key, the value and the headers of the record, and says where it is and why it is bad.

    The query for dead letters needs one slot. Real-time mode starts no batch while the jobs of other queries have more tasks
    than there are free slots.
    """
    topics, tracker = runs.topics, runs.spark.sparkContext.statusTracker()
    bad = [(b"FR", b"{\xff"), (None, b"[]"), *((b"FR", b"%d" % n) for n in range(10))]
    for key, value in bad:
        topics.cluster.send(topics.source, value, key=key, partition=1, headers=[("trace", b"\x00")])
    topics.send(country("DE", 4))

    def jobs_for_dead_letters() -> list[int]:
        others = [each for each in runs.spark.streams.active if each.id != query.id]
        return [job for each in others for job in tracker.getJobIdsForGroup(str(each.runId))]

    with runs.running(runs.topn()) as query:
        topics.read(lambda latest: top(latest["Europe"]) == ["DE"])
        letters = runs.letters(len(bad))
        wait_until(jobs_for_dead_letters)
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
