"""`kafkasse pipeline state` reads the state in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from kafkasse.commands import main
from tests.pipelines.countries import country, tombstone
from tests.pipelines.spark.runs import Runs
from tests.support.waiting import wait_until

State = Callable[..., list[str]]


@pytest.fixture
def state(runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> State:
    """Runs `kafkasse pipeline state topn`. Returns the lines of stdout and stderr."""
    monkeypatch.setattr("kafkasse.pipelines.session.session", lambda *_: nullcontext(runs.spark))

    def run(*words: str) -> list[str]:
        main(["pipeline", "state", "topn", "--checkpoint", str(runs.directory), *words])
        captured = capsys.readouterr()
        return (captured.out + captured.err).splitlines()

    return run


@pytest.mark.long
def test_shows_the_size_and_the_rows_of_the_state(runs: Runs, state: State) -> None:
    """The rows of a key are those of the country, and the rows of a group are those of its members."""
    runs.topics.send(country("FR", 5), country("DE", 4), country("IT", 3), tombstone("IT"))
    runs.once(runs.topn(mode="once"))

    size, *sizes = state()
    [country_row] = map(json.loads, state("--key", "FR"))
    group_rows = [json.loads(line) for line in state("--key", "Europe")]

    assert size.startswith(f"{runs.directory}/topn-")
    assert [
        "operator 0, members: rows=2 partitions=1",
        "operator 0, group: rows=1 partitions=1",
        "operator 1, latest: rows=2 partitions=1",
    ] == sizes
    assert ("latest", "Europe") == (country_row["name"], json.loads(country_row["value"]["row"])["group"])
    assert ["FR", "DE"] == [row["user_map_value"]["key"] for row in group_rows if row["name"] == "members"]
    assert [2] == [row["value"]["size"] for row in group_rows if row["name"] == "group"]


@pytest.mark.long
def test_the_state_has_a_new_snapshot(runs: Runs) -> None:
    """After a restart, Spark repeats the changes since the last snapshot of the state, so this must not be old."""
    with runs.running(runs.topn(mode="microbatch")):
        for commit in range(6):
            runs.topics.send(country("FR", commit))
            runs.results(commit + 1)

        wait_until(lambda: list(runs.directory.glob("topn-*/state/0/0/[4-6]_*.zip")))


def test_a_directory_without_a_commit_is_an_error(runs: Runs, state: State) -> None:
    """The command ignores the checkpoint of another pipeline."""
    (runs.directory / "other-pipeline" / "commits").mkdir(parents=True)

    [error] = state()

    assert f"kafkasse pipeline: the directory {runs.directory} contains no commit of the pipeline topn" == error
