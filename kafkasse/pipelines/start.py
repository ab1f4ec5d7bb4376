"""Start the queries of a pipeline: the one that writes the sinks, and the one that writes the dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.pipelines import checkpoint as checkpoints
from kafkasse.pipelines import contract, dead_letters, result, topics, written
from kafkasse.pipelines.manifest import Manifest
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.sink_topics import SinkTopics, dead_letters_of


@contextmanager
def started(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str
) -> Iterator[StreamingQuery]:
    """Run the queries of a pipeline until the block ends. Yields the query that writes the sinks.

    Args:
        spark, pipeline, kafka: see runner.running_query().
        checkpoint: the checkpoint of the pipeline.

    Raises:
        CommandError: the pipeline cannot continue with the checkpoint, or the topic for dead letters cannot be created.
    """
    manifest, is_new = checkpoints.open_manifest(spark, pipeline, kafka, checkpoint)
    letters, max_bytes = prepare(spark, pipeline, kafka)
    kafka = {"max.request.size": str(max(max_bytes.values()) + contract.RECORD_OVERHEAD_BYTES)} | kafka
    rows = result.rows(pipeline, lambda: topics.read_all(spark, kafka, pipeline))
    if not is_new and "version" in rows.columns:
        rows = _only_newer(spark, rows, pipeline, kafka, checkpoint, manifest)
    records = contract.records(rows, pipeline, letters, max_bytes, manifest.generation)
    with dead_letters.running(spark, pipeline, kafka, checkpoint, letters, max_bytes[letters]):
        query = topics.write(records, kafka, pipeline, checkpoint)
        try:
            yield query
        finally:
            query.stop()


def prepare(spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str]) -> tuple[str, dict[str, int]]:
    """Create the topic for dead letters if it does not exist. Returns its name, and the largest record of each topic."""
    of_kafka = SinkTopics(spark, kafka)
    letters = dead_letters_of(pipeline)
    sources = [source.topic for source in pipeline.sources.values()]
    sinks = [sink.topic for sink in pipeline.sinks.values()]
    of_kafka.create_dead_letters(letters, max(of_kafka.max_bytes([*sources, *sinks]).values()))
    return letters, of_kafka.max_bytes([*sinks, letters])


def _only_newer(
    spark: SparkSession,
    rows: DataFrame,
    pipeline: Pipeline,
    kafka: dict[str, str],
    checkpoint: str,
    manifest: Manifest,
) -> DataFrame:
    """Drop rows that are older than those that an interrupted run has written."""
    since_ms = checkpoints.last_commit_ms(spark, checkpoint, manifest)
    found = written.since(spark, kafka, [sink.topic for sink in pipeline.sinks.values()], since_ms)
    return rows if found is None else written.only_newer(rows, found, manifest.generation)
