"""Run a pipeline's query: from the rows of its sources to the rows that Spark's Kafka sink expects."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines.pipeline import Pipeline

# A result of one record. Its version, an offset, can be compared only with those of the same source partition.
VERSIONED_BY = "_partition"
OPTIONAL_COLUMNS = ("version", "position", "headers", VERSIONED_BY)


def sink_rows(pipeline: Pipeline, read: Callable[[], Mapping[str, DataFrame]]) -> DataFrame:
    """Return the rows of all sinks: `topic`, `key`, `value`, and the columns of OPTIONAL_COLUMNS that the query returns.

    One query writes all sinks, because real-time mode allows only one sink for each query: the column `topic` selects the
    topic of each row.

    Args:
        read: returns new rows of each source by its name. It is called once for each sink, because real-time mode rejects a
            query that reads the same DataFrame twice.

    Raises:
        CommandError: the query does not return what its sinks need.
    """
    sinks = [
        _records(pipeline, query_results(pipeline, read())[name]).withColumn("topic", F.lit(topic))
        for name, topic in pipeline.sinks.items()
    ]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), sinks)


def query_results(pipeline: Pipeline, sources: Mapping[str, DataFrame]) -> Mapping[str, object]:
    """Call the query. Returns what it returns for each sink, by the sink's name.

    Raises:
        CommandError: the query does not return one result for each sink.
    """
    returned: Any = (
        pipeline.query(**sources) if isinstance(pipeline.source, Mapping) else pipeline.query(*sources.values())
    )
    results = returned if isinstance(returned, Mapping) else dict.fromkeys(list(pipeline.sinks)[:1], returned)
    if set(results) != set(pipeline.sinks):
        raise CommandError(
            f"the query of the pipeline {pipeline.name} must return a dict with one DataFrame for each of its sinks: "
            f"{', '.join(pipeline.sinks)}"
        )
    return results


def _records(pipeline: Pipeline, result: object) -> DataFrame:
    if not isinstance(result, DataFrame):
        raise CommandError(f"the query of the pipeline {pipeline.name} must return a DataFrame, not {result!r}")
    frame = result
    if pipeline.key:
        frame = _with_json(frame, pipeline)
    missing = [name for name in ("key", "value") if name not in frame.columns]
    if missing:
        raise CommandError(
            f"the query of the pipeline {pipeline.name} returns the columns {', '.join(frame.columns)}, but not "
            f"{' and '.join(missing)}; select them, or set key= to the column that identifies a row"
        )
    return frame.select("key", "value", *(name for name in OPTIONAL_COLUMNS if name in frame.columns))


def _with_json(frame: DataFrame, pipeline: Pipeline) -> DataFrame:
    key = pipeline.key or ""
    if key not in frame.columns:
        raise CommandError(
            f"the query of the pipeline {pipeline.name} returns no column {key}, which is its key; it returns "
            f"{', '.join(frame.columns)}"
        )
    fields = [name for name in frame.columns if name not in OPTIONAL_COLUMNS]
    others = [F.col(f"`{name}`") for name in fields if name != key]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)))
    if others:
        value = F.when(reduce(operator.or_, (column.isNotNull() for column in others)), value)
    optional = (name for name in OPTIONAL_COLUMNS if name in frame.columns)
    return frame.select(F.col(f"`{key}`").cast("string").alias("key"), value.alias("value"), *optional)
