"""Parse Kafka records whose values are JSON objects.

A bad record must not stop the pipeline, and it must not disappear. So it becomes a dead letter, see dead_letters.py. This
module does not depend on any topic or pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from kafkasse.pipelines import rejected_records

__all__ = ["TEXT", "WHOLE_NUMBER", "json_objects"]  # for queries


@dataclass(frozen=True)
class Type:
    """The type of a field."""

    name: str  # in messages, with its article
    sql: str  # the type of the column, as Spark SQL writes it
    variant: str  # a regular expression for the types that schema_of_variant() returns for valid values
    required: bool = True  # whether each object must have the field. Otherwise, the field may be absent or null.


# How the text of some types starts. Spark makes a time of today out of a time without a date, and infinity out of 1e999.
STARTS = {"TIMESTAMP": r"^\s*[+-]?\d{4}", "DOUBLE": r"^-?\d"}
TEXT, WHOLE_NUMBER = Type("text", "string", "STRING"), Type("a whole number", "bigint", "BIGINT")


def json_objects(records: DataFrame, fields: Mapping[str, Type], key: str) -> DataFrame:
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
    valid = rejected_records.reject(validate(records, fields, key))
    return valid.select("key", "fields.*", "partition", "offset")


def validate(
    records: DataFrame,
    fields: Mapping[str, Type],
    key: str | None,
    needs_key: bool = True,
    value: Column | None = None,
    undecodable: Column | None = None,
) -> DataFrame:
    """Parse all records.

    Args:
        records, fields: see json_objects().
        key: the field that must equal the record's key, or None.
        needs_key: whether a record without a key is bad.
        value: the JSON text, if it is not the whole value.
        undecodable: why the value could not be decoded to JSON text, or null.

    Returns:
        `key` as text, `fields` (a struct, null for a tombstone), `partition`, `offset`, `timestamp` (if the records have
        it), the original `record`, and `problem`, which is text or null.
    """
    position = [name for name in ("partition", "offset", "timestamp") if name in records.columns]
    parsed = records.select(
        F.col("key").cast("string").alias("key"),
        (F.col("value") if value is None else value).cast("string").alias("value"),
        (F.lit(None).cast("string") if undecodable is None else undecodable).alias("undecodable"),
        *position,
        F.struct("*").alias("record"),
    ).withColumn("json", F.try_parse_json(F.try_validate_utf8("value")))
    read = F.struct(*(_field(name, type_.sql).alias(name) for name, type_ in fields.items()))
    return parsed.select(
        "key",
        F.when(F.col("value").isNotNull(), read).alias("fields"),
        *position,
        "record",
        _problem(F.col("value"), fields, key, needs_key).alias("problem"),
    )


def _field(name: str, sql_type: str) -> Column:
    quote = "'" if '"' in name else '"'  # a path has no escape sequences
    return F.try_variant_get("json", f"$[{quote}{name}{quote}]", sql_type)


def _problem(value: Column, fields: Mapping[str, Type], key: str | None, needs_key: bool) -> Column:
    """Return the first problem of the record as text, or null."""
    # The JSON parser stops after the first value. Wrapping the text in an array makes trailing text an error.
    is_single_value = F.json_array_length(F.concat(F.lit("["), value, F.lit("]"))) == 1
    problem = F.when(F.col("key").isNull() & F.lit(needs_key), "it has no key")
    problem = problem.when(F.col("undecodable").isNotNull(), F.col("undecodable")).when(value.isNull(), None)
    problem = problem.when(
        F.col("json").isNull() | is_single_value.isNull() | ~is_single_value, "its value is not JSON"
    )
    if not any(type_.required for type_ in fields.values()):
        problem = problem.when(~F.schema_of_variant("json").startswith("OBJECT<"), "its value is not an object")
    for name, type_ in fields.items():
        type_of_value = F.schema_of_variant(_field(name, "variant"))
        has_type = type_of_value.rlike(f"^({type_.variant})$") & _field(name, type_.sql).isNotNull()
        if type_.sql in STARTS:
            has_type &= _field(name, "string").rlike(STARTS[type_.sql])
        if type_.required:
            problem = problem.when(has_type.isNull() | ~has_type, f"its {name} is missing or not {type_.name}")
        else:
            problem = problem.when((type_of_value != "VOID") & ~has_type, f"its {name} is not {type_.name}")
    if key is None:
        return problem
    return problem.when(_field(key, "string") != F.col("key"), f"its {key} differs from its key")
