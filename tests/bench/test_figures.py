"""How the benchmark merges several runs, judges goals and finds figures that got worse."""

from __future__ import annotations

import math

import pytest

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
def test_a_rate_or_a_number_of_clients_below_its_goal_misses_it(unit: str):
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
    ],
)
def test_a_figure_got_worse_if_it_changed_by_more_than_its_spread(after: Row, before: Row, found: str):
    assert found == (worse(after, before) or "")


@pytest.mark.parametrize(("after", "before"), [(latency(11.5), latency(10.0)), (latency(math.nan), runs(10.0, 11.0))])
def test_a_figure_got_worse(after: Row, before: Row):
    """A figure that can no longer be measured got worse, too."""
    assert worse(after, before)
