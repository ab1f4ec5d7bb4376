"""A record for which a query raises an exception becomes a dead letter, and the pipeline continues without it."""

from __future__ import annotations

import json
import os
import signal
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.checkpoints import checkpoint
from kafkasse.pipelines.execution import failing_record
from kafkasse.pipelines.kafka.skipped_records import FILE, MAX_SKIPPED
from kafkasse.pipelines.pipeline import Source
from kafkasse.pipelines.spark.files import Files
from tests.commands.run import EXIT_TIMEOUT_S, pipeline, run_words
from tests.pipelines.spark.runs import Runs
from tests.pipelines.topics import Topics, read

DOUBLED = """
from kafkasse.pipelines import Pipeline
from pyspark.sql import functions as F


def query(numbers):  # real-time mode rejects Python functions
    return numbers.select("key", (2 * F.col("value").cast("string").cast("int")).cast("string").alias("value"))


doubled = Pipeline("doubled", "numbers", query, "doubled")
"""
SKIP_TIMEOUT_S = 500


def doubled(numbers: DataFrame) -> DataFrame:
    """A query of the user's own, whose Python function raises an exception for a value that is no number."""
    double = F.udf(lambda value: str(2 * int(value)), "string")
    return numbers.select("key", double("value").alias("value"))


def doubled_in_sql(numbers: DataFrame) -> DataFrame:
    """The same in Spark SQL, which starts no Python process."""
    return numbers.select("key", (2 * F.col("value").cast("string").cast("int")).cast("string").alias("value"))


def skip(runs: Runs, pipeline: Pipeline, data_error: str, limit: int = MAX_SKIPPED) -> list[str]:
    """Skip the records for which the query fails with this error. Returns their positions and reasons."""
    path = runs.checkpoint(pipeline)
    return failing_record.skip(runs.of(pipeline), path, data_error, limit)


def find(runs: Runs, pipeline: Pipeline) -> str:
    """The position of the first record for which the query fails."""
    return failing_record.find(runs.of(pipeline))


def own(letter: Any) -> dict[str, bytes]:
    """The headers that the pipeline has added to a dead letter. The names are without their prefix."""
    prefix = "kafkasse-dead-letter-"
    return {name.removeprefix(prefix): value for name, value in letter.headers if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (doubled_in_sql, "CAST_INVALID_INPUT"),
        pytest.param(
            doubled, "ValueError: invalid literal for int() with base 10: b'\\xfftwo'", marks=pytest.mark.long
        ),
    ],
    ids=["sql", "python"],
)
def test_a_record_that_fails_becomes_a_dead_letter_and_is_skipped(runs, query, reason):
    """The dead letter has the record's bytes, position and reason. The good records arrive once.

    Spark's error contains no offset, so the record is searched for.

    A record that fails for another reason is not skipped: without its state, the query may fail for a record that the
    pipeline can process.
    """
    topics, pipeline = runs.topics, runs.pipeline(query, mode="once")
    topics.cluster.send(topics.source, b"\xfftwo", key=b"\xfe", partition=2, headers=[("trace", b"\x00")])
    topics.send((b"b", b"1"))
    crash = runs.crash(pipeline)

    position = find(runs, pipeline)
    others = skip(runs, pipeline, "KeyError") + skip(runs, pipeline, "")
    topics.send((b"b", b"3"))
    skipped = skip(runs, pipeline, crash.data_error)
    again = skip(runs, pipeline, crash.data_error)
    topics.send((b"a", b"4"))
    runs.attempt(pipeline)

    assert f"{topics.source}, partition 2, offset 0" == position
    [where_and_why] = skipped
    assert where_and_why.startswith(f"{topics.source} partition 2 offset 0: ")
    assert reason in where_and_why
    assert [] == others + again
    results = topics.read(lambda latest: latest == {"a": b"8", "b": b"6"})
    assert [("a", b"8"), ("b", b"2"), ("b", b"6")] == sorted(results)
    [letter] = runs.letters(1)
    assert (b"\xfe", b"\xfftwo", ("trace", b"\x00")) == (letter.key, letter.value, letter.headers[0])
    headers = own(letter)
    assert [topics.source.encode(), b"2", b"0"] == [headers[name] for name in ("topic", "partition", "offset")]
    assert where_and_why.endswith(headers["reason"].decode())


@pytest.mark.long
def test_no_more_records_are_skipped_than_the_limit(runs, monkeypatch):
    """The error then names the first record that is not skipped. The list in the checkpoint has a limit too."""
    pipeline = runs.pipeline(doubled, mode="once")
    runs.topics.send(*[(b"a", b"x%d" % number) for number in range(4)])
    crash = runs.crash(pipeline)

    skipped = skip(runs, pipeline, crash.data_error, 2)
    monkeypatch.setattr(failing_record, "MAX_SKIPPED", 2)
    more = skip(runs, pipeline, crash.data_error, 2)

    assert [0, 1] == [int(own(letter)["offset"]) for letter in runs.letters(2)]
    assert (2, []) == (len(skipped), more)
    position = find(runs, pipeline)
    assert f"{runs.topics.source}, partition 1, offset 2" == position


@pytest.mark.long
def test_a_search_that_takes_too_long_names_no_record(runs, monkeypatch):
    """At its end, the search knows only several records of which one fails."""
    pipeline = runs.pipeline(doubled, mode="once")
    runs.topics.send((b"a", b"x"), (b"a", b"1"), (b"a", b"2"))
    runs.crash(pipeline)
    over = chain([False, False], repeat(True))  # in partition 0, at the start of partition 1, and then
    monkeypatch.setattr(failing_record._Search, "_is_over", lambda _: next(over))

    position = find(runs, pipeline)

    assert "the start of the topic, before the first commit" == position


@pytest.mark.long
def test_the_list_contains_only_records_that_are_not_committed(runs):
    pipeline = runs.pipeline(doubled, mode="once")
    runs.topics.send((b"a", b"x"), (b"a", b"1"))
    path = Path(runs.checkpoint(pipeline)) / FILE
    skip(runs, pipeline, runs.crash(pipeline).data_error)
    before = json.loads(path.read_text())
    runs.attempt(pipeline)

    checkpoint.skipped(Files(runs.spark), runs.checkpoint(pipeline))

    assert ({runs.topics.source: {"1": [0]}}, {}) == (before, json.loads(path.read_text()))


def broken(numbers: DataFrame) -> DataFrame:
    """A query that Spark can plan only for streams, so the query fails for each batch, even without records."""
    number = F.raise_error(F.lit("never")) if numbers.isStreaming else F.col("no column")
    return numbers.select("key", number.cast("string").alias("value"))


def test_a_query_that_fails_without_records_skips_none(runs):
    """Its failure says nothing about a record."""
    pipeline = runs.pipeline(broken, mode="once")
    runs.topics.send((b"a", b"1"))

    assert [] == skip(runs, pipeline, runs.crash(pipeline).data_error)


@pytest.mark.long
def test_a_record_before_the_start_is_not_skipped(runs):
    late = runs.pipeline(doubled, source=Source(runs.topics.source, start={0: 0, 1: 1, 2: 0}), mode="once")
    runs.topics.send((b"a", b"x"), (b"a", b"y"))

    skipped = skip(runs, late, runs.crash(late).data_error)

    assert [f"{runs.topics.source} partition 1 offset 1"] == [line.partition(":")[0] for line in skipped]


@pytest.fixture
def words(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that run DOUBLED in a process of its own."""
    (tmp_path / "doubling.py").write_text(DOUBLED)
    monkeypatch.chdir(tmp_path)
    return run_words(topics, "--checkpoint", str(tmp_path / "checkpoint"), name="doubling:doubled")


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pipeline_continues_after_records_that_fail(topics, words):
    """In real-time mode, all good records are processed. A restart skips the same bad records."""
    topics.send((b"a", b"1"), (b"b", b"two"), (b"b", b"2"), (b"a", b"three"), (b"a", b"3"))

    with pipeline(*words, "--status-topic", topics.cluster.create(f"{topics.sink}-status")) as process:
        assert process.stderr
        for _ in range(2):
            assert any("the query fails for" in line for line in process.stderr)
        topics.read(lambda latest: latest == {"a": b"6", "b": b"4"})
        letters = read(topics, f"{topics.sink}.dead-letters", 2)
        os.killpg(process.pid, signal.SIGKILL)
    with pipeline(*words) as process:
        topics.send((b"a", b"5"))
        topics.read(lambda latest: latest.get("a") == b"10")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=EXIT_TIMEOUT_S)

    assert {b"two", b"three"} == {letter.value for letter in letters}
    statuses = [json.loads(record.value) for record in read(topics, f"{topics.sink}-status", 11)]
    assert 2 == max(status["dead_letters"] for status in statuses)
    assert "restarting" not in err


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_query_that_fails_for_all_records_ends_with_the_position(topics, words):
    """A broken query does not turn all records of a topic into dead letters."""
    topics.send(*[(b"a", b"x")] * (MAX_SKIPPED + 2))

    with pipeline(*words) as process:
        _, err = process.communicate(timeout=SKIP_TIMEOUT_S)

    assert 1 == process.returncode
    assert f"at {topics.source}, partition 1, offset {MAX_SKIPPED}: " in err
    assert MAX_SKIPPED == len(read(topics, f"{topics.sink}.dead-letters", MAX_SKIPPED))


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rebuild_skips_the_records_that_fail(topics, words):
    """They become dead letters, and the rebuild completes."""
    topics.send((b"a", b"1"))
    with pipeline(*words) as process:
        topics.read(lambda latest: latest == {"a": b"2"})
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=EXIT_TIMEOUT_S)
    topics.send((b"a", b"x"), (b"a", b"3"))

    with pipeline(*words, "--rebuild") as process:
        topics.read(lambda latest: latest == {"a": b"6"})
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=EXIT_TIMEOUT_S)

    [letter] = read(topics, f"{topics.sink}.dead-letters", 1)
    assert b"x" == letter.value
    assert "rebuild: complete" in err
