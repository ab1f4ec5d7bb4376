"""What a measurement hands on: rows for the tables, and curves for the pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        key: its name for programs: dots between words, no unit.
        what: its name for people.
        value: what was measured, in `unit`.
        baseline: the same figure of what it is compared with, in the same run; NaN without one.
        against: what that is.
        target: that of the design, in its own words; "" where it names none.
        limit: what keeps the value from being better.
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
    """One picture: named lines of (x, y)."""

    name: str
    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one measurement found."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
