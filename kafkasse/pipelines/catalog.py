"""Which pipelines there are. A new one is a query in queries/ and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from kafkasse.pipelines.queries.topn import topn


@dataclass(frozen=True)
class Pipeline:
    """A query between two topics.

    Args:
        name: as people type it, and a folder's name.
        source, sink: the topics it usually reads and writes.
        query: from rows of Spark's Kafka source to rows of `key` and `value` for its Kafka sink.
        summary: what the sink holds, in half a line.
    """

    name: str
    source: str
    sink: str
    query: Callable[[DataFrame], DataFrame]
    summary: str


TOPN = Pipeline("topn", "countries", "topn", topn, "the running Top 3 countries by size, per continent")

PIPELINES = {pipeline.name: pipeline for pipeline in (TOPN,)}
