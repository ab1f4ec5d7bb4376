"""The results of a measurement: rows for the tables and curves for the charts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        key: a stable name for programs: words with dots between them, without the unit.
        what: the name in the tables.
        value: the measured value, in `unit`.
        baseline: the same figure of the baseline, measured in the same run; NaN if there is none.
        against: the name of the baseline.
        target: the design's goal as text; "" if there is none.
        limit: what limits the value.
    """

    key: str
    what: str
    value: float
    unit: str
    baseline: float = math.nan
    against: str = ""
    target: str = ""
    limit: str = ""

    @property
    def ratio(self) -> float:
        """value / baseline."""
        return self.value / self.baseline if self.baseline else math.nan


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
