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
INTRODUCTION = """\
# Benchmark results

`make bench` measures all figures on one commit; `python -m bench --only NAME` repeats one measurement. The server, the
broker, the producer and the clients share one machine and its loopback interface. The values depend on the machine, and so
do the ratios between servers, above all where a server nearly uses a whole core. Unless stated otherwise: records of 1 KiB
(JSON, 24 members), 3 partitions, one worker.

- A value is the median of the runs. The order of the servers changes from run to run.
- A percentile is computed from the samples of all runs, and only if at least 1,000 samples are above it. Latency counts
  from the time when a record was due.
- In catch-up, every server reads the same records twice; the second time is measured.

The servers beside kafkasse, of which the first two share one consumer among all clients, encode each record once, and have
no resume, no checks and no limits:

- **Go**: net/http with franz-go, `GOMAXPROCS=1` (`bench/rivals/franz`)
- **Starlette** on uvicorn with uvloop and httptools, with aiokafka (`bench/rivals/starlette_app.py`)
- **confluent-kafka**: Flask on gunicorn's threads, with a consumer for each client (`bench/rivals/confluent_app.py`)
- **KafkaSSE** 0.4.2: Wikimedia's Node.js library, which has a consumer for each client
- **poll loop of kafka-python**: a loop over `KafkaConsumer.poll()` that discards the records
- **a Flask view**: no rival, but the limit of `opening`: a view that only answers, under kafkasse's worker
  (`bench/rivals/flask_app.py`)

The goals were set on a faster machine, on which encoding a record took 1.3 µs (`encoding.plain`). Why kafkasse missed some
of them even there, and what compiled code could save:

- **Opening a stream** (one process, a log in memory). The Flask view takes 0.18 ms of CPU when 500 clients connect at once,
  and 0.39 ms alone, where Starlette takes 0.16 and 0.32 ms. So kafkasse cannot open streams as fast as Starlette. It takes
  0.29 and 0.59 ms, because it makes 1,200 function calls instead of 720, and adds a log line and metrics when the stream
  ends. Compiled code could save at most the difference, a third of each opening in a burst.
- **Catch-up** (one process, a log in memory). Encoding takes 1.3 µs for each record: 0.3 µs to validate the JSON (already
  compiled code), 0.2 µs to check whether the frame can repeat it unchanged, 0.3 µs to format the frame and its ID, the rest
  for the loop in Python. Receiving, checking and decoding take 0.2 µs, and joining and sending 0.15 µs. Compiled code could
  save at most 0.7 µs, a quarter of `catch_up.cpu` there.
- **Few clients.** The Python interpreter takes 75 % of the server's CPU time with 1 client at 200/s, and 67 % with 10 at
  500/s. The kernel takes 13 and 21 %. Compiled code could save most of the interpreter's share and reach the goals.
  But it would have to replace the whole path of a record, with all calls of gevent, and only servers with few clients, which
  use at most 20 % of a core, would gain. So we have not written it.
- **Many clients: CPU.** The kernel takes 67 % with 1,000 clients at 200/s, 65 % with 1,000 at 10/s, and 73 % with 10,000 at
  20/s. The interpreter takes 28, 29 and 24 %, so compiled code could save no more than this.
- **Many clients: latency.** After each write to all clients, the worker pauses for up to 20 ms, so that more records share
  the next write. With 10 ms, 1,000 clients at 200/s have a 99th percentile of 41 instead of 58 ms, but a delivery costs 2.5
  instead of 1.8 µs. (Both runs were within ten minutes; Go had 101 and 108 ms.) With 10,000 clients, a write takes longer
  than the pause, so a shorter pause would help little.
- **Chunks.** Encoding a record takes as long as in a stream. The rest is the requests: to parse and check them, to look up
  the position, and to compute the checksum for `ETag`. Reading the next chunk in advance could not help, because the server
  is busy all the time. With larger chunks, there would be fewer requests, but each slow client would take more memory.
- **Long polls.** nginx checks waiting requests only every 500 ms. With 10,000 clients at 2/s, the programs probably need
  more than the two cores.
- **Fleets behind a CDN.** Their time is that of the clients and the CDN: the second time, when all chunks come from the
  cache, they take between 17 % less and 5 % longer.
- **Pipeline.** During a commit, Spark processes no record, and then updates queue up. On the faster machine (commit
  a82e9062), the median was 12 ms, and the 99th percentile 450 ms.

The clients are not the limit of any load: the rows *CPU of the clients* contain what all their processes use. In
`catch_up.500.event`, the ID in each event contains 500 offsets and is longer than the record, so a record costs three times
as much as in `catch_up`.

The times of *Opening a stream* and *Catch-up* are from the faster machine, those of *Many clients: latency* from this one.
The shares of *Few clients*, *Many clients: CPU* and *Chunks* are from samples (`perf record -e cpu-clock -p PID` during the
same load; for chunks, samples of Python's stack) on a slower machine."""
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
    *(f"kafkasse/{folder}/" for folder in ("commands", "tools/java", "web/console", "web/describe", "web/page")),
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
        "kafkasse/feed/shared_chunks.py",
        "kafkasse/feed/truncation_marks.py",
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
    parts, pictures = [INTRODUCTION, origin, "## Goals", BEFORE_TEXT, _goals(rows_of(stored).values())], {}
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
