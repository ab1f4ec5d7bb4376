"""Convert rows and items to JSON text for the operators' state, and record their fields for the manifest.

With JSON text, adding a field to a query does not change the schema of the state. The manifest of the checkpoint rejects a
query that removes a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines.manifest import FIELDS, RecordedState
from kafkasse.pipelines.pipeline import Mode

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    # Times in JSON have milliseconds by default.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

_recorded: ContextVar[RecordedState | None] = ContextVar("recorded", default=None)
mode: ContextVar[Mode] = ContextVar("mode", default="realtime")
"""The mode in which the query will run."""


@contextmanager
def recording(query_mode: Mode) -> Iterator[RecordedState]:
    """Record the fields in the state of each operator that is added to a query in the block, and its settings."""
    recorded: RecordedState = {}
    tokens = _recorded.set(recorded), mode.set(query_mode)
    try:
        yield recorded
    finally:
        _recorded.reset(tokens[0])
        mode.reset(tokens[1])


def record(name: str, value: object) -> None:
    """Record a setting of the operator that was added last."""
    recorded = _recorded.get()
    if recorded is not None:
        recorded[str(len(recorded))][name] = value


def to_json(rows: DataFrame, column: str) -> tuple[Column, StructType]:
    """Return a struct column as JSON text, and its type. Record its fields as those of another operator.

    Raises:
        CommandError: the column is not a struct, or it contains a map whose keys are not text.
    """
    type_ = rows.schema[column].dataType
    if not isinstance(type_, StructType):
        raise CommandError(f"the column {column} is not a struct; make it one, for example with F.struct()")
    fields = dict(_fields(type_))
    recorded = _recorded.get()
    if recorded is not None:
        recorded[str(len(recorded) + 1)] = {FIELDS: fields}
    return F.to_json(column, JSON_OPTIONS), type_


def from_json(text: Column | str, type_: StructType) -> Column:
    """Return JSON text as a struct. A field that the text lacks is null."""
    return F.from_json(text, type_, JSON_OPTIONS)


def _fields(type_: DataType, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the type of each field: `("item.price", "double")`, or `("tags[]", "string")` for an array."""
    match type_:
        case StructType():
            for field in type_.fields:
                yield from _fields(field.dataType, f"{path}.{field.name}" if path else field.name)
        case ArrayType():
            yield from _fields(type_.elementType, f"{path}[]")
        case MapType():
            if not isinstance(type_.keyType, StringType):
                name, key_type = path.rpartition(".")[2], type_.keyType.simpleString()
                raise CommandError(
                    f"the keys of the map {name} have the type {key_type}, but JSON allows only text; convert them, for "
                    f"example with transform_keys({name}, (k, v) -> string(k))"
                )
            yield from _fields(type_.valueType, f"{path}{{}}")
        case _:
            yield path, type_.simpleString()
