"""The page of all metrics, from the metrics in the code. `/-/metrics` has the same texts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Counter

from kafkasse.pipelines.observe import metrics as pipelines
from kafkasse.process.telemetry.metrics import METRICS, PREFIX

HEAD = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
PAGE = """\
# Metrics

The metrics at `/-/metrics`. [Operate](operations.md#metrics) describes how to scrape them, and what their labels mean.

{server}
## Pipelines

`kafkasse pipeline run --metrics-bind HOST:PORT` serves these metrics; see [Operate pipelines](operate-pipelines.md#observe).

{pipeline}"""


def page() -> str:
    """Return the page with its two tables."""
    return PAGE.format(server=HEAD + "".join(_server()), pipeline=HEAD + "".join(_pipeline()))


def names() -> set[str]:
    """Return the names of all metrics."""
    return {row.split("`")[1] for row in (*_server(), *_pipeline())}


def _server() -> Iterator[str]:
    for name, metric in METRICS.items():
        suffix = "_total" if metric.type is Counter else ""
        yield _row(f"{PREFIX}{name}{suffix}", metric.type.__name__.lower(), metric.labels, metric.description)


def _pipeline() -> Iterator[str]:
    yield _row(pipelines.STATE, "gauge", pipelines.STATE_LABELS, pipelines.STATE_DESCRIPTION)
    for name, description in pipelines.METRICS.items():
        type_ = "counter" if name.endswith("_total") else "gauge"
        yield _row(pipelines.PREFIX + name, type_, pipelines.LABELS, description)


def _row(name: str, type_: str, labels: tuple[str, ...], description: str) -> str:
    meaning = description[0].lower() + description[1:].removesuffix(".")
    return f"| `{name}` | {type_} | {', '.join(f'`{each}`' for each in labels)} | {meaning} |\n"
