"""The contract of the records that a pipeline writes: their headers, and the checks before they are written to Kafka.

A record that Kafka would reject must not stop the pipeline: it becomes a dead letter, and the sink keeps the previous record
of the key. This module does not connect to Kafka; the caller passes in the limits of the topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines.pipeline import Pipeline

PIPELINE, VERSION, SOURCE = "kafkasse-pipeline", "kafkasse-version", "kafkasse-source"  # the headers of each record
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
# The headers with which a dead letter ends, in this order. A header without a value does not apply.
DEAD_LETTER_HEADERS = tuple(
    f"kafkasse-dead-letter-{name}" for name in ("reason", "topic", "partition", "offset", "timestamp", "omitted")
)
OBSERVED = "rejected_results"  # the observation that counts results that became dead letters: `records`, and `example`
NO_KEY = "it has no key"
# Added to each version for each generation, so that all records of a new checkpoint are newer than the earlier ones.
GENERATION = 2**48
RECORD_OVERHEAD_BYTES = 128  # the size of a record and of its batch without their fields
FIELD_OVERHEAD_BYTES = 5  # the length of a key, a value, or the name or the value of a header


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
    version = F.col("version") + F.lit(generation * GENERATION) if "version" in rows.columns else None
    position = F.to_json("position") if "position" in rows.columns else None
    user = F.coalesce(F.col("headers").cast(HEADERS_TYPE), no_headers()) if "headers" in rows.columns else no_headers()
    headers = F.concat(user, own_headers(pipeline, version, position))
    complete = rows.select(
        "topic", F.col("key").cast("binary"), F.col("value").cast("binary"), headers.alias("headers")
    )
    size, maximum = _size(), _maximum(max_bytes)
    too_large = F.concat(F.lit("it has about "), size, F.lit(" bytes, but Kafka accepts "), maximum)
    problem = F.when(F.col("key").isNull(), F.lit(NO_KEY)).when(size > maximum, too_large)
    checked = complete.withColumn("problem", problem).observe(
        OBSERVED, F.count("problem").alias("records"), F.max("problem").alias("example")
    )
    bad = F.col("problem").isNotNull()
    letter_headers = F.concat("headers", dead_letter_headers(F.col("problem"), F.col("topic")))
    letter = checked.select(
        F.when(bad, F.lit(dead_letters)).otherwise(F.col("topic")).alias("topic"),
        "key",
        "value",
        F.when(bad, letter_headers).otherwise(F.col("headers")).alias("headers"),
        bad.alias("bad"),
    )
    return shorten_dead_letters(letter, max_bytes[dead_letters])


def own_headers(pipeline: Pipeline, version: Column | None, position: Column | None = None) -> Column:
    """Return the headers of a record that the contract defines. A header without a value is left out."""
    headers = [_header(PIPELINE, F.lit(f"{pipeline.name}/{pipeline.version}"))]
    headers += [_header(name, value) for name, value in ((VERSION, version), (SOURCE, position)) if value is not None]
    return F.filter(F.array(*headers), lambda header: header["value"].isNotNull())


def shorten_dead_letters(letters: DataFrame, max_bytes: int) -> DataFrame:
    """Omit the value, the key or the other headers of dead letters that Kafka would not accept.

    Args:
        letters: `topic`, `key`, `value`, `headers` and `bad`, whether the row is a dead letter.
        max_bytes: the size of the largest dead letter.
    """
    for omitted in ("value", "key", "headers"):
        is_too_large = F.col("bad") & (_size() > F.lit(max_bytes))
        shorter = F.when(is_too_large, _with_omission(omitted)).otherwise(F.col("headers"))
        letters = letters.select(
            "topic",
            *(
                (F.when(~is_too_large, F.col(name)) if name == omitted else F.col(name)).alias(name)
                for name in ("key", "value")
            ),
            shorter.alias("headers"),
            "bad",
        )
    return letters.drop("bad")


def _with_omission(omitted: str) -> Column:
    """Return the headers of a dead letter, including the one that names the omitted part."""
    count = len(DEAD_LETTER_HEADERS)
    kept = F.slice("headers", F.lit(1), F.size("headers") - 1)
    if omitted == "headers":
        kept = F.slice("headers", F.size("headers") - (count - 1), F.lit(count - 1))
    return F.concat(kept, F.array(_header(DEAD_LETTER_HEADERS[-1], F.lit(omitted))))


def dead_letter_headers(
    reason: Column,
    topic: Column,
    partition: Column | None = None,
    offset: Column | None = None,
    at: Column | None = None,
) -> Column:
    """Return the last headers of a dead letter: why the record is bad, and where it is or should have been written."""
    at_ms = F.unix_millis(at) if at is not None else None
    values: list[Any] = [F.substring(reason, 1, 1000), topic, partition, offset, at_ms, None]
    named = zip(DEAD_LETTER_HEADERS, values, strict=True)
    return F.array(*(_header(name, F.lit(None) if value is None else value) for name, value in named))


def no_headers() -> Column:
    """Return an empty list of headers."""
    return F.array().cast(HEADERS_TYPE)


def _maximum(max_bytes: Mapping[str, int]) -> Column:
    """Return the size of the largest record of the row's topic."""
    return reduce(
        lambda others, limit: F.when(F.col("topic") == limit[0], F.lit(limit[1])).otherwise(others),
        max_bytes.items(),
        F.lit(min(max_bytes.values())),
    )


def _size() -> Column:
    """Return an upper bound of the size that a record has in Kafka, in bytes, uncompressed."""
    of_headers = F.aggregate(
        "headers",
        F.lit(0),
        lambda total, header: total + 2 * FIELD_OVERHEAD_BYTES + _length(header["key"]) + _length(header["value"]),
    )
    overhead = F.lit(RECORD_OVERHEAD_BYTES + 2 * FIELD_OVERHEAD_BYTES)
    return overhead + _length(F.col("key")) + _length(F.col("value")) + of_headers


def _length(value: Column) -> Column:
    return F.coalesce(F.octet_length(value), F.lit(0))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
