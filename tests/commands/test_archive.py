"""`kafkasse archive`: archive topics, merge files, erase keys, and show what an archive contains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install pyarrow")

from kafkasse.broker import EmbeddedBroker
from kafkasse.commands import main
from kafkasse.memory_log import MemoryLog
from tests.support.archive import archive as write_archive
from tests.support.kafka import Cluster

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


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run `kafkasse archive …`. Return the exit code, stdout and stderr."""
    code = main(["archive", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def status(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call(capsys, "status", str(path), "--json")[1])
    return found


def test_shows_what_an_archive_contains(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status lists the topics, their size, and the offsets that are missing."""
    code, out, _ = call(capsys, "status", str(path))

    found = status(capsys, path)
    assert (0, 10, 5, {"0": 12}, [[0, 4, 6]]) == (
        code,
        *(found[name] for name in ("records", "files", "ends", "holes")),
    )
    assert "orders (memory1): 2026-11-22 to 2026-11-22" in out
    assert "partition 0 lacks the offsets 4 to 5" in out


def test_merges_files(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files on both sides of a hole become one each."""
    assert (0, "orders (memory1): 3 fewer files\n") == call(capsys, "compact", str(path))[:2]
    assert (2, 10) == (status(capsys, path)["files"], status(capsys, path)["records"])


@pytest.mark.parametrize("key", [("--key", "k1"), ("--key-base64", "azE=")])
def test_erases_a_key(path: Path, capsys: pytest.CaptureFixture[str], key: tuple[str, str]) -> None:
    """The command states how many records it has erased."""
    found = call(capsys, "erase", str(path), "--topic", "orders", *key)

    assert (0, "orders (memory1): 5 records erased\n") == found[:2]
    assert 5 == status(capsys, path)["records"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("erase", "{}", "--topic", "orders"), 2, "pass either --key or --key-base64"),
        (("erase", "{}", "--topic", "orders", "--key-base64", "?"), 2, "it is not Base64"),
        (("status", "{}", "--topic", "no"), 1, "does not contain the topic no"),
        (("status", "{}/nowhere"), 1, "nowhere is not an archive: kafkasse-archive.json cannot be read"),
        (("run", "{}/topic=orders", "--topic", "t"), 1, "contains other files and no kafkasse-archive.json"),
    ],
)
def test_states_what_is_wrong(
    path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    """Each error is one sentence."""
    found = call(capsys, *(each.format(path) for each in words))

    assert code == found[0]
    assert message in found[2]


def test_names_a_damaged_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The operator learns which file to restore. The archive is unchanged."""
    damaged = sorted(path.rglob("*.parquet"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-10])

    code, _, err = call(capsys, "compact", str(path))

    assert (1, True) == (code, f"{damaged}: " in err)
    assert "restore the file from a backup" in err
    assert 5 == status(capsys, path)["files"]


@pytest.mark.long
def test_archives_topics_with_spark(
    broker: EmbeddedBroker, tmp_path: Path, fresh_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--once` archives all records of the topics that match, prints when it is ready, and ends."""
    cluster = Cluster(broker.bootstrap_servers)
    for topic in (f"{fresh_name}.a", f"{fresh_name}.b"):
        cluster.send(cluster.create(topic), b"1", b"2")
    cluster.close()
    words = ["run", str(tmp_path / "archive"), "--topic", f"{fresh_name}.*", "--once"]
    words += ["--bootstrap-servers", broker.bootstrap_servers, "--interval", "1"]

    done = subprocess.run(
        [sys.executable, "-m", "kafkasse", "archive", *words],
        capture_output=True,
        text=True,
        timeout=EXIT_TIMEOUT_S,
        check=False,
    )

    assert (0, "kafkasse archive: ready\n") == (done.returncode, done.stdout), done.stderr
    lines = call(capsys, "status", str(tmp_path / "archive"), "--json")[1].splitlines()
    assert [(f"{fresh_name}.a", 2), (f"{fresh_name}.b", 2)] == [
        (each["topic"], each["records"]) for each in map(json.loads, lines)
    ]


def test_does_not_show_a_password_in_an_address(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Credentials do not belong in --bootstrap-servers, and the error does not repeat them."""
    address = "admin:hunter2@127.0.0.1:1"

    code, out, err = call(capsys, "run", str(path), "--topic", "orders", "--bootstrap-servers", address)

    assert (2, "") == (code, out)
    assert "--kafka-config" in err
    assert "hunter2" not in err
