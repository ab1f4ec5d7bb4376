"""`kafkasse pipeline state` reads the state in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafkasse.commands import main
from kafkasse.pipelines.catalog import TOPN
from kafkasse.pipelines.runner import running_query
from tests.pipelines.countries import country, tombstone
from tests.pipelines.topics import Topics, read
from tests.support.waiting import wait_until

TIMEOUT_S = 120

Run = Callable[..., list[str]]


@pytest.fixture
def state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs `kafkasse pipeline state topn`. Returns the lines of stdout and stderr."""
    monkeypatch.setattr("kafkasse.pipelines.session.session", lambda *_: nullcontext(spark))

    def run(*words: str) -> list[str]:
        main(["pipeline", "state", "topn", "--checkpoint", str(tmp_path), *words])
        captured = capsys.readouterr()
        return (captured.out + captured.err).splitlines()

    return run


@pytest.mark.long
def test_shows_the_size_and_the_rows_of_the_state(
    spark: SparkSession, topics: Topics, tmp_path: Path, state: Run
) -> None:
    """The rows of a key are those of the country, and the rows of a group are those of its members."""
    topics.send(country("FR", 5), country("DE", 4), country("IT", 3), tombstone("IT"))
    pipeline = replace(TOPN, source=topics.source, sink=topics.sink, mode="once")
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)) as query:
        assert query.awaitTermination(TIMEOUT_S)

    size, *sizes = state()
    [country_row] = map(json.loads, state("--key", "FR"))
    group_rows = [json.loads(line) for line in state("--key", "Europe")]

    assert size.startswith(f"{tmp_path}/topn-")
    assert [
        "operator 0, members: rows=2 partitions=1",
        "operator 0, group: rows=1 partitions=1",
        "operator 1, latest: rows=2 partitions=1",
    ] == sizes
    assert ("latest", "Europe") == (country_row["name"], json.loads(country_row["value"]["row"])["group"])
    assert ["FR", "DE"] == [row["user_map_value"]["key"] for row in group_rows if row["name"] == "members"]
    assert [2] == [row["value"]["size"] for row in group_rows if row["name"] == "group"]


@pytest.mark.long
def test_the_state_has_a_new_snapshot(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """After a restart, Spark repeats the changes since the last snapshot of the state, so this must not be old."""
    pipeline = replace(TOPN, source=topics.source, sink=topics.sink, mode="microbatch")
    with running_query(spark, pipeline, topics.kafka, str(tmp_path)):
        for commit in range(6):
            topics.send(country("FR", commit))
            read(topics, topics.sink, commit + 1)

        wait_until(lambda: list(tmp_path.glob("topn-*/state/0/0/[4-6]_*.zip")))


def test_a_directory_without_a_commit_is_an_error(tmp_path: Path, state: Run) -> None:
    """The command ignores the checkpoint of another pipeline."""
    (tmp_path / "other-pipeline" / "commits").mkdir(parents=True)

    [error] = state()

    assert f"kafkasse pipeline: the directory {tmp_path} contains no commit of the pipeline topn" == error
