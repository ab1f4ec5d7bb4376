"""The files of several workers: what remains of a worker that has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkasse.process.telemetry import multiprocess

WORKER = """
import os, sys
from kafkasse.process.telemetry.metrics import Metrics
metrics = Metrics()
metrics.count("streams_opened", 2, route="r")
metrics.count("streams_open", 2, route="r")
metrics.observe("event_loop_stall_seconds", 0.3)
print(os.getpid())
"""
READER = (
    "import sys; from kafkasse.process.telemetry import multiprocess; sys.stdout.buffer.write(multiprocess.render())"
)

pytestmark = pytest.mark.processes


def run(folder: Path, code: str) -> str:
    environment = os.environ | {multiprocess.VARIABLE: str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True)
    return done.stdout.decode()


def test_the_files_have_space_from_the_start(tmp_path):
    """The kernel would kill a process that writes to a part of a file for which the disk has no space."""
    run(tmp_path, WORKER)

    files = [path.stat() for path in tmp_path.glob("*.db")]
    assert {multiprocess.FILE_BYTES} == {file.st_size for file in files}
    assert all(file.st_blocks * 512 >= file.st_size for file in files)


def test_a_worker_starts_although_the_disk_is_full(tmp_path):
    """It reports its own metrics, and logs why the others do not know them."""
    limit = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"

    metrics = run(tmp_path, f"{limit}{WORKER}print(metrics.render().decode())")

    assert 'kafkasse_streams_opened_total{route="r"} 2.0' in metrics


def test_dead_workers_leave_one_file_with_their_counters(tmp_path, monkeypatch):
    """Their gauges are gone. The files of a worker that was killed when it had just created them are empty."""
    monkeypatch.setenv(multiprocess.VARIABLE, str(tmp_path))
    workers = [1, *(int(run(tmp_path, WORKER)) for _ in range(2))]
    for kind in ("counter", "gauge_livesum", "histogram"):
        (tmp_path / f"{kind}_1.db").touch()
    before = run(tmp_path, READER).splitlines()

    for pid in workers:
        multiprocess.mark_dead(pid)
    after = run(tmp_path, READER).splitlines()

    assert 'kafkasse_streams_open{route="r"} 4.0' in before
    assert not [line for line in after if line.startswith("kafkasse_streams_open{")]
    for line in (
        'kafkasse_streams_opened_total{route="r"} 4.0',
        'kafkasse_event_loop_stall_seconds_bucket{le="0.25"} 0.0',
        'kafkasse_event_loop_stall_seconds_bucket{le="0.5"} 2.0',
        "kafkasse_event_loop_stall_seconds_count 2.0",
    ):
        assert line in before
        assert line in after
    assert {"counter_dead.db", "histogram_dead.db"} == {path.name for path in tmp_path.glob("*.db")}
