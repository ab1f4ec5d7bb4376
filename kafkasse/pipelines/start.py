"""Start the queries of a pipeline: the one that writes the sinks, and the one that writes the dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import checkpoint as checkpoints
from kafkasse.pipelines import contract, dead_letters, lease, sink_rows, sink_versions, topics
from kafkasse.pipelines.admin import Admin
from kafkasse.pipelines.files import Files
from kafkasse.pipelines.manifest import RecordedState
from kafkasse.pipelines.operators import json_state
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.skipped_records import Skipped
from kafkasse.pipelines.supervisor import DependencyUnavailable

MAX_REASON_CHARACTERS = 300
LETTER_OVERHEAD_BYTES = 65_536  # a dead letter has more headers than its record


@contextmanager
def started(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str, staging: str = ""
) -> Iterator[StreamingQuery]:
    """Run the queries of a pipeline until the block ends. Yields the query that writes the sinks.

    Args:
        spark, pipeline, kafka: see runner.running_query().
        checkpoint: the checkpoint of the pipeline.
        staging: during a rebuild, the end of the names of the topics that are written instead of the sinks. The rebuild
            holds the lease.

    Raises:
        CommandError: the checkpoint does not fit the pipeline, it is damaged, another run uses it, a newer checkpoint has
            written to a sink, or the topic for dead letters cannot be created.
        DependencyUnavailable: Kafka or the file system of the checkpoint does not respond.
    """
    with nullcontext() if staging else lease.exclusive(Files(spark), checkpoint):
        try:
            for each in (checkpoint, dead_letters.checkpoint_of(checkpoint)):
                checkpoints.check_logs(spark, each)
            skipped = checkpoints.skipped(spark, checkpoint)
            records, letters, max_bytes = _records(spark, pipeline, kafka, checkpoint, staging, skipped)
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).splitlines()[0][:MAX_REASON_CHARACTERS]
            raise DependencyUnavailable(
                f"Kafka or the file system of the checkpoint does not respond: {reason}"
            ) from error
        kafka = with_request_size(kafka, max_bytes)
        with dead_letters.running(spark, pipeline, kafka, checkpoint, letters, max_bytes[letters], skipped):
            query = topics.write(records, kafka, pipeline, checkpoint)
            try:
                with nullcontext() if staging else lease.held(spark, checkpoint, query):
                    yield query
            finally:
                query.stop()


def query_of(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], skipped: Skipped = topics.NOTHING
) -> tuple[DataFrame, RecordedState]:
    """Return the rows of the pipeline's query, and the fields in the state of its operators."""
    with json_state.recording(pipeline.mode) as state:
        return sink_rows.sink_rows(pipeline, lambda: topics.read_all(spark, kafka, pipeline, skipped)), state


def _records(
    spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str], checkpoint: str, staging: str, skipped: Skipped
) -> tuple[DataFrame, str, dict[str, int]]:
    """Return the records to write, the topic for dead letters, and the largest record of each topic."""
    rows, state = query_of(spark, pipeline, kafka, skipped)
    manifest, is_new = checkpoints.open_manifest(spark, pipeline, kafka, checkpoint, state)
    if not staging and Files(spark).exists(f"{checkpoint}/{checkpoints.PENDING}"):
        raise CommandError(f"a rebuild of the pipeline {pipeline.name} was interrupted; continue it with --rebuild")
    for each in (checkpoint, dead_letters.checkpoint_of(checkpoint)):
        checkpoints.remove_unfinished(spark, each)
    letters, max_bytes = prepare(spark, pipeline, kafka)
    if not is_new and "version" in rows.columns:
        since_ms = checkpoints.last_commit_ms(spark, checkpoint, manifest)
        found = sink_versions.written_versions(
            spark, kafka, [f"{sink}{staging}" for sink in pipeline.sink_topics], since_ms
        )
        if found is not None:
            sink_versions.check_generation(found, manifest.generation, checkpoint)
            rows = sink_versions.only_newer(rows, found, manifest.generation, staging)
    records = contract.records(rows, pipeline, letters, max_bytes, manifest.generation)
    if staging:
        staged = F.when(F.col("topic") != letters, F.concat("topic", F.lit(staging))).otherwise(F.col("topic"))
        records = records.withColumn("topic", staged)
    return records, letters, max_bytes


def with_request_size(kafka: dict[str, str], max_bytes: Mapping[str, int]) -> dict[str, str]:
    """Return the settings of a producer whose requests can contain the largest record of each topic."""
    return {"max.request.size": str(max(max_bytes.values()) + contract.RECORD_OVERHEAD_BYTES)} | kafka


def prepare(spark: SparkSession, pipeline: Pipeline, kafka: dict[str, str]) -> tuple[str, dict[str, int]]:
    """Check the topics of the pipeline, and create the topic for dead letters if it does not exist.

    Returns:
        The topic for dead letters, and the size of the largest record of each topic that is written.

    Raises:
        CommandError: the user may not read a source, write a sink, or create the topic for dead letters.
    """
    letters = pipeline.dead_letter_topic
    with Admin(spark, kafka) as admin:
        admin.check_access(pipeline.source_topics, pipeline.sink_topics)
        largest = max(admin.max_bytes([*pipeline.source_topics, *pipeline.sink_topics]).values())
        settings = {"max.message.bytes": str(largest + LETTER_OVERHEAD_BYTES)}
        admin.create(letters, "create it, or set dead_letters= of the pipeline to another topic", settings)
        return letters, admin.max_bytes([*pipeline.sink_topics, letters])
