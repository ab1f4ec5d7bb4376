"""The results of a measurement: rows for the tables and curves for the charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

HIGHER_IS_BETTER = ("deliveries/s", "records/s", "MB/s", "clients")  # the units of such figures


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        key: a stable name for programs: words with dots between them, without the unit.
        what: the name in the tables.
        value: the measured value, in `unit`; the median if there were several runs. NaN if it could not be measured.
        baseline: the same figure of the baseline, measured under the same load in the same run; NaN if there is none.
        against: the name of the baseline.
        goal: the design's goal; NaN if there is none.
        limit: what limits the value.
        runs: how often the figure was measured.
        low, high: the lowest and the highest value of all runs.
        ratio_low, ratio_high: the lowest and the highest value / baseline of all runs.
    """

    key: str
    what: str
    value: float
    unit: str
    baseline: float = math.nan
    against: str = ""
    goal: float = math.nan
    limit: str = ""
    runs: int = 1
    low: float = math.nan
    high: float = math.nan
    ratio_low: float = math.nan
    ratio_high: float = math.nan

    @property
    def ratio(self) -> float:
        """value / baseline."""
        return self.value / self.baseline if self.baseline else math.nan

    @property
    def higher_is_better(self) -> bool:
        return self.unit in HIGHER_IS_BETTER

    @property
    def misses_goal(self) -> bool:
        """Whether the figure has a goal and does not reach it. A figure that could not be measured misses its goal."""
        if math.isnan(self.goal):
            return False
        reached = self.value >= self.goal if self.higher_is_better else self.value <= self.goal
        return not reached


@dataclass(frozen=True, slots=True)
class Curve:
    """One chart: named lines of (x, y) points."""

    name: str
    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Figures:
    """The rows and the curves of one measurement."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)


def merged(runs: Sequence[Figures]) -> Figures:
    """Return the median and the spread of each figure over several runs of one measurement."""
    by_key: dict[str, list[Row]] = {}
    for row in (row for run in runs for row in run.rows):
        by_key.setdefault(row.key, []).append(row)
    return Figures([_merged_row(rows) for rows in by_key.values()], _merged_curves(runs))


def _merged_row(rows: Sequence[Row]) -> Row:
    values, ratios = _known(row.value for row in rows), _known(row.ratio for row in rows)
    return replace(
        rows[0],
        value=_median(values),
        baseline=_median(_known(row.baseline for row in rows)),
        runs=len(values),
        low=min(values, default=math.nan),
        high=max(values, default=math.nan),
        ratio_low=min(ratios, default=math.nan),
        ratio_high=max(ratios, default=math.nan),
    )


def _merged_curves(runs: Sequence[Figures]) -> list[Curve]:
    found = []
    for same in zip(*(run.curves for run in runs), strict=True):
        lines = {
            name: [
                (x, _median(_known(y for curve in same for at, y in curve.lines[name] if at == x))) for x, _ in points
            ]
            for name, points in same[0].lines.items()
        }
        found.append(replace(same[0], lines=lines))
    return found


def worse(now: Row, before: Row) -> str:
    """Return a sentence if a figure got worse by more than the spread of its runs, else "".

    Figures with a baseline are compared by their ratio, because it depends less on the machine. The spread of a single run
    counts as 10 %.
    """
    by_ratio = not (math.isnan(now.ratio) or math.isnan(before.ratio)) and now.against == before.against
    new, old = (now.ratio, before.ratio) if by_ratio else (now.value, before.value)
    if math.isnan(old) or new == old:
        return ""
    loss = old - new if now.higher_is_better else new - old
    if not math.isnan(new) and loss <= max(_spread(now, by_ratio), _spread(before, by_ratio)):
        return ""
    what = f"{now.what} / {now.against}" if by_ratio else f"{now.what} [{now.unit}]"
    return f"{what}: {new:.3g}, was {old:.3g}"


def _spread(row: Row, by_ratio: bool) -> float:
    low, high = (row.ratio_low, row.ratio_high) if by_ratio else (row.low, row.high)
    if row.runs > 1 and not math.isnan(high - low):
        return high - low
    return 0.1 * abs(row.ratio if by_ratio else row.value)


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan
