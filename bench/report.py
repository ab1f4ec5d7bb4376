"""From figures to a table, bench/results.json, bench/RESULTS.md and the pictures in bench/images/."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import coldstart
from bench.figures import Curve, Figures, Row

FOLDER = Path(__file__).parent
DATA = FOLDER / "results.json"
RESULTS = FOLDER / "RESULTS.md"
IMAGES = FOLDER / "images"
HEAD = "| figure | value | | baseline | ratio | target | against | what limits it |"
RULE = "| --- | ---: | --- | ---: | ---: | --- | --- | --- |"


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    return "\n".join([HEAD, RULE, *map(_line, rows)])


def keep(name: str, figures: Figures, took_s: float, load_before: str) -> None:
    """Put one measurement into results.json, in place of what was there of its name."""
    found = read()
    found[name] = {
        "commit": coldstart.commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": load_before,
        "took_s": round(took_s),
        "rows": [{key: _plain(value) for key, value in asdict(row).items()} for row in figures.rows],
        "curves": [asdict(curve) for curve in figures.curves],
    }
    DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def read() -> dict[str, Any]:
    """All measurements that were kept, by name."""
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def rows(measurement: dict[str, Any]) -> list[Row]:
    """The rows of one of read()'s."""
    return [_row(kept) for kept in measurement["rows"]]


def _row(kept: dict[str, Any]) -> Row:
    given: dict[str, Any] = {key: math.nan if value is None else value for key, value in kept.items()}
    return Row(**given)


def write() -> None:
    """RESULTS.md and the pictures, from results.json."""
    found = read()
    aims = [row for each in found.values() for row in rows(each) if row.target]
    parts = [
        "# Results",
        "Written by `make bench` (`python -m bench`); `python -m bench --only NAME` measures one part again. "
        "Each figure stands beside a baseline of the same run: what holds on another machine is the ratio.",
        _machine(),
        "## The figures that the design names",
        table(aims),
        "## All figures",
        *[_section(name, each) for name, each in found.items()],
    ]
    RESULTS.write_text("\n\n".join(parts) + "\n")
    _draw([Curve(**curve) for each in found.values() for curve in each["curves"]])


def load() -> str:
    """The machine's load averages over 1, 5 and 15 minutes."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _section(name: str, found: dict[str, Any]) -> str:
    shown = [f"![{curve['title']}](images/{curve['name']}.png)" for curve in found["curves"]]
    made = (
        f"Commit {found['commit']}, {found['date']}, {found['took_s']} s; load averages before it: {found['load']}. "
        f"`python -m bench --only {name}`"
    )
    return "\n\n".join([f"### {name}", made, table(rows(found)), *([" ".join(shown)] if shown else [])])


def _machine() -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"Machine: {coldstart.machine()}, {memory:.0f} GiB, Linux {platform.release()}; open files: {files:,}. Server, "
        "broker, producer and readers share it, over the loopback. The broker is the embedded one (256 MB heap). "
        "Where nothing else is said: records of 1 KiB (JSON, 24 members), 3 partitions, one worker. The load averages "
        "stand with each part; whatever else ran took its share of the cores."
    )


def _line(row: Row) -> str:
    baseline = "" if math.isnan(row.baseline) else _number(row.baseline)
    ratio = "" if math.isnan(row.ratio) else f"{row.ratio:.2g}"
    cells = [row.what, _number(row.value), row.unit, baseline, ratio, row.target, row.against, row.limit]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    if math.isnan(value):
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    """JSON knows no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _draw(curves: list[Curve]) -> None:
    import matplotlib as mpl  # here: only whoever writes results needs it

    mpl.use("Agg")
    from matplotlib import pyplot

    IMAGES.mkdir(exist_ok=True)
    for curve in curves:
        figure, axes = pyplot.subplots(figsize=(5.2, 3.2), layout="constrained")
        for name, points in curve.lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set(title=curve.title, xlabel=curve.x, ylabel=curve.y, xscale="log")
        values = [y for points in curve.lines.values() for _, y in points if y > 0]
        if values and max(values) > 30 * min(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(IMAGES / f"{curve.name}.png", dpi=110)
        pyplot.close(figure)
