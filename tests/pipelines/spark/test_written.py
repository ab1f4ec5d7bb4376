"""A pipeline that resumes does not write results that are older than those in the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines import private_spark, written
from kafkasse.pipelines.contract import GENERATION, VERSION
from kafkasse.pipelines.files import Files
from tests.pipelines.spark.runs import Runs
from tests.pipelines.topics import Topics


def numbered(records: DataFrame) -> DataFrame:
    """A query whose results have the version that their value contains."""
    return records.select("key", "value", F.col("value").cast("string").cast("bigint").alias("version"))


KEY = b"\xff\0a"  # not UTF-8


def send_versions(topics: Topics, *versions: int) -> None:
    """Write records of one key to the sink with these versions."""
    for version in versions:
        topics.cluster.send(topics.sink, b"%d" % version, key=KEY, headers=[(VERSION, b"%d" % version)])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_repeated_result_is_not_written_again(runs: Runs, mode: str) -> None:
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


def test_finds_the_highest_version_of_each_key(spark: SparkSession, topics: Topics) -> None:
    """Records without a version do not count. Spark starts no Python processes to use the result.

    A new checkpoint starts a new generation: all of its versions are higher than those in the sink, although it reads the
    source from its start.
    """
    first_generation = written.next_generation(spark, topics.kafka, [topics.sink])
    send_versions(topics, 1, GENERATION + 7, 2)
    topics.cluster.send(topics.sink, b"x", key=b"b")

    found = written.since(spark, topics.kafka, [topics.sink], 0)

    assert found is not None
    assert [(topics.sink, KEY, GENERATION + 7)] == [(row[0], bytes(row[1]), row[2]) for row in found.collect()]
    assert "ExistingRDD" not in private_spark.plan(found)  # how Spark names rows from Python
    assert (0, 2) == (first_generation, written.next_generation(spark, topics.kafka, [topics.sink]))


def test_an_older_checkpoint_does_not_start(runs: Runs) -> None:
    """The pipeline has run with a newer checkpoint, so clients would drop all results of the older one as outdated."""
    pipeline = runs.pipeline(numbered, mode="once")
    runs.topics.send((b"a", b"1"))
    runs.once(pipeline)
    send_versions(runs.topics, GENERATION + 1)

    newer = f"{runs.topics.sink} contains results of a newer checkpoint than {runs.directory}/num"
    with pytest.raises(CommandError, match=newer):
        runs.once(pipeline)


@pytest.mark.parametrize("file", ["offsets/0", "commits/0", "dead-letters/offsets/0"])
def test_a_damaged_checkpoint_does_not_start(runs: Runs, file: str) -> None:
    pipeline = runs.pipeline(numbered)
    damaged = Path(runs.checkpoint(pipeline)) / file
    damaged.parent.mkdir(parents=True)
    damaged.write_text('v1\n{"batchWaterma')

    advice = f"the file {damaged} is damaged; restore the checkpoint from a copy, or use ano"
    with pytest.raises(CommandError, match=advice):
        runs.once(pipeline)


def test_files_work_on_file_systems_of_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    """The path may have a scheme."""
    files = Files(spark)
    path = f"file://{tmp_path}/new/manifest"
    missing = files.read(path), files.exists(path), files.changed_at_ms(path)
    files.write(path, "é")
    files.write(path, "ü")

    found = files.read(path), files.exists(path), [each.name for each in (tmp_path / "new").glob("[!.]*")]
    files.delete(path)

    assert (None, False, None) == missing
    assert ("ü", True, ["manifest"]) == found
    assert not files.exists(path)
