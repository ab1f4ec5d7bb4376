"""Report a soak test: lines for the terminal, a chart, and the generated section of bench/soak/README.md."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.soak.growth import FIGURES, GrowthCheck
from bench.soak.sampler import Sample

PAGE = Path(__file__).with_name("README.md")
CHART = Path(__file__).parents[1] / "images" / "soak.png"
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


def keep(samples: Sequence[Sample], checks: Sequence[GrowthCheck], summary: str) -> None:
    """Draw the chart, and write the section of the page."""
    _draw(samples)
    chart = f"![Resources of the worker](../bench/images/{CHART.name})"
    section = "\n\n".join([textwrap.fill(summary, MAX_LINE_CHARS), chart, table(checks)]) + "\n"
    PAGE.write_text(_SECTION.sub(lambda found: found[1] + section + found[2], PAGE.read_text()))


def _draw(samples: Sequence[Sample]) -> None:
    import matplotlib as mpl  # imported here because only keep() needs it

    mpl.use("Agg")
    from matplotlib import pyplot

    minutes = [each.at_s / 60 for each in samples]
    figure, panes = pyplot.subplots(len(FIGURES), 1, sharex=True, figsize=(8, 9), layout="constrained")
    for resource, axes in zip(FIGURES, panes, strict=True):
        values = [getattr(each, resource.name) for each in samples]
        axes.plot(minutes, values, linewidth=1)
        axes.set(ylim=(0, max(*values, 1) * 1.2))
        axes.set_title(resource.what, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
    panes[-1].set_xlabel("minutes")
    figure.savefig(CHART, dpi=110)
    pyplot.close(figure)
