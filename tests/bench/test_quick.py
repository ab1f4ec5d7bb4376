"""The benchmark runs. These tests do not judge its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__, capacity, report

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.processes
def test_a_quick_run_prints_tables_and_keeps_the_results():
    before = report.DATA.read_bytes()
    command = [sys.executable, "-m", "bench", "--quick", "--only", "ceiling", "stalled"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert "limit of the load generator" in done.stdout
    assert "clients that received all records | 99 |" in done.stdout
    assert before == report.DATA.read_bytes()


def test_a_missing_package_ends_the_run_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench"])
    monkeypatch.setattr("bench.servers.find_spec", lambda name: None if name == "confluent_kafka" else name)

    with pytest.raises(SystemExit, match=r"confluent_kafka not found\. Run: pip install -r bench/requirements\.txt"):
        __main__.main()


def test_a_fleet_grows_with_its_clients():
    """With the stored costs, 100 times the clients need 100 times the bandwidth and at least 50 times the workers."""
    costs = capacity.costs()

    small, large = (capacity.fleet(costs, clients, 1.0) for clients in (10_000, 1_000_000))

    assert large.workers >= 50 * small.workers
    assert 100 == round(large.sent_bytes_per_s / small.sent_bytes_per_s)


def test_a_longer_retry_shortens_the_wait_for_a_stream():
    """Clients whose reconnects are spread over a longer time wait less for the worker."""
    short_retry = capacity.reconnect_storm(8_000, 0.0005, 0.5)
    long_retry = capacity.reconnect_storm(8_000, 0.0005, 20.0)

    assert long_retry.wait_p99_s < short_retry.wait_p99_s
