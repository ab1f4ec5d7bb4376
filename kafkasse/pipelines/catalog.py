"""The list of pipelines. To add one, write a query in queries/ and add an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from kafkasse.pipelines.queries.topn import topn


@dataclass(frozen=True)
class Pipeline:
    """A query that reads one topic and writes another.

    Args:
        name: the name on the command line. It is also a directory name below the checkpoint directory.
        source, sink: the default topics to read and to write.
        query: a function from the rows of Spark's Kafka source to rows of `key` and `value` for Spark's Kafka sink.
        summary: what the sink contains, in a few words.
    """

    name: str
    source: str
    sink: str
    query: Callable[[DataFrame], DataFrame]
    summary: str


TOPN = Pipeline("topn", "countries", "topn", topn, "the running Top 3 countries by size, per continent")

PIPELINES = {pipeline.name: pipeline for pipeline in (TOPN,)}
