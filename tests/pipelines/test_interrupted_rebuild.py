"""`kafkasse pipeline run --rebuild` is interrupted, and then started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse.pipelines.checkpoints.checkpoint import PENDING, POINTER
from kafkasse.pipelines.kafka.contract import GENERATION
from tests.commands.run import EXIT_TIMEOUT_S, pipeline, run_words
from tests.pipelines.topics import Topics, country, top
from tests.support.waiting import POLL_S

LARGEST = """
from pyspark.sql import functions as F
from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.json_records import TEXT, WHOLE_NUMBER, json_objects
from kafkasse.pipelines.operators import ranked

def largest(records):
    fields = {{"code": TEXT, "continent": TEXT, "size": WHOLE_NUMBER}}
    items = json_objects(records, fields, key="code").withColumn("item", F.struct("code", "continent", "size"))
    rows = ranked(items.withColumnsRenamed({{"continent": "group", "size": "rank"}}), {n})
    value = F.to_json(F.struct(F.col("items").alias("nrs")))
    return rows.select(F.col("group").alias("key"), value.alias("value"), "version", "position")

largest_countries = Pipeline("largest", source="countries", query=largest, sink="largest", version={version})
"""


def run_until(europe: list[str], topics: Topics, words: list[str]) -> None:
    """Run until the sink contains these countries, and stop."""
    with pipeline(*words) as process:
        assert "kafkasse pipeline: ready\n" == process.stdout.readline(), process.stderr.read()
        topics.read(lambda latest: top(latest.get("Europe")) == europe)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=EXIT_TIMEOUT_S)
        assert 0 == process.returncode


def kill_when(is_reached: Callable[[], object], words: list[str]) -> None:
    """Rebuild, and send SIGKILL as soon as `is_reached` returns true."""
    with pipeline(*words) as process:
        while not is_reached():
            assert process.poll() is None, process.stderr.read()
            time.sleep(POLL_S)
        process.kill()
        process.communicate(timeout=EXIT_TIMEOUT_S)  # returns when the JVM has ended too


def versions(topics: Topics) -> dict[bytes, list[int]]:
    numbers: dict[bytes, list[int]] = {}
    for record in topics.cluster.records(topics.sink):
        numbers.setdefault(record.key, []).append(int(dict(record.headers)["kafkasse-version"]))
    return numbers


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(600)  # starts Spark several times
def test_a_killed_rebuild_continues(topics, tmp_path, monkeypatch):
    """Each run is killed at another point, and countries arrive. The results are correct. No key's version decreases."""
    monkeypatch.chdir(tmp_path)
    file, checkpoint = tmp_path / "largest.py", tmp_path / "checkpoint"
    words = run_words(topics, "--checkpoint", str(checkpoint), name="largest:largest_countries")
    file.write_text(LARGEST.format(n=2, version=1))
    topics.send(country("FR", 5), country("DE", 4), country("IT", 3), country("CN", 9, "Asia"))
    run_until(["FR", "DE"], topics, words)

    def pending() -> list[Path]:
        """The markers of rebuilds that are not complete."""
        return list(checkpoint.glob(f"*/{PENDING}"))

    file.write_text(LARGEST.format(n=3, version=2))
    words.append("--rebuild")
    # The rebuild has state.
    kill_when(lambda: any(path.with_name("commits").exists() for path in pending()), words)
    topics.send(country("ES", 6))
    # Its checkpoint has replaced the old one.
    kill_when(lambda: pending() and [*checkpoint.glob(f"*/{POINTER}")], words)
    topics.send(country("FR", 1))
    # It has written results.
    kill_when(lambda: any(max(numbers) >= GENERATION for numbers in versions(topics).values()), words)
    topics.send(country("PT", 8))
    run_until(["PT", "ES", "DE"], topics, words)

    results = versions(topics)
    assert {b"Europe", b"Asia"} == results.keys()
    assert all(numbers == sorted(numbers) for numbers in results.values())
