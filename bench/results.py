"""bench/results.json, and the page of the documentation that is generated from it.

`python -m bench.results` fails if the results are older than the last change of the code that they measure: results.json
contains hashes of this code. Comments and docstrings do not count, so the check needs no Git, and works in any copy. After
a change of code that only one part of the results measures, `python -m bench.results PART` measures this part again.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.figures import Row, merged, worse
from bench.machine import ROOT, commit, machine
from bench.servers import KAFKASSE

DATA = Path(__file__).with_name("results.json")
MIN_BARS = 2
INTRODUCTION = Path(__file__).with_name("README.md")
BEFORE_TEXT = "*Before*: measured before the work on these goals, on another machine with two cores."
BEFORE = {
    "catch_up.cpu": 2.9, "catch_up.ratio": 2.5, "idle.10000.memory": 6.9, "live.1000x200.p99": 42, "live.10000x20.p99": 298,
    "live.10x500.cores": 22, "live.10x500.p50": 0.95, "live.10x500.p99": 3.1, "live.1x200.cpu": 740,
    "live.new_topics.longest": 1_200, "live.topics.p99": 8.5, "opening.seconds": 0.52, "opening.single.cpu": 1.0,
    "pipeline.p50": 59, "pipeline.p99": 326,
}  # fmt: skip
# Without commands and tools, which only start the measured processes, except the broker. Without pages and
# sessions, which no measurement uses.
MEASURED = (
    "kafkasse/**/*.py",
    "kafkasse/**/*.java",
    "bench/*.py",
    "bench/rivals/*.*s",
    "bench/rivals/*.py",
    "bench/rivals/franz/*go*",
    "bench/requirements.txt",
    "requirements*.txt",
)
NOT_MEASURED = (
    *(f"kafkasse/{folder}/" for folder in ("commands", "tools/java", "web/describe")),
    "kafkasse/web/host_session.py",
    *(f"kafkasse/tools/{module}.py" for module in ("__init__", "files", "progress", "supervised_process")),
    *(f"bench/{module}.py" for module in ("machine", "pipeline_executors", "pipeline_heap", "quoted", "results")),
)
# The parts of the results, by the start of their keys, and the code that only they measure.
PARTS = {
    "archive": ("bench/archive.py", "kafkasse/archive/"),
    "capacity": ("bench/capacity.py",),
    "cdn": (
        "bench/cdn.py",
        "bench/finite_clients.py",
        "kafkasse/feed/chunks.py",
        "kafkasse/feed/continuations.py",
        "kafkasse/feed/core/chunk.py",
        "kafkasse/feed/core/chunk_start.py",
        "kafkasse/feed/shared_chunks.py",
        "kafkasse/feed/core/truncation_marks.py",
        "kafkasse/web/finite_reads.py",
        "kafkasse/web/long_poll.py",
    ),
    "pipeline": ("bench/pipeline_state.py", "kafkasse/pipelines/"),
}
OTHERS = "all others"
HEAD = "| figure | server | value | lowest to highest run | goal | runs | samples | limited by |"
RULE = "| --- | --- | ---: | ---: | --- | ---: | ---: | --- |"


def origin() -> dict[str, Any]:
    """Return what the results depend on. Call this before the measurements, because the files may change meanwhile."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return {
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{machine()}, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}, {files:,} open files",
        "code": code(),
        "load average before": f"{os.getloadavg()[0]:.1f}",
    }


def code(root: Path = ROOT) -> dict[str, str]:
    """Return hashes of the code that the parts of the results measure, without comments and docstrings."""
    hashes = {part: sha256() for part in (OTHERS, *PARTS)}
    for file in sorted(file for pattern in MEASURED for file in root.glob(pattern)):
        name = file.relative_to(root).as_posix()
        if not name.startswith(NOT_MEASURED):
            part = next((part for part, names in PARTS.items() if name.startswith(names)), OTHERS)
            hashes[part].update(f"{name}\n{_without_comments(file)}\n".encode())
    return {part: hashed.hexdigest()[:16] for part, hashed in hashes.items()}


def _without_comments(file: Path) -> str:
    text, skipped = file.read_text(), set()
    lines = text.split("\n")
    if file.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    mark = None if file.suffix == ".py" else ("#", "//")
    left = (line for number, line in enumerate(lines, 1) if number not in skipped)
    return "\n".join(line for line in left if line.strip() and not (mark and line.lstrip().startswith(mark)))


def write(origin: dict[str, Any], rows: list[Row], before: dict[tuple[str, str], Row]) -> None:
    """Store the results, and print what is worse than before."""
    lines = [
        json.dumps({name: _plain(value) for name, value in asdict(row).items()}, ensure_ascii=False) for row in rows
    ]
    head = json.dumps(origin, ensure_ascii=False)[1:-1]
    DATA.write_text(f'{{{head}, "rows": [\n' + ",\n".join(lines) + "\n]}\n")
    losses = [worse(row, before[row.key, row.server]) for row in rows if (row.key, row.server) in before]
    print("\n".join(["Worse than in the last commit by more than the spread:", *(filter(None, losses))]))


def rows_of(stored: dict[str, Any]) -> dict[tuple[str, str], Row]:
    """Return the rows of a results.json by key and server."""
    plain = [{name: math.nan if value is None else value for name, value in row.items()} for row in stored["rows"]]
    return {(row.key, row.server): row for row in (Row(**values) for values in plain)}


def committed() -> dict[tuple[str, str], Row]:
    """Return the rows of the last commit."""
    shown = subprocess.run(
        ["git", "show", "HEAD:./results.json"], cwd=DATA.parent, capture_output=True, text=True, check=False
    )
    stored = json.loads(shown.stdout) if shown.returncode == 0 else {}
    return rows_of(stored) if "rows" in stored else {}


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table, with all servers of a figure below each other."""
    order = {row.key: None for row in rows}
    ordered = sorted(rows, key=lambda row: (list(order).index(row.key), row.server != KAFKASSE, row.server))
    return "\n".join([HEAD, RULE, *map(_line, ordered)])


def _line(row: Row) -> str:
    goal = "" if math.isnan(row.goal) else f"{number(row.goal)}, {'**missed**' if row.misses_goal else 'reached'}"
    spread = "" if row.runs == 1 else f"{number(row.low)} to {number(row.high)}"
    cells = [
        row.what, row.server, f"{number(row.value)} {row.unit}", spread, goal, f"{row.runs}", f"{row.samples:,}",
        row.limit if row.server == KAFKASSE else "",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    """Return a number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _plain(value: Any) -> Any:
    """Round to five digits, and replace NaN by None, because JSON has no NaN."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.5g}")


def page() -> tuple[str, dict[str, str]]:
    """Return the page about all results, and the pictures in it: SVG by path."""
    stored = json.loads(DATA.read_text())
    groups: dict[str, list[Row]] = {}
    for row in rows_of(stored).values():
        groups.setdefault(row.key.rpartition(".")[0], []).append(row)
    origin = "\n".join(f"- {name}: {text}" for name, text in stored.items() if name not in ("rows", "code"))
    parts, pictures = (
        [INTRODUCTION.read_text(), "## This run", origin, "## Goals", BEFORE_TEXT, _goals(rows_of(stored).values())],
        {},
    )
    for key, rows in groups.items():
        parts += [f"## {key}", table(rows)]
        for figure in dict.fromkeys(row.key for row in rows):
            same = [row for row in rows if row.key == figure]
            if len(same) > MIN_BARS:
                pictures[f"images/{figure}.svg"] = _bars(same)
                parts.append(f"![{same[0].what}, {same[0].unit}](images/{figure}.svg)")
    return "\n\n".join(parts) + "\n", pictures


def _goals(rows: Iterable[Row]) -> str:
    lines = ["| figure | server | before | goal | now | limited by |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        if not math.isnan(row.goal):
            before = number(BEFORE[row.key]) if row.key in BEFORE and row.server == KAFKASSE else ""
            missed = ", **missed**" if row.misses_goal else ""
            cells = [
                row.what,
                row.server,
                before,
                number(row.goal),
                f"{number(row.value)} {row.unit}{missed}",
                row.limit,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _bars(rows: list[Row]) -> str:
    """Return a bar chart of one figure of several servers."""
    longest = max(row.value for row in rows) or 1
    lines = [f'<text x="0" y="14" font-weight="bold">{rows[0].what}, {rows[0].unit}</text>']
    for line, row in enumerate(rows, 1):
        y, width = 26 * line, 340 * row.value / longest
        lines += [
            f'<text x="0" y="{y + 14}">{row.server}</text>',
            f'<rect x="180" y="{y}" width="{width:.0f}" height="18" fill="{"#2a7" if line == 1 else "#999"}"/>',
            f'<text x="{190 + width:.0f}" y="{y + 14}">{number(row.value)}</text>',
        ]
    height = 26 * (len(rows) + 1)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 {height}" font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, '<rect width="620" height="100%" fill="#fff"/>', *lines, "</svg>\n"])


def measure(parts: Collection[str]) -> None:
    """Measure parts of the results again, and write them in place of the stored ones."""
    from bench import quoted, servers  # quoted imports this module, as __main__ does
    from bench.__main__ import MEASUREMENTS, ONCE, ROUNDS
    from bench.testbed import Scale, Testbed

    new = origin()
    with Testbed(Scale(), servers.missing(build=True)) as testbed:
        names = [name for name in MEASUREMENTS if name.partition(".")[0] in parts]
        runs = [name for name in names for _ in range(1 if name in ONCE else ROUNDS)]
        measured = merged(MEASUREMENTS[name](testbed) for name in runs)
    stored = json.loads(DATA.read_text())
    before = rows_of(stored)
    kept = [row for row in before.values() if row.key.partition(".")[0] not in parts]
    hashes = new.pop("code")
    for part in parts:
        stored["code"][part] = hashes[part]
        stored[part] = ", ".join(f"{name} {text}" for name, text in new.items())
    del stored["rows"]
    write(stored, [*kept, *measured], before)
    quoted.write()


def main() -> int:
    """Check that the results are of this code. Returns the exit code."""
    stored = json.loads(DATA.read_text())
    changed = [part for part, hashed in code().items() if stored["code"][part] != hashed]
    if not changed:
        return 0
    command = "make bench" if OTHERS in changed else f"python -m bench.results {' '.join(changed)}"
    print(f"bench/results.json is of commit {stored['commit']}. The measured code has changed: run {command}.")
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m bench.results", description="Check the results, or measure parts again."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parts = parser.parse_args().parts
    if not PARTS.keys() >= {*parts}:
        parser.error(f"the parts are {', '.join(PARTS)}")
    if parts:
        measure(parts)
    else:
        sys.exit(main())
