"""The benchmark runs, merges several runs, judges goals and finds figures that got worse."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__, capacity, report
from bench.figures import HIGHER_IS_BETTER, Curve, Figures, Row, merged, worse
from bench.report import table


def latency(value: float, baseline: float = math.nan, goal: float = math.nan) -> Row:
    return Row("p99", "latency", value, "ms", baseline, "other" if baseline == baseline else "", goal)


def runs(*values: float, baseline: float = math.nan) -> Row:
    (row,) = merged([Figures([latency(value, baseline)]) for value in values]).rows
    return row


def test_a_figure_is_the_median_of_its_runs_with_their_spread():
    found = runs(3.0, 1.0, 2.0, baseline=2.0)

    assert (2.0, 1.0, 3.0, 3) == (found.value, found.low, found.high, found.runs)
    assert (1.0, 0.5, 1.5) == (found.ratio, found.ratio_low, found.ratio_high)


def test_a_run_that_measured_nothing_does_not_count():
    found = runs(math.nan, 1.0, 3.0)

    assert (2.0, 2) == (found.value, found.runs)


def test_a_curve_has_the_median_at_each_point():
    def run(y: float) -> Figures:
        return Figures([], [Curve("c", "", "x", "y", {"line": [(1.0, y), (10.0, 2 * y)]})])

    found = merged([run(1.0), run(5.0), run(3.0)])

    assert {"line": [(1.0, 3.0), (10.0, 6.0)]} == found.curves[0].lines


def test_a_missed_goal_is_marked():
    assert "10, **missed**" in table([latency(11.0, goal=10.0)])
    assert "10, **missed**" in table([latency(math.nan, goal=10.0)])
    assert "10, reached" in table([latency(10.0, goal=10.0)])


@pytest.mark.parametrize("unit", HIGHER_IS_BETTER)
def test_a_rate_or_a_number_of_clients_below_its_goal_misses_it(unit):
    figure = Row("key", "figure", 90.0, unit, goal=100.0)

    assert figure.misses_goal


@pytest.mark.parametrize(
    ("after", "before", "found"),
    [
        (runs(13.5, 14.0, 14.5), runs(10.0, 11.0, 12.0), "latency [ms]: 14, was 11"),
        (runs(12.0, 12.5, 13.0), runs(10.0, 11.0, 12.0), ""),  # within the spread
        (runs(1.0, 1.0, 1.0), runs(10.0, 11.0, 12.0), ""),
        (runs(10.0, 10.0, baseline=5.0), runs(20.0, 20.0, baseline=10.0), ""),  # the ratio to the baseline counts
        (runs(15.0, 15.0, baseline=5.0), runs(10.0, 10.0, baseline=5.0), "latency / other: 3, was 2"),
        (latency(10.9), latency(10.0), ""),  # the spread of a single run counts as ten percent
        (latency(11.5), latency(10.0), "latency [ms]: 11.5, was 10"),
        (latency(math.nan), runs(10.0, 11.0), "latency [ms]: nan, was 10.5"),  # it can no longer be measured
    ],
)
def test_a_figure_got_worse_if_it_changed_by_more_than_its_spread(after, before, found):
    assert found == (worse(after, before) or "")


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


def test_a_missing_package_ends_the_run_with_the_command_that_installs_it(monkeypatch):
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
