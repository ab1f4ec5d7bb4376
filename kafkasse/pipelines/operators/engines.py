"""Choose the implementation of an operator: the Java classes, or the Python classes.

The operators get rows and items as JSON text, see schemas.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines import private_spark
from kafkasse.pipelines.manifest import FIELDS, State
from kafkasse.pipelines.operators import schemas
from kafkasse.pipelines.pipeline import Mode

Engine = Literal["jvm", "python"]
JAVA = "kafkasse.operators"

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    # Times in JSON have milliseconds by default.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

# The batches after a restart in which the Java class repeats results: see repeats() in Ranked.java.
REPEATING_BATCHES: dict[Mode, int] = {"realtime": 3, "microbatch": 0, "once": 0}

_recorded: ContextVar[State | None] = ContextVar("recorded", default=None)
_mode: ContextVar[Mode] = ContextVar("mode", default="realtime")


@contextmanager
def recording(mode: Mode) -> Iterator[State]:
    """Record the fields in the state of each operator that is added to a query in the block, and its settings.

    Args:
        mode: the mode in which the query will run.
    """
    found: State = {}
    tokens = _recorded.set(found), _mode.set(mode)
    try:
        yield found
    finally:
        _recorded.reset(tokens[0])
        _mode.reset(tokens[1])


def _fields(type_: DataType, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each field: `("item.price", "double")`, or `("tags[]", "string")` for an array."""
    match type_:
        case StructType():
            for field in type_.fields:
                yield from _fields(field.dataType, f"{path}.{field.name}" if path else field.name)
        case ArrayType():
            yield from _fields(type_.elementType, f"{path}[]")
        case MapType():
            yield from _fields(type_.valueType, f"{path}{{}}")
        case _:
            yield path, type_.simpleString()


def to_json(rows: DataFrame, column: str) -> tuple[Column, StructType]:
    """Return a struct column as JSON text, and its type.

    Raises:
        CommandError: the column is not a struct.
    """
    type_ = rows.schema[column].dataType
    if not isinstance(type_, StructType):
        raise CommandError(f"the column {column} is not a struct; make it one, for example with F.struct()")
    recorded = _recorded.get()
    if recorded is not None:
        recorded[str(len(recorded) + 1)] = {FIELDS: dict(_fields(type_))}
    return F.to_json(column, JSON_OPTIONS), type_


def from_json(text: Column | str, type_: StructType) -> Column:
    """Return JSON text as a struct. A field that the text lacks is null."""
    return F.from_json(text, type_, JSON_OPTIONS)


def latest_per_key(rows: DataFrame, engine: Engine | None) -> DataFrame:
    """Run stage 1: rows of a key become changes of the key."""
    text, row_type = to_json(rows, "row")
    rows = rows.withColumn("row", text)
    if _engine(rows, engine) == "jvm":
        changes = _in_jvm(rows, "key", "LatestPerKey", [schemas.KEY_STATE], schemas.CHANGE)
    else:
        from kafkasse.pipelines.operators.python_processors import LatestPerKey

        changes = rows.groupBy("key").transformWithState(LatestPerKey(), schemas.CHANGE, "update", "none")
    return changes.withColumns({name: from_json(name, row_type) for name in ("before", "after")})


def ranked(moves: DataFrame, n: int, engine: Engine | None) -> DataFrame:
    """Run stage 2: changes of a group's members become the top n of the group. The items are JSON text.

    Stage 1 must be the operator that was added last, because `n` is recorded with its fields.
    """
    recorded = _recorded.get()
    if recorded is not None:
        recorded[str(len(recorded))]["n"] = n
    if _engine(moves, engine) == "jvm":
        repeating_batches = REPEATING_BATCHES[_mode.get()]
        types = [schemas.ORDER_KEY, schemas.MEMBER, schemas.GROUP_STATE]
        arguments: list[int | StructType] = [n, repeating_batches, *types]
        return _in_jvm(moves, "group", "Ranked", arguments, schemas.RESULT)
    from kafkasse.pipelines.operators.python_processors import Ranked

    return moves.groupBy("group").transformWithState(Ranked(n), schemas.RESULT, "update", "none")


def _in_jvm(
    rows: DataFrame, key: str, class_name: str, arguments: Sequence[int | StructType], output: StructType
) -> DataFrame:
    return private_spark.transform_with_state(rows, key, f"{JAVA}.{class_name}", arguments, output)


def _engine(rows: DataFrame, engine: Engine | None) -> Engine:
    if engine is None:
        return "jvm" if private_spark.is_classic(rows.sparkSession) else "python"
    if engine not in get_args(Engine):
        raise CommandError(f"engine is 'jvm' or 'python', not {engine!r}")
    if engine == "jvm" and not private_spark.is_classic(rows.sparkSession):
        raise CommandError("engine='jvm' does not work with Spark Connect; use engine='python'")
    return engine
