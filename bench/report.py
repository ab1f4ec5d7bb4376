"""Store figures in bench/results.json, and generate bench/RESULTS.md and the charts in bench/images/ from it."""

from __future__ import annotations

import json
import math
import os
import platform
import resource
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.figures import Curve, Figures, Row, worse

FOLDER = Path(__file__).parent
DATA = FOLDER / "results.json"
RESULTS = FOLDER / "RESULTS.md"
IMAGES = FOLDER / "images"
HEAD = "| figure | median | spread | unit | goal | baseline | ratio | spread | compared with | limited by |"
RULE = "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | --- | --- |"
INTRODUCTION = """\
`make bench` (`python -m bench`) generates this page. `python -m bench --only NAME` repeats one measurement. Each figure is
the median of several runs; the spread is the range from the lowest to the highest value. A ratio compares a figure with that
of a baseline that runs in the same round under the same load: the same number of clients, records per second and record
size. Where a baseline cannot serve that load, there is no ratio. The absolute values depend on the machine. The ratios
should hold on other machines too.

The baselines:

- **poll loop**: a Python loop over `KafkaConsumer.poll()` of kafka-python that discards the records. It has no HTTP server,
  so it shows the fastest that kafka-python alone can read.
- **consumer-per-client**: the simplest possible server, a Flask app under gunicorn's gevent worker that creates one
  `KafkaConsumer` for each HTTP client (`bench/consumer_per_client.py`).
- **confluent-kafka**: the same app with confluent-kafka's consumers, which are written in C, under gunicorn's gthread worker
  (`bench/confluent_server.py`).
- **KafkaSSE**: Wikimedia's Node.js library, version 0.4.2. It is measured where Node.js and npm are installed."""


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
    names = Row.__dataclass_fields__.keys()  # files of earlier versions have other fields
    return Row(**{key: math.nan if value is None else value for key, value in stored.items() if key in names})


def regressions(before: dict[str, Any]) -> list[str]:
    """Return a sentence for each stored figure that is worse than in `before`, an earlier return value of read()."""
    found = []
    for name, each in read().items():
        old = before.get(name, {"machine": each["machine"], "rows": []})
        old_rows = {row.key: row for row in rows(old)}
        note = "" if old["machine"] == each["machine"] else " (on another machine)"
        now = [row for row in rows(each) if row.key in old_rows]
        found += [text + note for row in now if (text := worse(row, old_rows[row.key]))]
    return found


def committed() -> dict[str, Any]:
    """Return the measurements of the last commit."""
    shown = subprocess.run(
        ["git", "show", "HEAD:./results.json"], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = json.loads(shown.stdout) if shown.returncode == 0 else {}
    return found


def write() -> None:
    """Generate RESULTS.md and the charts from results.json."""
    found = read()
    with_goal = [row for each in found.values() for row in rows(each) if not math.isnan(row.goal)]
    parts = [
        "# Results",
        INTRODUCTION,
        _conditions(found),
        "## Figures with a goal",
        f"{sum(row.misses_goal for row in with_goal)} of {len(with_goal)} figures miss their goal.",
        table(with_goal),
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
        f"Commit {found['commit']}, {found['date']}, {found['took_s']} s on {found['machine'].split(',')[0]}; "
        f"load averages before: {found['load']}. "
        f"`python -m bench --only {name}`"
    )
    return "\n\n".join([f"### {name}", origin, table(rows(found)), *([" ".join(charts)] if charts else [])])


def _machine() -> str:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{machine.machine()}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, {files:,} open files"


def _conditions(found: dict[str, Any]) -> str:
    machines = " or ".join(dict.fromkeys(each["machine"] for each in found.values()))
    return (
        f"Machine: {machines}. The server, the broker, the producer and the clients share this machine and its loopback "
        "interface. The embedded broker runs with the JVM options of Kafka's start script (G1, 1 GB heap). Unless stated "
        "otherwise: records of 1 KiB (JSON, 24 members), 3 partitions, one worker. Each section shows the load averages "
        "before its start, because other programs may use the same cores."
    )


def _line(row: Row) -> str:
    has_ratio = not math.isnan(row.ratio)
    cells = [
        row.what,
        _number(row.value),
        _range(row.low, row.high),
        row.unit,
        _goal(row),
        _number(row.baseline) if has_ratio else "",
        f"{row.ratio:.2g}" if has_ratio else "",
        _range(row.ratio_low, row.ratio_high) if has_ratio else "",
        row.against,
        row.limit,
    ]
    return f"| {' | '.join(cells)} |"


def _goal(row: Row) -> str:
    if math.isnan(row.goal):
        return ""
    return f"{_number(row.goal)}, {'**missed**' if row.misses_goal else 'reached'}"


def _range(low: float, high: float) -> str:
    return "" if math.isnan(low) or low == high else f"{_number(low)} to {_number(high)}"


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
