"""`kafkasse archive`: archive topics, merge files, erase keys, and show what an archive contains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install pyarrow")

from kafkasse.log.memory import MemoryLog
from tests.commands.run import Run, process
from tests.support.archive import archive as write_archive

EXIT_TIMEOUT_S = 170


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An archive with ten records of the topic `orders` in five files. The offsets 4 and 5 are missing."""
    log = MemoryLog()
    log.create("orders")
    for number in range(12):
        log.append("orders", b"%d" % number, key=b"k%d" % (number % 2), timestamp=number)
    for end in range(2, 13, 2):
        if end != 6:
            write_archive(tmp_path, log, "orders", end=end)
        log.drop_before("orders", end)
    return tmp_path


def status(run: Run, path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run("archive", "status", str(path), "--json").out)
    return report


def test_shows_what_an_archive_contains(run, path):
    """The status lists the topics, their size, and the offsets that are missing."""
    out = run("archive", "status", str(path)).out

    report = status(run, path)
    assert (10, 5, {"0": 12}, [[0, 4, 6]]) == tuple(report[name] for name in ("records", "files", "ends", "holes"))
    assert "orders (memory1): 2026-11-22 to 2026-11-22" in out
    assert "partition 0 lacks the offsets 4 to 5" in out


def test_merges_files(run, path):
    """The files on both sides of a hole become one each."""
    assert (0, "orders (memory1): 3 fewer files\n") == run("archive", "compact", str(path))[:2]
    assert (2, 10) == (status(run, path)["files"], status(run, path)["records"])


@pytest.mark.parametrize("key", [("--key", "k1"), ("--key-base64", "azE=")])
def test_erases_a_key(run, path, key):
    done = run("archive", "erase", str(path), "--topic", "orders", *key)

    assert (0, "orders (memory1): 5 records erased\n") == done[:2]
    assert 5 == status(run, path)["records"]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("erase {} --topic orders", 2, "pass either --key or --key-base64"),
        ("erase {} --topic orders --key-base64 ?", 2, "it is not Base64"),
        ("status {} --topic no", 1, "does not contain the topic no"),
        ("status {}/nowhere", 1, "nowhere is not an archive: kafkasse-archive.json cannot be read"),
        ("run {}/topic=orders --topic t", 1, "contains other files and no kafkasse-archive.json"),
        ("run {} --topic orders --bootstrap-servers admin:hunter2@127.0.0.1:1", 2, "--kafka-config for credentials"),
    ],
)
def test_states_what_is_wrong(run, path, line, code, message):
    """Each error is one sentence, without a password. `kafkasse pipeline run` has the same option."""
    done = run("archive", *line.format(path).split())

    assert (code, "") == (done.code, done.out)
    assert message in done.err
    assert "hunter2" not in done.err


def test_names_a_damaged_file(run, path):
    """The operator learns which file to restore. The others are merged."""
    damaged = sorted(path.rglob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-10])

    code, _, err = run("archive", "compact", str(path))

    assert (1, True) == (code, f"{damaged}: " in err)
    assert "restore the file from a backup" in err
    assert damaged.exists()
    assert 3 == status(run, path)["files"]


def test_a_damaged_topic_does_not_affect_others(run, path):
    log = MemoryLog()
    log.create("returns")
    for end in (1, 2):
        log.append("returns", b"{}", key=b"k1")
        write_archive(path, log, "returns", end=end)
    sorted(path.rglob("*.parquet"))[0].unlink()
    compacted = run("archive", "compact", str(path))
    sorted(path.glob("topic=orders/**/*.json"))[-1].write_bytes(b"")
    shown = run("archive", "status", str(path))

    assert (1, "returns (memory1): 1 fewer files\n") == compacted[:2]
    assert (1, "returns (memory1): ") == (shown.code, shown.out[:19])
    assert "the archive of orders cannot be read or written" in compacted.err


@pytest.mark.long
def test_archives_topics_with_spark(broker, cluster, tmp_path, fresh_name, run):
    """`--once` archives all records of the topics that match, prints when it is ready, and ends."""
    for topic in (f"{fresh_name}.a", f"{fresh_name}.b"):
        cluster.send(cluster.create(topic), b"1", b"2")
    words = ["archive", "run", str(tmp_path / "archive"), "--topic", f"{fresh_name}.*", "--once"]
    words += ["--bootstrap-servers", broker.bootstrap_servers, "--interval", "1"]

    with process(*words, env=os.environ) as archiving:
        out, err = archiving.communicate(timeout=EXIT_TIMEOUT_S)

    assert (0, "kafkasse archive: ready\n") == (archiving.returncode, out), err
    lines = run("archive", "status", str(tmp_path / "archive"), "--json").out.splitlines()
    assert [(f"{fresh_name}.a", 2), (f"{fresh_name}.b", 2)] == [
        (line["topic"], line["records"]) for line in map(json.loads, lines)
    ]
