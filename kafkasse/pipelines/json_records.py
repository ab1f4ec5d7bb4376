"""Parse Kafka records whose values are JSON objects.

A bad record must not stop the pipeline, and it must not disappear. So it becomes a dead letter, see dead_letters.py. This
module does not depend on any topic or pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines import dead_letters

TEXT, WHOLE_NUMBER = "text", "a whole number"
_VARIANT_TYPES = {TEXT: "STRING", WHOLE_NUMBER: "BIGINT"}  # the type names of schema_of_variant
_SQL_TYPES = {TEXT: "string", WHOLE_NUMBER: "bigint"}


def json_objects(records: DataFrame, fields: Mapping[str, str], key: str) -> DataFrame:
    """Parse each value as a JSON object with these fields.

    Parsing is strict: text is not accepted as a number, and nothing may follow the object.

    Args:
        records: rows of Spark's Kafka source. The columns `key`, `value`, `partition` and `offset` are used.
        fields: field name -> TEXT or WHOLE_NUMBER (64 bits). Other fields of the object are ignored.
        key: the field that must equal the record's key. Kafka only keeps records of the same key in order, and a
            tombstone contains nothing but its key.

    Returns:
        `key`, one column for each field, `partition` and `offset`. In the row of a tombstone (null value), all fields are
        null. Bad records are left out, and become dead letters.
    """
    return dead_letters.reject(validate(records, fields, key))


def validate(records: DataFrame, fields: Mapping[str, str], key: str) -> DataFrame:
    """Parse all records as json_objects() does: `key`, the fields, `partition`, `offset`, the original `record`, and
    `problem`, which is text or null."""
    value = F.col("value").cast("string")
    json = F.try_parse_json(F.try_validate_utf8(value)).alias("json")
    parsed = records.select(
        F.col("key").cast("string").alias("key"), "value", "partition", "offset", json, F.struct("*").alias("record")
    )
    read = (_field(name, _SQL_TYPES[type_]).alias(name) for name, type_ in fields.items())
    return parsed.select("key", *read, "partition", "offset", "record", _problem(value, fields, key).alias("problem"))


def _field(name: str, sql_type: str) -> Column:
    return F.try_variant_get("json", f"$.{name}", sql_type)


def _problem(value: Column, fields: Mapping[str, str], key: str) -> Column:
    """Return the first problem of the record as text, or null."""
    # The JSON parser stops after the first value. Wrapping the text in an array makes trailing text an error.
    is_single_value = F.json_array_length(F.concat(F.lit("["), value, F.lit("]"))) == 1
    problem = F.when(F.col("key").isNull(), "it has no key").when(value.isNull(), None)
    problem = problem.when(
        F.col("json").isNull() | is_single_value.isNull() | ~is_single_value, "its value is not JSON"
    )
    for name, type_ in fields.items():
        has_type = F.schema_of_variant(_field(name, "variant")) == _VARIANT_TYPES[type_]
        problem = problem.when(has_type.isNull() | ~has_type, f"its {name} is not {type_}")
    return problem.when(_field(key, "string") != F.col("key"), f"its {key} differs from its key")
