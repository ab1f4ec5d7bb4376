"""Print a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows with aligned columns. The first row may be a heading."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
