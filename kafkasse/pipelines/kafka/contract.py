"""The contract of the records that a pipeline writes: their headers, and the checks before they are written to Kafka.

A record that Kafka would reject must not stop the pipeline: it becomes a dead letter, and the sink keeps the previous record
of the key. This module does not connect to Kafka; the caller passes in the limits of the topics. SinkRecord.java and
DeadLetter.java create the records.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.spark import private_spark

PIPELINE, VERSION, SOURCE = "kafkasse-pipeline", "kafkasse-version", "kafkasse-source"  # the headers of each record
HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
# The headers with which a dead letter ends, in this order. A header without a value does not apply.
DEAD_LETTER_HEADERS = tuple(
    f"kafkasse-dead-letter-{name}" for name in ("reason", "topic", "partition", "offset", "timestamp", "omitted")
)
OBSERVED = "rejected_results"  # the observation that counts results that became dead letters: `records`, and `example`
# Added to each version for each generation, so that all records of a new checkpoint are newer than the earlier ones.
GENERATION = 2**48
RECORD_OVERHEAD_BYTES = 128  # the size of a record and of its batch without their fields
# What the classes in Java return: the columns of Spark's Kafka sink, and why the record is a dead letter.
RECORD = (
    StructType()
    .add("topic", StringType())
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("headers", HEADERS)
    .add("problem", StringType())
)


def records(
    rows: DataFrame, pipeline: Pipeline, dead_letters: str, max_bytes: Mapping[str, int], generation: int
) -> DataFrame:
    """Return the rows for Spark's Kafka sink: `topic`, `key`, `value` and `headers`.

    Args:
        rows: the rows of sink_rows().
        pipeline: its name and version are in the header kafkasse-pipeline.
        dead_letters: the topic for rows without a key and for rows that are too large.
        max_bytes: the size of the largest record that Kafka accepts, for each topic.
        generation: 0 for the first checkpoint that writes the sinks. Each new checkpoint has a higher one.
    """
    columns = set(rows.columns)
    version = F.col("version") + F.lit(generation * GENERATION) if "version" in columns else F.lit(None)
    position = F.to_json("position") if "position" in columns else F.lit(None)
    headers = F.col("headers") if "headers" in columns else F.lit(None)
    record = private_spark.call(
        rows.sparkSession,
        "kafkasse_sink_record",
        "kafkasse.records.SinkRecord",
        [f"{pipeline.name}/{pipeline.version}", dead_letters, max_bytes],
        RECORD,
        [
            F.col("topic"),
            F.col("key").cast("binary"),
            F.col("value").cast("binary"),
            headers.cast(HEADERS),
            version.cast("string"),
            position.cast("string"),
        ],
    )
    problem = F.col("record.problem")
    checked = rows.select(record.alias("record")).observe(
        OBSERVED, F.count(problem).alias("records"), F.max(problem).alias("example")
    )
    return checked.select("record.*").drop("problem")


def letters(bad: DataFrame, topic: str, max_bytes: int) -> DataFrame:
    """Return the dead letters of bad records, for Spark's Kafka sink.

    Args:
        bad: records of Spark's Kafka source, with their `problem`.
        max_bytes: the size of the topic's largest record.
    """
    position = F.col("topic"), F.col("partition"), F.col("offset"), F.unix_millis("timestamp")
    letter = private_spark.call(
        bad.sparkSession,
        "kafkasse_dead_letter",
        "kafkasse.records.DeadLetter",
        [topic, max_bytes],
        RECORD,
        [F.col("key"), F.col("value"), F.col("headers"), F.col("problem"), *(part.cast("string") for part in position)],
    )
    return bad.select(letter.alias("letter")).select("letter.*").drop("problem")


def own_headers(pipeline: Pipeline, version: Column) -> Column:
    """Return the headers of a tombstone that the contract defines."""
    named = {PIPELINE: F.lit(f"{pipeline.name}/{pipeline.version}"), VERSION: version.cast("string")}
    headers = (F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in named.items())
    return F.array(*headers)
