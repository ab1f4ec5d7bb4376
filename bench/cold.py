"""bench/coldstart.py's figures, as rows."""

from __future__ import annotations

import re

from bench import coldstart
from bench.figures import Figures, Row
from bench.setting import Setting, middle


def measure(setting: Setting) -> Figures:
    """The median of some starts. Their targets stand in their names."""
    setting.topic_named(coldstart.TOPIC)
    runs = [coldstart.measure(setting.bootstrap_servers) for _ in range(setting.scale.cold_starts)]
    return Figures([_row(name, middle([run[name] for run in runs])) for name in runs[0]])


def _row(name: str, value: float) -> Row:
    target = re.search(r" \(target (\d+)\)", name)
    plain, _, unit = name.replace(target[0] if target else "", "").rpartition(", ")
    plain, unit = (plain, unit) if len(unit) <= 2 else (name, "MB")
    key = "cold_start." + re.sub(r"\W+", "_", plain)
    return Row(
        key, plain, value, unit, target=f"{target[1]} {unit}" if target else "", limit="importing Python modules"
    )
