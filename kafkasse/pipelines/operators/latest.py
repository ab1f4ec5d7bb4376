"""The latest row of each key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from kafkasse.errors import CommandError
from kafkasse.pipelines.operators import json_state
from kafkasse.pipelines.operators.schemas import CHANGE, KEY_STATE, POSITION
from kafkasse.pipelines.spark import private_spark

JAVA_CLASS = "kafkasse.operators.LatestPerKey"


def latest_per_key(
    rows: DataFrame, removed: Column | str | None = None, order: str | None = None, keys_move: bool = False
) -> DataFrame:
    """Keep the latest row of each key, and return a row each time that it changes.

    Args:
        rows: the text column `key`, the columns of interest, and the position of each row: either `partition` and `offset`
            of its record, or `version` and `position` from another operator. Rows of the same partition may arrive in any
            order within a micro-batch. A row that was already applied changes nothing.
        removed: a condition. A row that meets it removes its key.
        order: the name of a bigint column, such as the time of an event. A row whose value is lower than the one of the
            latest row arrived late and is ignored. Without it, the last row in the order of arrival is the latest. The
            state then keeps removed keys, because a late row must not bring them back.
        keys_move: the records of a key can be in several partitions. The state then keeps removed keys, because the version
            of a key must not restart at the lower offset of another partition. Rows of several topics need different
            numbers in `partition`, for example from 1,000,000 on for the second topic.

    Returns:
        The columns of `rows`, with a new `version` and `position`. All other columns but the key are null if the key was
        removed. Rows that only repeat the latest row are left out. So the columns that differ for each record are left out,
        too: `partition` and `offset` and, if the rows are those of Spark's Kafka source, `timestamp` and `timestampType`.
        To keep one of them, add it under another name.

        `position` maps each partition to the highest offset that the row was computed from. `version` increases with each
        change of a key, and the same input gives the same version, if all records of a key are in one partition. With
        `keys_move`, it increases in any case.

    Raises:
        CommandError: a column is missing, or it has the wrong type.
    """
    columns = [name for name in rows.columns if name not in {"key", *_record_columns(rows)}]
    changes = key_changes(rows, columns, removed, order, keys_move)
    values = [F.col(f"after.{name}").alias(name) for name in columns]
    return changes.select("key", *values, "version", "position")


def key_changes(
    rows: DataFrame,
    columns: Sequence[Column | str],
    removed: Column | str | None = None,
    order: str | None = None,
    keys_move: bool = False,
) -> DataFrame:
    """Return the changes of each key: `key`, `before`, `after`, `version`, `position` and `step`.

    `before` and `after` are structs of the columns, or null. `step` is the difference to the key's previous version.
    """
    if not isinstance(rows.schema["key"].dataType, StringType):
        raise CommandError("the column 'key' is not text; cast it to string")
    version, position = _position(rows)
    is_removed = F.expr(removed) if isinstance(removed, str) else removed
    row = F.struct(*columns)
    numbered = rows.where("key IS NOT NULL").select(
        "key",
        F.col(order).cast("bigint").alias("order") if order else F.lit(None).cast("bigint").alias("order"),
        version.cast("bigint").alias("version"),
        position.cast(POSITION).alias("position"),
        (row if is_removed is None else F.when(~F.coalesce(is_removed, F.lit(False)), row)).alias("row"),
    )
    text, row_type = json_state.to_json(numbered, "row")
    numbered = numbered.withColumn("row", text)
    changes = private_spark.transform_with_state(numbered, "key", JAVA_CLASS, [keys_move, KEY_STATE], CHANGE)
    return changes.withColumns({name: json_state.from_json(name, row_type) for name in ("before", "after")})


def _record_columns(rows: DataFrame) -> set[str]:
    """Return the columns that differ for each record, although the row is the same."""
    columns = {"version", "position"}
    if not columns <= set(rows.columns):
        columns |= {"partition", "offset"}
        if "timestampType" in rows.columns:  # rows of Spark's Kafka source
            columns |= {"timestamp", "timestampType"}
    return columns


def _position(rows: DataFrame) -> tuple[Column, Column]:
    """Return the version and the position of a row. The version is null if the position alone determines it."""
    if {"version", "position"} <= set(rows.columns):
        return F.col("version"), F.col("position")
    if {"partition", "offset"} <= set(rows.columns):
        return F.lit(None), F.create_map(F.col("partition").cast("int"), F.col("offset"))
    raise CommandError(
        "the rows have neither the columns partition and offset nor the columns version and position; select them too"
    )
