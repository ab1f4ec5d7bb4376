"""The files of several workers: what remains of a worker that has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafkasse.telemetry import multiprocess

WORKER = """
import os, sys
from kafkasse.telemetry.metrics import Metrics
metrics = Metrics()
metrics.count("streams_opened", 2, route="r")
metrics.count("streams_open", 2, route="r")
metrics.observe("event_loop_stall_seconds", 0.3)
print(os.getpid())
"""
READER = "import sys; from kafkasse.telemetry import multiprocess; sys.stdout.buffer.write(multiprocess.render())"

pytestmark = pytest.mark.processes


def run(folder: Path, code: str) -> str:
    environment = os.environ | {multiprocess.VARIABLE: str(folder)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60, capture_output=True)
    return done.stdout.decode()


def test_dead_workers_leave_one_file_with_their_counters(tmp_path, monkeypatch):
    """Their gauges are gone. The sums and the buckets of histograms are those of all workers."""
    monkeypatch.setenv(multiprocess.VARIABLE, str(tmp_path))
    workers = [int(run(tmp_path, WORKER)) for _ in range(3)]
    before = run(tmp_path, READER).splitlines()

    for pid in workers:
        multiprocess.mark_dead(pid)
    after = run(tmp_path, READER).splitlines()

    assert 'kafkasse_streams_open{route="r"} 6.0' in before
    assert not [line for line in after if line.startswith("kafkasse_streams_open{")]
    for line in (
        'kafkasse_streams_opened_total{route="r"} 6.0',
        'kafkasse_event_loop_stall_seconds_bucket{le="0.25"} 0.0',
        'kafkasse_event_loop_stall_seconds_bucket{le="0.5"} 3.0',
        "kafkasse_event_loop_stall_seconds_count 3.0",
    ):
        assert line in before
        assert line in after
    assert {"counter_dead.db", "histogram_dead.db"} == {each.name for each in tmp_path.glob("*.db")}


@pytest.mark.parametrize("type_", ["counter", "gauge_livesum", "histogram"])
def test_the_file_of_a_worker_that_has_just_created_it_is_empty(type_, tmp_path, monkeypatch):
    """Responses contain the metrics of the others, even if the worker is killed now."""
    monkeypatch.setenv(multiprocess.VARIABLE, str(tmp_path))
    run(tmp_path, WORKER)
    (tmp_path / f"{type_}_1.db").touch()
    before = run(tmp_path, READER)

    multiprocess.mark_dead(1)

    assert 'kafkasse_streams_opened_total{route="r"} 2.0' in before
    assert before == run(tmp_path, READER)
