"""Kafka records whose values should be JSON objects, and those that are not.

One garbled record must not stop a pipeline, and must not vanish either: it is set aside, which is to say counted, with
the place where Kafka still has it. The counting is Spark's `observe`, so it costs no second pass and is exact for every
batch that was committed. Knows no topic and no pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress

SET_ASIDE = "set_aside"
EXAMPLES_MAX = 5  # per batch and query

TEXT, WHOLE_NUMBER = "text", "a whole number"
_VARIANT_TYPES = {TEXT: "STRING", WHOLE_NUMBER: "BIGINT"}  # as schema_of_variant calls them
_SQL_TYPES = {TEXT: "string", WHOLE_NUMBER: "bigint"}


def json_objects(records: DataFrame, fields: Mapping[str, str], key: str) -> DataFrame:
    """Read each value as a JSON object that has these fields, strictly: no text for a number, nothing after the object.

    Args:
        records: as Spark's Kafka source has them; of its columns `key`, `value`, `partition` and `offset` are used.
        fields: name -> TEXT or WHOLE_NUMBER (within 64 bits). Other fields of the object are left alone.
        key: the field that must be the record's key. Kafka keeps order by key only, and a tombstone has nothing else.

    Returns:
        `key` and a column for each field; for a tombstone (null value) all but `key` are null. What does not fit is set
        aside, under the observation SET_ASIDE: see `told`.
    """
    problem = F.col("problem")
    example = F.when(problem.isNotNull(), F.struct("partition", "offset", "problem"))
    observed = judged(records, fields, key).observe(
        SET_ASIDE,
        F.count(problem).alias("records"),
        F.max_by(example, F.when(problem.isNotNull(), F.col("offset")), EXAMPLES_MAX).alias("examples"),
    )
    return observed.where(problem.isNull()).select("key", *fields)


def judged(records: DataFrame, fields: Mapping[str, str], key: str) -> DataFrame:
    """All the records, read as json_objects does: `key`, the fields, `partition`, `offset`, and the `problem` in words."""
    value = F.col("value").cast("string")
    json = F.try_parse_json(F.try_validate_utf8(value)).alias("json")
    parsed = records.select(F.col("key").cast("string").alias("key"), "value", "partition", "offset", json)
    read = (_field(name, _SQL_TYPES[type_]).alias(name) for name, type_ in fields.items())
    return parsed.select("key", *read, "partition", "offset", _problem(value, fields, key).alias("problem"))


def _field(name: str, sql_type: str) -> Column:
    return F.try_variant_get("json", f"$.{name}", sql_type)


def _problem(value: Column, fields: Mapping[str, str], key: str) -> Column:
    """The first thing that is wrong, in words; null where nothing is."""
    # The JSON parsers stop after the first value; inside an array what follows it shows.
    alone = F.json_array_length(F.concat(F.lit("["), value, F.lit("]"))) == 1
    found = F.when(F.col("key").isNull(), "it has no key").when(value.isNull(), None)
    found = found.when(F.col("json").isNull() | alone.isNull() | ~alone, "its value is not JSON")
    for name, type_ in fields.items():
        is_type = F.schema_of_variant(_field(name, "variant")) == _VARIANT_TYPES[type_]
        found = found.when(is_type.isNull() | ~is_type, f"its {name} is not {type_}")
    return found.when(_field(key, "string") != F.col("key"), f"its {key} is not its key")


def told(progress: StreamingQueryProgress) -> str | None:
    """What a batch of this topic set aside, as a line for the log; None when that was nothing."""
    observed = progress.observedMetrics.get(SET_ASIDE)
    if observed is None or not observed.records:
        return None
    places = "; ".join(
        f"partition {at['partition']} offset {at['offset']}: {at['problem']}" for at in observed.examples
    )
    more = f" and {observed.records - len(observed.examples)} more" if observed.records > EXAMPLES_MAX else ""
    return f"set aside {observed.records} of {progress.numInputRows} records ({places}{more})"
