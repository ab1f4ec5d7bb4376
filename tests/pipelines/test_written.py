"""A pipeline that resumes does not write results that are older than those in the sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, private_spark, written
from kafkasse.pipelines.contract import GENERATION, VERSION
from kafkasse.pipelines.files import Files
from kafkasse.pipelines.runner import checkpoint_path, running_query
from tests.pipelines.topics import Topics, read


def numbered(records: DataFrame, n: int = 1) -> DataFrame:
    """A query whose results have the version that their value contains."""
    return records.select("key", "value", F.col("value").cast("string").cast("bigint").alias("version"))


KEY = b"\xff\0a"  # not UTF-8


def send_versions(topics: Topics, *versions: int) -> None:
    """Write records of one key to the sink with these versions."""
    for version in versions:
        topics.cluster.send(topics.sink, b"%d" % version, key=KEY, headers=[(VERSION, b"%d" % version)])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
def test_a_repeated_result_is_not_written_again(spark: SparkSession, topics: Topics, tmp_path: Path, mode: str) -> None:
    """A run that was killed before its first commit reads the source again, and writes only what is new."""
    pipeline = Pipeline("numbered", topics.source, numbered, topics.sink, mode=mode)
    topics.send((b"a", b"1"), (b"a", b"2"))
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 2)
    directory = Path(checkpoint_path(spark, pipeline, topics.kafka, str(tmp_path)))
    for commit in (directory / "commits").glob("*"):
        commit.unlink()  # as after a kill -9
    topics.send((b"b", b"1"), (b"a", b"3"))

    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 4)

    values = [record.value for record in read(topics, topics.sink, 4) if record.key == b"a"]
    assert [b"1", b"2", b"3"] == values


def test_finds_the_highest_version_of_each_key(spark: SparkSession, topics: Topics) -> None:
    """Records without a version do not count. Spark starts no Python processes to use the result."""
    send_versions(topics, 1, 3, 2)
    topics.cluster.send(topics.sink, b"x", key=b"b")

    found = written.since(spark, topics.kafka, [topics.sink], 0)

    assert found is not None
    assert [(topics.sink, KEY, 3)] == [(row[0], bytes(row[1]), row[2]) for row in found.collect()]
    assert "ExistingRDD" not in private_spark.plan(found)  # how Spark names rows from Python


def test_a_new_checkpoint_starts_a_new_generation(spark: SparkSession, topics: Topics) -> None:
    """All of its versions are higher than those in the sink, although it reads the source from its start."""
    before = written.next_generation(spark, topics.kafka, [topics.sink])
    send_versions(topics, 5, GENERATION + 7)

    after = written.next_generation(spark, topics.kafka, [topics.sink])

    assert (0, 2) == (before, after)


def test_an_older_checkpoint_does_not_start(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """The pipeline has run with a newer checkpoint, so clients would drop all results of the older one as outdated."""
    pipeline = Pipeline("numbered", topics.source, numbered, topics.sink)
    topics.send((b"a", b"1"))
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        read(topics, topics.sink, 1)
    send_versions(topics, GENERATION + 1)

    with (
        pytest.raises(CommandError, match=f"{topics.sink} contains results of a newer checkpoint than {tmp_path}/num"),
        running_query(spark, pipeline, topics.kafka, str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("file", ["offsets/0", "commits/0", "dead-letters/offsets/0"])
def test_a_damaged_checkpoint_does_not_start(spark: SparkSession, topics: Topics, tmp_path: Path, file: str) -> None:
    """The error names the file, and what to do."""
    pipeline = Pipeline("numbered", topics.source, numbered, topics.sink)
    damaged = Path(checkpoint_path(spark, pipeline, topics.kafka, str(tmp_path))) / file
    damaged.parent.mkdir(parents=True)
    damaged.write_text('v1\n{"batchWaterma')

    with (
        pytest.raises(
            CommandError, match=f"the file {damaged} is damaged; restore the checkpoint from a copy, or use ano"
        ),
        running_query(spark, pipeline, topics.kafka, str(tmp_path)),
    ):
        pass


def test_a_changed_query_does_not_start_with_the_old_checkpoint(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """The manifest in the checkpoint contains the settings of the query."""
    pipeline = Pipeline("numbered", topics.source, numbered, topics.sink)
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        pass
    changed = Pipeline("numbered", topics.source, numbered, topics.sink, version=2)

    with (
        pytest.raises(CommandError, match="version was 1 and is 2 now"),
        running_query(spark, changed, topics.kafka, str(tmp_path)),
    ):
        pass


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
