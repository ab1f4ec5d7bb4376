"""Explain a pipeline without running it: what it reads and writes, Spark's plan, and the modes that accept its query.

Spark itself checks the query: it starts the query on an empty source in memory, in each mode, and stops it at once. No
record is read or written, and Kafka is not used. This module calls classes of Spark that are not public, so it needs a
session of Spark classic.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.kafka import contract, sink_rows, topics
from kafkasse.pipelines.kafka.admin import DEFAULT_MAX_BYTES
from kafkasse.pipelines.pipeline import Mode, Pipeline, Source
from kafkasse.pipelines.spark import failures, private_spark
from kafkasse.pipelines.spark.temporary_directory import temporary_directory
from kafkasse.schemas import shorten

KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
NO_KAFKA = {"bootstrap.servers": "127.0.0.1:1"}  # the sink connects only if there are records
START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
MAX_LINE_CHARACTERS = 120
# The operators of Spark's plans that keep state.
_STATEFUL = (
    "StateStoreSave",
    "SessionWindowStateStoreSave",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "StreamingDeduplicate",
    "StreamingDeduplicateWithinWatermark",
    "StreamingSymmetricHashJoin",
    "FlatMapGroupsWithState",
    "StreamingGlobalLimit",
)


@dataclass(frozen=True)
class Explanation:
    """What `kafkasse pipeline check` reports. A rejection is the reason why a mode rejects the query, or None."""

    plan: str
    stateful: list[str]
    rejections: dict[Mode, str | None]


def explain(spark: SparkSession, pipeline: Pipeline) -> Explanation:
    """Return an explanation of the pipeline.

    Args:
        spark: a classic session with enough slots: one for each source and each stateful stage.

    Raises:
        CommandError: the query fails, or it does not return what its sinks need.
    """
    try:
        plan = private_spark.plan(sink_rows.sink_rows(pipeline, lambda: _empty(spark, pipeline)))
    except AnalysisException as error:
        raise CommandError(
            f"the query of the pipeline {pipeline.name} is not valid: {failures.message(error)}"
        ) from error
    stateful = [name for line in plan.splitlines() for name in _STATEFUL if re.search(rf"\b{name}\b", line)]
    modes: tuple[Mode, ...] = ("realtime", "microbatch")
    return Explanation(plan, stateful, {mode: _rejection(spark, pipeline, mode) for mode in modes})


def text(pipeline: Pipeline, explanation: Explanation) -> Iterator[str]:
    """Yield the lines of a report for the terminal."""
    yield f"pipeline {pipeline.name}, version {pipeline.version}, mode {pipeline.mode}"
    for name, source in pipeline.sources.items():
        yield f"  reads {_named(name, source.topic)}{_how(source)}"
    for name, topic in pipeline.sinks.items():
        yield f"  writes {_named(name, topic)}"
    yield f"  stateful stages: {', '.join(explanation.stateful) or 'none'}"
    for mode, rejection in explanation.rejections.items():
        yield f"  {'real-time mode' if mode == 'realtime' else 'micro-batches'}: {rejection or 'accepted'}"
    for warning in getattr(pipeline.query, "warnings", ()):
        yield f"  warning: {warning}"
    yield ""
    yield from (shorten(line, MAX_LINE_CHARACTERS) for line in explanation.plan.splitlines())


def _named(name: str, topic: str) -> str:
    return topic if name in (topic, "source", "sink") else f"{name} ({topic})"


def _how(source: Source) -> str:
    if source.table:
        return " as a table, when the query starts"
    limit = f", at most {source.max_records_per_s:g} records/s" if source.max_records_per_s else ""
    start = "the given offsets" if isinstance(source.start, Mapping) else source.start
    return f" from {start}{limit}"


def _empty(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Return a stream or a table without rows for each source, with the columns of Spark's Kafka source."""
    table = spark.createDataFrame([], KAFKA_COLUMNS)
    return {
        name: table if source.table else private_spark.empty_stream(table) for name, source in pipeline.sources.items()
    }


def _rejection(spark: SparkSession, pipeline: Pipeline, mode: Mode) -> str | None:
    """Start the query in a mode. Returns why Spark rejects it, or None."""
    if mode == "realtime" and pipeline.output_mode != "update":
        return "rejected: it writes only final results"
    unlimited = {name: replace(source, max_records_per_s=None) for name, source in pipeline.sources.items()}
    source = unlimited if isinstance(pipeline.source, Mapping) else unlimited.popitem()[1]
    with temporary_directory("kafkasse-check-") as directory:
        try:
            rows = sink_rows.sink_rows(pipeline, lambda: _empty(spark, pipeline))
            letters = pipeline.dead_letter_topic
            max_bytes = dict.fromkeys([*pipeline.sink_topics, letters], DEFAULT_MAX_BYTES)
            if (bad := dead_letters.bad_records(pipeline, _empty(spark, pipeline))) is not None:
                dead_letters.letters(bad, letters, max_bytes[letters])
            query = topics.write(
                contract.records(rows, pipeline, letters, max_bytes, generation=0),
                NO_KAFKA,
                replace(pipeline, mode=mode, source=source),
                str(directory),
            )
        except PySparkException as error:
            return f"rejected: {failures.message(error)}"
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while query.isActive and not _has_started(spark, query, mode):
                if time.monotonic() > deadline_s:
                    raise CommandError(f"Spark did not check the query within {START_TIMEOUT_S:.0f} s")
                time.sleep(POLL_INTERVAL_S)
            failure = query.exception()
        finally:
            with suppress(PySparkException):
                query.stop()
    return f"rejected: {failures.message(failure)}" if failure else None


def _has_started(spark: SparkSession, query: Any, mode: Mode) -> bool:
    """Whether Spark has accepted the plan: real-time mode runs tasks without records, micro-batches wait for records."""
    if mode == "realtime":
        return bool(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))
    return not query.status["message"].startswith("Initializing")
