"""The figures of the benchmark in README.md, ARCHITECTURE.md and docs/: find them, compare them, and write new ones.

A comment after a figure names its row in results.json: `1.1 µs<!-- live.1000x200.cpu -->`. `@Go` after the name means the
row of Go, and `a / b` a ratio of two rows. A figure has two digits, or is `?` if its row is not in results.json, which is a
problem: the name may be misspelled. A figure that is not part of the benchmark has the comment `by hand`; a number beside it
that is not a figure, `a limit`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from bench import capacity
from bench.figures import Row
from bench.machine import ROOT
from bench.results import DATA, rows_of
from bench.servers import KAFKASSE

MARKED = re.compile(r"(?P<figure>\d[\d.,]*|\?)(?P<unit>[^<>\d\n?|]{0,40})<!-- (?P<name>[^>]+?) -->")
CAPACITY = ROOT / "docs/capacity.md"
CHECKS = ROOT / "bench/README.md"  # has the runs that check the formula of CAPACITY
_TABLES = re.compile(r"(<!-- tables -->\n\n).*?(\n\n<!-- /tables -->)", re.S)
NO_ROW = ("by hand", "a limit")
UNKNOWN = "?"
# What only a measurement can say. Other numbers with units are settings and limits.
MEASURED = re.compile(
    r"\d[\d.,]* ?(µs|% of a core|deliveries/s|ms of CPU|KiB (for|per|to) (each|a|every)?( idle)? ?client"
    r"|times (as|the|faster|slower|more|less))"
)
IN_MARKED_BLOCK = re.compile(r"(?<!at )\b\d[\d.,]* ?(ms|records/s|[KM]iB|MB|%)")  # "at 200 records/s" is a load
CODE = re.compile(r"^```.*?^```[^\n]*$|`[^`\n]+`", re.M | re.S)
MICROSECONDS = {"µs": 1.0, "ms": 1e3, "s": 1e6}


def pages() -> list[Path]:
    """Return the files that may quote figures."""
    names = ("README.md", "ARCHITECTURE.md", "DECISIONS.md", "docs/*.md", "kafkasse_client/README.md")
    return [file for name in names for file in sorted(ROOT.glob(name))]


def problems(text: str, rows: dict[tuple[str, str], Row]) -> Iterator[str]:
    """Yield a sentence for each figure that differs from its row, and for each measured figure without a comment."""
    text = _TABLES.sub("", CODE.sub("", text))
    for match in MARKED.finditer(text):
        if match["name"] in NO_ROW:
            continue
        if (expected := figure(match["name"], match["unit"], rows)) == UNKNOWN:
            yield f"{match[0]}: results.json has no such row"
        elif expected != match["figure"]:
            yield f"{match[0]}: the figure in results.json is {expected}"
    for block in text.split("\n\n"):
        marked = {match.start() for match in MARKED.finditer(block)}
        found = [*MEASURED.finditer(block), *(IN_MARKED_BLOCK.finditer(block) if marked else ())]
        yield from (
            f"{match[0]}: no comment names its row; see bench/quoted.py"
            for match in found
            if match.start() not in marked
        )


def rewritten(text: str, rows: dict[tuple[str, str], Row]) -> str:
    """Return the text with the figures of the rows."""

    def new(match: re.Match[str]) -> str:
        if match["name"] in NO_ROW:
            return match[0]
        return f"{figure(match['name'], match['unit'], rows)}{match['unit']}<!-- {match['name']} -->"

    return MARKED.sub(new, text)


def figure(name: str, unit: str, rows: dict[tuple[str, str], Row]) -> str:
    """Return the text of a figure: two digits in the unit of the text, or `?` if a row is missing."""
    try:
        values = [_value(part.strip(), unit.strip(), rows) for part in name.split(" / ")]
    except KeyError:
        return UNKNOWN
    value = values[0] / values[1] if len(values) > 1 else values[0]
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 else f"{rounded:.2g}"


def _value(name: str, unit: str, rows: dict[tuple[str, str], Row]) -> float:
    key, _, server = name.partition("@")
    row = rows[key, server or KAFKASSE]
    wanted = next(iter(unit.split()), "")
    if row.unit in MICROSECONDS and wanted in MICROSECONDS:
        return row.value * MICROSECONDS[row.unit] / MICROSECONDS[wanted]
    return row.value


def write() -> None:
    """Write the figures of results.json into the docs."""
    rows = rows_of(json.loads(DATA.read_text()))
    for page in pages():
        before = page.read_text()
        if (text := rewritten(before, rows)) != before:
            page.write_text(text)
            print(f"{page.relative_to(ROOT)}: new figures")
    for page in (CAPACITY, CHECKS):
        page.write_text(with_tables(page, rows))


def with_tables(page: Path, rows: dict[tuple[str, str], Row]) -> str:
    """Return the text of CAPACITY or CHECKS with new tables."""
    tables = capacity.tables(rows).split("\n\n")  # costs, checks, fleets
    new = "\n\n".join(tables[1:2] if page == CHECKS else tables[::2])
    return _TABLES.sub(lambda match: f"{match[1]}{new}{match[2]}", page.read_text())
