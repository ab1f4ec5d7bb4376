"""The versions that the sinks of a pipeline already contain. A pipeline that resumes does not write older versions again.

A pipeline that ended between two commits computes the results since the last commit again. In real-time mode, the rows of
different partitions may be read in another order, so these results may be older than those that the sinks contain. They are
dropped before they are written. Therefore, no older result follows a newer one in a sink, and compaction keeps the newest.
"""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kafkasse.errors import CommandError
from kafkasse.pipelines.kafka import tables
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.kafka.contract import GENERATION, SOURCE, VERSION
from kafkasse.pipelines.kafka.sink_rows import VERSIONED_BY
from kafkasse.pipelines.kafka.topics import connector

MAX_CLOCK_DIFFERENCE_MS = 60_000  # between the file system of the checkpoint and the machines that write to Kafka
TAIL_RECORDS = 100


def written_versions(spark: SparkSession, kafka: dict[str, str], topics: list[str], time_ms: int) -> DataFrame | None:
    """Return the highest version of each key that was written since a time, or None if there is none.

    Returns:
        Rows of `written_topic`, `written_key`, `written_version` and `written_of_partitions`: the highest version by source
        partition, of records that were computed from one partition.
    """
    start = {
        "startingTimestamp": str(max(0, time_ms - MAX_CLOCK_DIFFERENCE_MS)),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    versions = _versions(spark, kafka, ",".join(topics), start)
    of_partitions = versions.groupBy("topic", "key", "partition").agg(F.max("version").alias("version"))
    newest = of_partitions.groupBy(F.col("topic").alias("written_topic"), F.col("key").alias("written_key")).agg(
        F.max("version").alias("written_version"),
        F.map_from_entries(F.collect_list(F.struct("partition", "version"))).alias("written_of_partitions"),
    )
    objects = tables.as_json(newest).collect()
    return tables.of_json([row[0] for row in objects], newest) if objects else None


def check_generation(written: DataFrame, generation: int, checkpoint: str) -> None:
    """Check that no newer checkpoint has written to the sinks. All results of the older one would count as outdated.

    Args:
        written: the result of written_versions().

    Raises:
        CommandError: a newer checkpoint has written to a sink.
    """
    topic, newest = written.agg(F.max_by("written_topic", "written_version"), F.max("written_version")).first() or (
        0,
        0,
    )
    if newest >= (generation + 1) * GENERATION:
        raise CommandError(
            f"the topic {topic} contains results of a newer checkpoint than {checkpoint}, so all results of this run would "
            "count as outdated; use the --checkpoint of the last run, or compute all results again with --rebuild"
        )


def next_generation(spark: SparkSession, kafka: dict[str, str], topics: list[str]) -> int:
    """Return the generation of a new checkpoint: one more than that of the newest records of the sinks."""
    newest_generation = -1
    with Admin(spark, kafka) as admin:
        known = {topic: admin.offsets(topic) for topic in topics}
    for topic, offsets in known.items():
        if all(first == end for first, end in offsets.values()):
            continue
        starts = {str(partition): max(first, end - TAIL_RECORDS) for partition, (first, end) in offsets.items()}
        versions = _versions(spark, kafka, topic, {"startingOffsets": json.dumps({topic: starts})})
        [(newest,)] = versions.agg(F.max("version")).collect()
        newest_generation = max(newest_generation, -1 if newest is None else newest // GENERATION)
    return newest_generation + 1


def _versions(spark: SparkSession, kafka: dict[str, str], topics: str, start: dict[str, str]) -> DataFrame:
    reader = spark.read.format("kafka").options(**connector(kafka), **start).option("includeHeaders", "true")
    version = _header(VERSION).try_cast("bigint")
    position = F.from_json(_header(SOURCE), "map<string,bigint>")
    partition = F.when(F.size(position) == 1, F.map_keys(position)[0]).otherwise("")
    records = reader.option("subscribe", topics).load().where("key IS NOT NULL AND headers IS NOT NULL")
    return records.select("topic", "key", version.alias("version"), partition.alias("partition")).where(
        "version IS NOT NULL"
    )


def _header(name: str) -> Column:
    headers = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(headers, F.lit(-1))["value"].cast("string")


def only_newer(rows: DataFrame, written: DataFrame, generation: int, staging: str = "") -> DataFrame:
    """Return the rows that are newer than the written record of their key.

    Args:
        rows: `topic`, `key`, `value` and `version`. VERSIONED_BY: compare the row only with those of this partition.
        written: the result of written_versions().
        generation: the generation of the rows; see contract.records().
        staging: the end of the names of the topics that are written during a rebuild.
    """
    same_key = (F.concat("topic", F.lit(staging)) == F.col("written_topic")) & (
        F.col("key").cast("binary") == F.col("written_key")
    )
    joined = rows.join(F.broadcast(written), same_key, "left")
    version = F.col("version") + F.lit(generation * GENERATION)
    newest = F.col("written_version")
    if VERSIONED_BY in rows.columns:
        of_partition = F.try_element_at("written_of_partitions", F.col(VERSIONED_BY).cast("string"))
        newest = F.when(F.col(VERSIONED_BY).isNull(), newest).otherwise(of_partition)
    is_newer = newest.isNull() | F.col("version").isNull() | (version > newest)
    return joined.where(is_newer).drop(*written.columns)
