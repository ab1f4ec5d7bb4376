"""Report a soak test: lines for the terminal, and the generated section of bench/soak/README.md."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.soak.growth import FIGURES, GrowthCheck
from bench.soak.sampler import Sample

PAGE = Path(__file__).with_name("README.md")
BARS = "▁▂▃▄▅▆▇█"
MAX_BARS = 60
MAX_LINE_CHARS = 125
_SECTION = re.compile(r"(<!-- soak -->\n).*?(<!-- /soak -->)", re.DOTALL)


def line(sample: Sample, counts: Counter[str]) -> str:
    """Return a line about the current state."""
    return (
        f"{sample.at_s:6.0f} s: {sample.memory_mib:6.1f} MiB, {sample.descriptors} descriptors, {sample.streams} streams, "
        f"{sample.greenlets} greenlets, {sample.objects:,} objects; {counts['connections']:,} connections, "
        f"{counts['records']:,} records, {counts['errors']} errors"
    )


def bars(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a bar chart for the terminal: each resource over time, from 0 to its maximum."""
    step = max(1, -(-len(samples) // MAX_BARS))
    for figure in FIGURES:
        values = [getattr(each, figure.name) for each in samples[::step]]
        most = max(*values, 1)
        drawn = "".join(BARS[int(each / most * (len(BARS) - 1))] for each in values)
        yield f"{figure.what:>20} {drawn} {values[-1]:,.0f}"


def table(checks: Sequence[GrowthCheck]) -> str:
    """Return the checks as a Markdown table."""
    rows = [
        "| resource of the worker | median, second quarter | median, last quarter | maximum | limit for the last median |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for each in checks:
        allowed = f"{each.allowed:,.0f}" if each.checked else "run too short"
        rows.append(f"| {each.figure.what} | {each.second:,.0f} | {each.last:,.0f} | {each.most:,.0f} | {allowed} |")
    return "\n".join(rows)


def keep(checks: Sequence[GrowthCheck], summary: str) -> None:
    """Write the section of the page."""
    section = "\n\n".join([textwrap.fill(summary, MAX_LINE_CHARS), table(checks)]) + "\n"
    PAGE.write_text(_SECTION.sub(lambda found: found[1] + section + found[2], PAGE.read_text()))
