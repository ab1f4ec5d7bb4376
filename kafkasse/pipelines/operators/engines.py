"""Choose the implementation of an operator: the Java classes, or the Python classes."""

from __future__ import annotations

from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines import private_spark
from kafkasse.pipelines.operators.schemas import (
    ORDER_KEY,
    change_schema,
    group_state_schema,
    key_state_schema,
    member_schema,
    result_schema,
)

Engine = Literal["jvm", "python"]
JAVA = "kafkasse.operators"


# Times in JSON have milliseconds by default.
JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def latest_per_key(rows: DataFrame, engine: Engine | None) -> DataFrame:
    """Run stage 1: rows of a key become changes of the key."""
    row_type = _struct(rows, "row")
    if _engine(rows, engine) == "jvm":
        arguments = [key_state_schema(row_type)]
        return private_spark.transform_with_state(
            rows, "key", f"{JAVA}.LatestPerKey", arguments, change_schema(row_type)
        )
    from kafkasse.pipelines.operators import python_processors as python

    changes = (
        rows.withColumn("row", F.to_json("row", JSON_OPTIONS))
        .groupBy("key")
        .transformWithState(python.LatestPerKey(), change_schema(python.JSON), "update", "none")
    )
    return changes.withColumns({name: F.from_json(name, row_type, JSON_OPTIONS) for name in ("before", "after")})


def ranked(moves: DataFrame, n: int, engine: Engine | None) -> DataFrame:
    """Run stage 2: changes of a group's members become the top n of the group."""
    item_type = _struct(moves, "item")
    if _engine(moves, engine) == "jvm":
        arguments: list[int | StructType] = [n, ORDER_KEY, member_schema(item_type), group_state_schema(item_type)]
        return private_spark.transform_with_state(moves, "group", f"{JAVA}.Ranked", arguments, result_schema(item_type))
    from kafkasse.pipelines.operators import python_processors as python

    tops = (
        moves.withColumn("item", F.to_json("item", JSON_OPTIONS))
        .groupBy("group")
        .transformWithState(python.Ranked(n), result_schema(python.JSON), "update", "none")
    )
    items = F.transform("items", lambda item: F.from_json(item, item_type, JSON_OPTIONS))
    return tops.withColumn("items", items)


def _struct(rows: DataFrame, column: str) -> StructType:
    type_ = rows.schema[column].dataType
    if not isinstance(type_, StructType):
        raise CommandError(f"the column {column} is not a struct; make it one, for example with F.struct()")
    return type_


def _engine(rows: DataFrame, engine: Engine | None) -> Engine:
    if engine is None:
        return "jvm" if private_spark.is_classic(rows.sparkSession) else "python"
    if engine not in get_args(Engine):
        raise CommandError(f"engine is 'jvm' or 'python', not {engine!r}")
    if engine == "jvm" and not private_spark.is_classic(rows.sparkSession):
        raise CommandError("engine='jvm' does not work with Spark Connect; use engine='python'")
    return engine
