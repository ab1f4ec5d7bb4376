"""Start the queries of a pipeline: the one that writes the sinks, and the one that writes the dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines.checkpoints import checkpoint as checkpoints
from kafkasse.pipelines.checkpoints import lease, sink_versions
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.kafka import contract, sink_rows, topics
from kafkasse.pipelines.kafka.skipped_records import Skipped
from kafkasse.pipelines.manifest import RecordedState
from kafkasse.pipelines.operators import json_state
from kafkasse.pipelines.pipeline import Mode
from kafkasse.pipelines.spark import private_spark
from kafkasse.pipelines.supervisor import DependencyUnavailable, StopRequests

MAX_REASON_CHARACTERS = 300
LETTER_OVERHEAD_BYTES = 65_536  # a dead letter has more headers than its record


@contextmanager
def started(
    run: Run, checkpoint: str, stop: StopRequests, staging: str = "", mode: Mode | None = None
) -> Iterator[StreamingQuery]:
    """Run the queries of a pipeline until the block ends. Yields the query that writes the sinks.

    Args:
        stop: see dead_letters.running().
        staging: during a rebuild, the end of the names of the topics that are written instead of the sinks. The rebuild
            holds the lease.
        mode: how the query that writes the sinks reads now, if not in the mode of the pipeline.

    Raises:
        CommandError: the checkpoint does not fit the pipeline, it is damaged, another run uses it, a newer checkpoint has
            written to a sink, or a topic cannot be used.
        DependencyUnavailable: Kafka or the file system of the checkpoint does not respond.
    """
    with nullcontext() if staging else lease.exclusive(run.files, checkpoint):
        try:
            for path in (checkpoint, checkpoints.of_dead_letters(checkpoint)):
                checkpoints.check_logs(run.files, path)
            skipped = checkpoints.skipped(run.files, checkpoint)
            records, letters, max_bytes = _records(run, checkpoint, staging, skipped)
        except Py4JJavaError as error:
            reason = str(error.java_exception.getMessage()).splitlines()[0][:MAX_REASON_CHARACTERS]
            raise DependencyUnavailable(
                f"Kafka or the file system of the checkpoint does not respond: {reason}"
            ) from error
        run = replace(run, kafka=with_request_size(run.kafka, max_bytes))
        with dead_letters.running(run, checkpoint, letters, max_bytes[letters], skipped, stop):
            query = topics.write(records, run.kafka, run.pipeline, checkpoint, mode)
            try:
                with nullcontext() if staging else lease.held(run.files, checkpoint, query):
                    yield query
            finally:
                query.stop()


def query_of(run: Run, skipped: Skipped = topics.NOTHING) -> tuple[DataFrame, RecordedState]:
    """Return the rows of the pipeline's query, and the fields in the state of its operators."""
    pipeline = run.pipeline
    with json_state.recording(pipeline.mode) as state:
        return sink_rows.sink_rows(pipeline, lambda: topics.read_all(run.spark, run.kafka, pipeline, skipped)), state


def drops_late_rows(run: Run) -> bool:
    """Whether the query has a watermark, and so drops later rows."""
    rows, _ = query_of(run)
    return "EventTimeWatermark" in private_spark.plan(rows)


def _records(run: Run, checkpoint: str, staging: str, skipped: Skipped) -> tuple[DataFrame, str, dict[str, int]]:
    """Return the records to write, the topic for dead letters, and the largest record of each topic."""
    pipeline = run.pipeline
    starts = [(source.topic, source.start) for source in pipeline.sources.values() if isinstance(source.start, Mapping)]
    if starts and not checkpoints.start_offsets(run.files, checkpoint):
        _check_starts(run, starts)
    rows, state = query_of(run, skipped)
    manifest, is_new = checkpoints.open_manifest(run.spark, pipeline, run.kafka, checkpoint, state)
    if not staging and run.files.exists(f"{checkpoint}/{checkpoints.PENDING}"):
        raise CommandError(f"a rebuild of the pipeline {pipeline.name} was interrupted; continue it with --rebuild")
    for path in (checkpoint, checkpoints.of_dead_letters(checkpoint)):
        checkpoints.remove_unfinished(run.files, path)
    letters, max_bytes = prepare(run)
    if not is_new and "version" in rows.columns:
        since_ms = checkpoints.last_commit_ms(run.files, checkpoint, manifest)
        sinks = [f"{sink}{staging}" for sink in pipeline.sink_topics]
        written = sink_versions.written_versions(run.spark, run.kafka, sinks, since_ms)
        if written is not None:
            sink_versions.check_generation(written, manifest.generation, checkpoint)
            rows = sink_versions.only_newer(rows, written, manifest.generation, staging)
    records = contract.records(rows, pipeline, letters, max_bytes, manifest.generation)
    if staging:
        staged = F.when(F.col("topic") != letters, F.concat("topic", F.lit(staging))).otherwise(F.col("topic"))
        records = records.withColumn("topic", staged)
    return records, letters, max_bytes


def _check_starts(run: Run, starts: Iterable[tuple[str, Mapping[int, int]]]) -> None:
    """Check that Kafka has the offsets at which the sources start. Spark would only say that data may have been lost.

    Args:
        starts: the topic of each source that starts at offsets, and the offset of each partition.
    """
    with run.admin() as admin:
        for topic, start in starts:
            offsets = admin.offsets(topic)
            if offsets.keys() != start.keys():
                raise CommandError(
                    "`start` of a source must have an offset for each partition of its topic, and for no others: "
                    f"the number of partitions of {topic} is {len(offsets)}"
                )
            for partition, (first, end) in offsets.items():
                if not first <= start[partition] <= end:
                    raise CommandError(
                        f"`start` of a source: partition {partition} of {topic} can start at {first} to {end}, but not at "
                        f"{start[partition]}"
                    )


def with_request_size(kafka: dict[str, str], max_bytes: Mapping[str, int]) -> dict[str, str]:
    """Return the settings of a producer whose requests can contain the largest record of each topic."""
    return {"max.request.size": str(max(max_bytes.values()) + contract.RECORD_OVERHEAD_BYTES)} | kafka


def prepare(run: Run) -> tuple[str, dict[str, int]]:
    """Check the topics of the pipeline, and create the topic for dead letters if it does not exist.

    Returns:
        The topic for dead letters, and the size of the largest record of each topic that is written.

    Raises:
        CommandError: the user may not read a source, write a sink, or create the topic for dead letters.
    """
    sources, sinks, letters = run.pipeline.source_topics, run.pipeline.sink_topics, run.pipeline.dead_letter_topic
    with run.admin() as admin:
        admin.check_access(sources, sinks)
        settings = {"max.message.bytes": str(max(admin.max_bytes([*sources, *sinks]).values()) + LETTER_OVERHEAD_BYTES)}
        admin.create(letters, "create it, or set dead_letters= of the pipeline to another topic", settings)
        return letters, admin.max_bytes([*sinks, letters])
