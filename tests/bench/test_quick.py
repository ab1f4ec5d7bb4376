"""The benchmark works. What it measures is its own matter: here nothing is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import capacity, report

ROOT = Path(__file__).parents[2]


def test_measures_in_quick_mode():
    """A quick run brings a broker, a server and clients together, prints its table and leaves the results alone."""
    before = report.DATA.read_bytes()
    command = [sys.executable, "-m", "bench", "--quick", "--only", "ceiling", "stalled"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
    assert "load generator's own ceiling" in done.stdout
    assert "readers that got all | 99 |" in done.stdout
    assert before == report.DATA.read_bytes()


def test_capacity_follows_from_the_results():
    """A hundred times the clients need a hundred times the workers, by the figures that are in the project."""
    costs = capacity.costs()

    small, large = (capacity.fleet(costs, clients, 1.0) for clients in (10_000, 1_000_000))

    assert large.workers >= 50 * small.workers
    assert 100 == round(large.out_bytes_s / small.out_bytes_s)


def test_a_storm_is_over_sooner_with_more_room_for_it():
    """Clients that come back over a longer time wait less for a worker."""
    soon = capacity.storm(8_000, 0.0005, 0.5)
    late = capacity.storm(8_000, 0.0005, 20.0)

    assert late.wait_p99_s < soon.wait_p99_s
