"""Store figures in bench/results.json, and generate bench/RESULTS.md and the charts in bench/images/ from it."""

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

from bench import machine
from bench.figures import Curve, Figures, Row

FOLDER = Path(__file__).parent
DATA = FOLDER / "results.json"
RESULTS = FOLDER / "RESULTS.md"
IMAGES = FOLDER / "images"
HEAD = "| figure | value | unit | baseline value | ratio | target | baseline | limited by |"
RULE = "| --- | ---: | --- | ---: | ---: | --- | --- | --- |"
INTRODUCTION = """\
`make bench` (`python -m bench`) generates this page. `python -m bench --only NAME` repeats one measurement. Each figure is
measured together with its baseline in the same run. The absolute values depend on the machine; the ratios
(figure / baseline) should hold on other machines too.

The baselines:

- **poll loop**: a Python loop over `KafkaConsumer.poll()` of kafka-python that discards the records. It has no HTTP server,
  so it shows the fastest that kafka-python alone can read.
- **consumer-per-client**: the simplest possible server, a Flask app under gunicorn's gevent worker that creates one
  `KafkaConsumer` for each HTTP client (`bench/consumer_per_client.py`).
- **KafkaSSE**: Wikimedia's Node.js library, version 0.4.2. It is measured only with `--kafka-sse DIR`."""


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table."""
    return "\n".join([HEAD, RULE, *map(_line, rows)])


def keep(name: str, figures: Figures, took_s: float, load_before: str) -> None:
    """Store one measurement in results.json, replacing the previous one of this name."""
    found = read()
    found[name] = {
        "commit": machine.commit(),
        "machine": _machine(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": load_before,
        "took_s": round(took_s),
        "rows": [{key: _plain(value) for key, value in asdict(row).items()} for row in figures.rows],
        "curves": [asdict(curve) for curve in figures.curves],
    }
    DATA.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def read() -> dict[str, Any]:
    """Return all stored measurements by name."""
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def rows(measurement: dict[str, Any]) -> list[Row]:
    """Return the rows of a measurement that read() returned."""
    return [_row(stored) for stored in measurement["rows"]]


def _row(stored: dict[str, Any]) -> Row:
    values: dict[str, Any] = {key: math.nan if value is None else value for key, value in stored.items()}
    return Row(**values)


def write() -> None:
    """Generate RESULTS.md and the charts from results.json."""
    found = read()
    with_target = [row for each in found.values() for row in rows(each) if row.target]
    parts = [
        "# Results",
        INTRODUCTION,
        _conditions(found),
        "## Figures with a target",
        table(with_target),
        "## All figures",
        *[_section(name, each) for name, each in found.items()],
    ]
    RESULTS.write_text("\n\n".join(parts) + "\n")
    _draw([Curve(**curve) for each in found.values() for curve in each["curves"]])


def load() -> str:
    """Return the load averages of the machine over 1, 5 and 15 minutes."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _section(name: str, found: dict[str, Any]) -> str:
    charts = [f"![{curve['title']}](images/{curve['name']}.png)" for curve in found["curves"]]
    origin = (
        f"Commit {found['commit']}, {found['date']}, {found['took_s']} s; load averages before: {found['load']}. "
        f"`python -m bench --only {name}`"
    )
    return "\n\n".join([f"### {name}", origin, table(rows(found)), *([" ".join(charts)] if charts else [])])


def _machine() -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{machine.machine()}, {memory:.0f} GiB, Linux {platform.release()}, {files:,} open files"


def _conditions(found: dict[str, Any]) -> str:
    machines = " or ".join(dict.fromkeys(each["machine"] for each in found.values()))
    return (
        f"Machine: {machines}. The server, the broker, the producer and the clients share this machine and its loopback "
        "interface. The broker is the embedded one (256 MB heap). Unless stated otherwise: records of 1 KiB (JSON, 24 "
        "members), 3 partitions, one worker. Each section shows the load averages before its start; other load took its "
        "share of the cores."
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
    """Replace NaN by None, because JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _draw(curves: list[Curve]) -> None:
    import matplotlib as mpl  # imported here because only report.write() needs it

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
