"""What a measurement returns, and the rows that several runs of it become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

HIGHER_IS_BETTER = ("deliveries/s", "records/s", "times as fast", "%")  # the units of such figures
MIN_SAMPLES_BEYOND = 1_000  # a percentile is a figure only if at least so many samples are above it
PERCENTILES = (50, 99, 95, 90)  # the first two for which there are enough samples


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one server.

    Attributes:
        key: a stable name for programs: words with dots between them. Rows with the same key differ only in the server.
        server: what was measured: kafkasse, or a baseline under the same load in the same run.
        what: the name in the tables.
        value: the median of the runs, in `unit`. A percentile: of the samples of all runs together.
        goal: the goal of kafkasse; NaN if there is none.
        limit: what limits the value.
        runs: the number of runs.
        samples: the number of values, in all runs.
        low, high: the lowest and the highest value of a run.
    """

    key: str
    server: str
    what: str
    value: float
    unit: str
    goal: float = math.nan
    limit: str = ""
    runs: int = 1
    samples: int = 1
    low: float = math.nan
    high: float = math.nan

    @property
    def misses_goal(self) -> bool:
        """Whether the figure has a goal and does not reach it."""
        if math.isnan(self.goal):
            return False
        return self.value < self.goal if self.unit in HIGHER_IS_BETTER else self.value > self.goal


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of one run, in milliseconds.

    Attributes:
        key, server, what, limit: as in Row, without the percentile.
        goals: the goals of kafkasse by percentile.
    """

    key: str
    server: str
    what: str
    values_ms: Sequence[float]
    goals: dict[int, float]
    limit: str = ""


Figures = list[Row | Latencies]


def merged(runs: Iterable[Figures]) -> list[Row]:
    """Return one row for each figure of each server. A value that could not be measured (NaN) does not count."""
    by_key: dict[tuple[str, str], Figures] = {}
    for figure in (figure for run in runs for figure in run):
        by_key.setdefault((figure.key, figure.server), []).append(figure)
    rows: list[Row] = []
    for figures in by_key.values():
        same = [figure for figure in figures if isinstance(figure, Row) and not math.isnan(figure.value)]
        latencies = [figure for figure in figures if isinstance(figure, Latencies)]
        rows += [_median_row(same)] if same else []
        rows += _percentile_rows(latencies) if latencies else []
    return rows


def _median_row(rows: Sequence[Row]) -> Row:
    values = [row.value for row in rows]
    samples = sum(row.samples for row in rows)
    return replace(rows[0], value=median(values), runs=len(rows), samples=samples, low=min(values), high=max(values))


def _percentile_rows(runs: Sequence[Latencies]) -> list[Row]:
    """Return the median and the 99th percentile, or the highest percentile for which there are enough samples."""
    pooled = sorted(value for run in runs for value in run.values_ms)
    ordered = [sorted(run.values_ms) for run in runs if run.values_ms]
    percents = [percent for percent in PERCENTILES if _rests(percent, len(pooled))][:2]
    rows = []
    for percent in percents:
        of_runs = [_percentile(values, percent) for values in ordered]
        rows.append(
            Row(
                f"{runs[0].key}.p{percent}", runs[0].server, f"{runs[0].what}: {_NAMES[percent]} latency",
                _percentile(pooled, percent), "ms", runs[0].goals.get(percent, math.nan), runs[0].limit,
                len(ordered), len(pooled), min(of_runs), max(of_runs),
            )
        )  # fmt: skip
    return rows


_NAMES = {50: "median", 90: "90th percentile", 95: "95th percentile", 99: "99th percentile"}


def _rests(percent: int, samples: int) -> bool:
    return samples * (100 - percent) / 100 >= MIN_SAMPLES_BEYOND


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def worse(now: Row, before: Row) -> str:
    """Return a sentence if a figure got worse by more than the spread of both, else "". A single run spreads by 10 %."""
    loss = before.value - now.value if now.unit in HIGHER_IS_BETTER else now.value - before.value
    if loss <= max(_spread(now), _spread(before)):
        return ""
    return f"{now.server}: {now.what} [{now.unit}]: {now.value:.3g}, was {before.value:.3g}"


def _spread(row: Row) -> float:
    return row.high - row.low if row.runs > 1 else 0.1 * abs(row.value)
