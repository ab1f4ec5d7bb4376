"""The tables of docs/metrics.md, generated from the metrics in the code: `python -m docs.site.metrics` updates the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Counter

from kafkasse.pipelines import metrics as pipelines
from kafkasse.process.telemetry.metrics import METRICS, PREFIX

PAGE = Path(__file__).parents[1] / "metrics.md"
HEAD = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")


def updated(text: str) -> str:
    """Replace the two tables of the page: first the metrics of a server, then those of a pipeline."""
    tables = iter([HEAD + "".join(_server()), HEAD + "".join(_pipeline())])
    return TABLE.sub(lambda _: next(tables), text)


def _server() -> Iterator[str]:
    for name, metric in METRICS.items():
        suffix = "_total" if metric.type is Counter else ""
        yield _row(f"{PREFIX}{name}{suffix}", metric.type.__name__.lower(), metric.labels, metric.description)


def _pipeline() -> Iterator[str]:
    yield _row(pipelines.STATE, "gauge", pipelines.STATE_LABELS, pipelines.STATE_DESCRIPTION)
    for name, metric in pipelines.METRICS.items():
        type_, suffix = ("counter", "_total") if metric.is_counter else ("gauge", "")
        yield _row(f"{pipelines.PREFIX}{name}{suffix}", type_, pipelines.LABELS, metric.description)


def _row(name: str, type_: str, labels: tuple[str, ...], description: str) -> str:
    meaning = description[0].lower() + description[1:].removesuffix(".")
    return f"| `{name}` | {type_} | {', '.join(f'`{each}`' for each in labels)} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
