"""What a soak found, as lines, as a picture and as the section of docs/endurance.md that is its own."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.soak.verdict import FIGURES, Judged
from bench.soak.watch import Sample

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "endurance.md"
PICTURE = ROOT / "bench" / "images" / "soak.png"
BARS = "▁▂▃▄▅▆▇█"
BARS_MAX = 60
LINE_CHARS_MAX = 125
_SECTION = re.compile(r"(<!-- soak -->\n).*?(<!-- /soak -->)", re.DOTALL)


def line(sample: Sample, counts: Counter[str]) -> str:
    """How it goes."""
    return (
        f"{sample.at_s:6.0f} s: {sample.memory_mib:6.1f} MiB, {sample.descriptors} descriptors, {sample.streams} streams, "
        f"{sample.greenlets} greenlets, {sample.objects:,} objects; {counts['connections']:,} connections, "
        f"{counts['records']:,} records, {counts['complaints']} complaints"
    )


def bars(samples: Sequence[Sample]) -> Iterator[str]:
    """A picture for the terminal: each figure over time, from 0 to its most."""
    step = max(1, -(-len(samples) // BARS_MAX))
    for figure in FIGURES:
        values = [getattr(each, figure.name) for each in samples[::step]]
        most = max(*values, 1)
        drawn = "".join(BARS[int(each / most * (len(BARS) - 1))] for each in values)
        yield f"{figure.what:>20} {drawn} {values[-1]:,.0f}"


def table(judged: Sequence[Judged]) -> str:
    """The figures as a table in Markdown."""
    rows = [
        "| of the worker | second quarter, median | last quarter, median | most | which the last may be |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for each in judged:
        allowed = f"{each.allowed:,.0f}" if each.judged else "too short to say"
        rows.append(f"| {each.figure.what} | {each.second:,.0f} | {each.last:,.0f} | {each.most:,.0f} | {allowed} |")
    return "\n".join(rows)


def keep(samples: Sequence[Sample], judged: Sequence[Judged], told: str) -> None:
    """Draw the picture, and write the section of the page."""
    _draw(samples)
    picture = f"![What the worker held](../bench/images/{PICTURE.name})"
    section = "\n\n".join([textwrap.fill(told, LINE_CHARS_MAX), picture, table(judged)]) + "\n"
    PAGE.write_text(_SECTION.sub(lambda found: found[1] + section + found[2], PAGE.read_text()))


def _draw(samples: Sequence[Sample]) -> None:
    import matplotlib as mpl  # here: only whoever keeps results needs it

    mpl.use("Agg")
    from matplotlib import pyplot

    minutes = [each.at_s / 60 for each in samples]
    figure, panes = pyplot.subplots(len(FIGURES), 1, sharex=True, figsize=(8, 9), layout="constrained")
    for of, axes in zip(FIGURES, panes, strict=True):
        values = [getattr(each, of.name) for each in samples]
        axes.plot(minutes, values, linewidth=1)
        axes.set(ylim=(0, max(*values, 1) * 1.2))
        axes.set_title(of.what, fontsize=9, loc="left")
        axes.grid(alpha=0.3)
    panes[-1].set_xlabel("minutes")
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)
