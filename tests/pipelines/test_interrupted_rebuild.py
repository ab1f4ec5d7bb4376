"""`kafkasse pipeline run --rebuild` is interrupted, and then started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse.pipelines.checkpoint import PENDING, POINTER
from kafkasse.pipelines.contract import GENERATION
from tests.commands.run import EXIT_TIMEOUT_S, pipeline, run_words
from tests.pipelines.topics import Topics, country, top
from tests.support.waiting import POLL_S

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]  # each test starts Spark several times

LARGEST = """
from pyspark.sql import functions as F
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.json_records import TEXT, WHOLE_NUMBER, json_objects
from kafkasse.pipelines.operators import ranked

def largest(records):
    fields = {{"code": TEXT, "continent": TEXT, "size": WHOLE_NUMBER}}
    items = json_objects(records, fields, key="code").withColumn("item", F.struct("code", "continent", "size"))
    rows = ranked(items, {n}, group="continent", rank="size")
    value = F.to_json(F.struct(F.col("items").alias("nrs")))
    return rows.select(F.col("group").alias("key"), value.alias("value"), "version", "position")

largest_countries = Pipeline("largest", source="countries", query=largest, sink="largest", version={version})
"""


class Rebuilds:
    """A pipeline whose file is edited, and its checkpoint."""

    def __init__(self, topics: Topics, directory: Path) -> None:
        self.topics, self._directory = topics, directory
        self.checkpoint = directory / "checkpoint"

    def edit(self, n: int, version: int) -> None:
        (self._directory / "largest.py").write_text(LARGEST.format(n=n, version=version))

    def words(self, *more: str) -> list[str]:
        name = "largest:largest_countries"
        return run_words(self.topics, "--checkpoint", str(self.checkpoint), *more, name=name)

    def run_until(self, europe: list[str], *more: str) -> None:
        """Run until the sink contains these countries, and stop."""
        with pipeline(*self.words(*more)) as process:
            assert "kafkasse pipeline: ready\n" == process.stdout.readline(), process.stderr.read()
            self.topics.read(lambda latest: top(latest.get("Europe")) == europe)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=EXIT_TIMEOUT_S)
            assert 0 == process.returncode

    def kill(self, is_reached: Callable[[], bool]) -> None:
        """Rebuild, and send SIGKILL as soon as `is_reached` returns true."""
        with pipeline(*self.words("--rebuild")) as process:
            while not is_reached():
                assert process.poll() is None, process.stderr.read()
                time.sleep(POLL_S)
            process.kill()
            process.communicate(timeout=EXIT_TIMEOUT_S)  # returns when the JVM has ended too

    def has_state(self) -> bool:
        """Whether a rebuild that is not complete has state."""
        return any(path.with_name("commits").exists() for path in self.checkpoint.glob(f"*/{PENDING}"))

    def is_current(self) -> bool:
        """Whether the checkpoint of a rebuild that is not complete has replaced the old one."""
        return bool([*self.checkpoint.glob(f"*/{PENDING}")]) and bool([*self.checkpoint.glob(f"*/{POINTER}")])

    def versions(self) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for record in self.topics.cluster.records(self.topics.sink):
            found.setdefault(record.key, []).append(int(dict(record.headers)["kafkasse-version"]))
        return found


@pytest.fixture
def rebuilds(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rebuilds:
    """A pipeline whose old version has written its results and has ended."""
    monkeypatch.chdir(tmp_path)
    found = Rebuilds(topics, tmp_path)
    found.edit(n=2, version=1)
    topics.send(country("FR", 5), country("DE", 4), country("IT", 3), country("CN", 9, "Asia"))
    found.run_until(["FR", "DE"])
    return found


@pytest.mark.long
def test_a_killed_rebuild_continues(rebuilds):
    """Each run is killed at another point, and countries arrive. The results are correct. No key's version decreases."""
    topics = rebuilds.topics
    rebuilds.edit(n=3, version=2)
    rebuilds.kill(rebuilds.has_state)
    topics.send(country("ES", 6))
    rebuilds.kill(rebuilds.is_current)
    topics.send(country("FR", 1))
    rebuilds.kill(lambda: any(max(each) >= GENERATION for each in rebuilds.versions().values()))
    topics.send(country("PT", 8))

    rebuilds.run_until(["PT", "ES", "DE"], "--rebuild")

    versions = rebuilds.versions()
    assert {b"Europe", b"Asia"} == versions.keys()
    assert all(each == sorted(each) for each in versions.values())
