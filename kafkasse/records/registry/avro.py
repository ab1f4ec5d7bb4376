"""Avro: decode binary data to JSON types, and describe the schema as JSON Schema.

    null, boolean, string, enum   as in JSON          union      the value alone, without the name of its type
    int, long                     number              map        object
    float, double                 number, or "NaN",   decimal    text, such as "12.50"
                                  "Infinity",         date       "2026-11-22"
                                  "-Infinity"         time       "05:42:55.123"
    bytes, fixed                  base64              timestamp  "2026-11-22T05:42:55.123Z", local without Z
    uuid                          text                duration   "P1M2DT3.004S" (ISO 8601)

fastavro decodes. It has no limits for hostile data, so this module protects it:

- fastavro's compiled reader uses the stack of the process for each level of a recursive schema, and a record with a million
  levels ends the process. Values of recursive schemas are decoded by its reader in Python, which raises RecursionError.
  That reader takes quadratic time for a number with many bytes, so it uses our decoder.
- An array whose items take up no bytes could have 2**63 items. Schemas with such an array are rejected.
- A large value is read through an object that lets other greenlets run.
"""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, NamedTuple

from fastavro import _read_py, parse_schema, schemaless_reader
from fastavro.io.binary_decoder import BinaryDecoder
from fastavro.read import LOGICAL_READERS

from kafkasse.process.event_loop import take_turn
from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.json_types import JsonObject, as_base64, as_json_number

MAX_SCALE = 1000
LARGE_BYTES = 16_384  # larger values are decoded in pieces
READS_PER_TURN = 1000


class _Decoder(BinaryDecoder):
    """Rejects numbers of more than 10 bytes. A 64-bit number has at most 10."""

    def read_long(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte: int = self.fo.read(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
        raise ValueError

    read_int = read_long


# A copy of the function, because a change to fastavro's module would affect the app.
_reader_in_python = FunctionType(
    _read_py.schemaless_reader.__code__,
    {**vars(_read_py), "BinaryDecoder": _Decoder},
    argdefs=_read_py.schemaless_reader.__defaults__,
)

_parse: Any = parse_schema  # its result is a JsonObject for a record or another named type

_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_NAMED = {"record", "error", "enum", "fixed"}
_EPOCH = datetime(1970, 1, 1)
_WRAPPER = "KafkasseValue"  # a record with one field has the same bytes as the field


class AvroSchema:
    """An Avro schema with the schemas to which it refers."""

    def __init__(self, schema: RegisteredSchema, references: Mapping[str, RegisteredSchema]) -> None:
        translator = _Translator()
        named: dict[str, Any] = {}
        for reference in references.values():
            _parse(_wrapped(translator.translate(json.loads(reference.text)).reader), named_schemas=named)
            named.pop(_WRAPPER, None)
        value = translator.translate(json.loads(schema.text))
        self._parsed = _parse(_wrapped(value.reader), named_schemas=named)
        self._is_wrapped = self._parsed["name"] == _WRAPPER
        self._is_bytes = value.reader == _scalar({}, "bytes").reader
        self._description = value.description
        self._definitions = translator.definitions
        self._read: Callable[..., Any] = _reader_in_python if translator.is_recursive else schemaless_reader

    def decode(self, data: bytes, validate: bool = False) -> Any:
        """Return a value in JSON types. See lookup.CompiledSchema.

        Bytes after the value are ignored, as by other clients. But Confluent's Java client writes a value of the schema
        "bytes" without its length. So data of this schema that is not a length followed by that many bytes is the value.
        """
        source = io.BytesIO(data) if len(data) < LARGE_BYTES else _LargeValue(data)
        try:
            value = self._read(source, self._parsed, None)
        except Exception as error:
            if self._is_bytes:
                return as_base64(data)
            # fastavro raises many types of exceptions, and their texts may contain data of the record.
            reason = f"the value is not Avro of its schema: {type(error).__name__}"
            raise DeserializationError(reason, "undecodable") from error
        if self._is_bytes and source.read(1):
            return as_base64(data)
        return value["value"] if self._is_wrapped else value

    def json_schema(self) -> JsonObject:
        """Return a JSON Schema of the decoded values."""
        return {**self._description, "$defs": self._definitions} if self._definitions else self._description


class _LargeValue(io.BytesIO):
    """Lets other greenlets run while fastavro reads from it."""

    _reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if not self._reads % READS_PER_TURN:
            take_turn()
        return super().read(size)


def _wrapped(schema: Any) -> Any:
    if isinstance(schema, dict) and schema["type"] in _NAMED:
        return schema
    return {"type": "record", "name": _WRAPPER, "fields": [{"name": "value", "type": schema}]}


class _Type(NamedTuple):
    """A translated type.

    Attributes:
        reader: the type for fastavro, so that it decodes values to JSON types. Each type that JSON lacks has a logical type
            of our own.
        description: a JSON Schema of the decoded values.
    """

    reader: Any
    description: JsonObject


class _Translator:
    """Translates schemas, and finds those that need protection.

    Attributes:
        is_recursive: a type contains itself.
        definitions: the descriptions of all named types by their full names.
    """

    def __init__(self) -> None:
        self.is_recursive = False
        self.definitions: dict[str, JsonObject] = {}
        self._empty: set[str] = set()  # the named types whose values take up no bytes
        self._open: set[str] = set()  # the records that contain what is being translated

    def translate(self, schema: Any, namespace: str = "") -> _Type:
        """Translate a schema inside a namespace."""
        if isinstance(schema, list):
            types = [self.translate(member, namespace) for member in schema]
            return _Type([member.reader for member in types], {"anyOf": [member.description for member in types]})
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.translate(kind, namespace)
        if kind == "array":
            items = self.translate(schema["items"], namespace)
            if self._is_empty(items.reader):
                raise ValueError("it contains an array whose items take up no bytes")
            return _Type({"type": kind, "items": items.reader}, {"type": "array", "items": items.description})
        if kind == "map":
            values = self.translate(schema["values"], namespace)
            description = {"type": "object", "additionalProperties": values.description}
            return _Type({"type": kind, "values": values.reader}, description)
        if kind in _PRIMITIVES:
            return _scalar(schema, kind)
        if kind in _NAMED:
            return self._define(schema, kind, namespace)
        name = _find_name(kind, namespace, self.definitions)
        self.is_recursive = self.is_recursive or name in self._open
        return _Type(_name_for_reader(name), {"$ref": f"#/$defs/{name}"})

    def _define(self, schema: JsonObject, kind: str, namespace: str) -> _Type:
        name, namespace = _full_name(schema, namespace)
        self.definitions[name] = {}  # for a type that contains itself
        if kind == "enum":
            reader, description = (
                {"type": kind, "symbols": schema["symbols"]},
                {"type": "string", "enum": schema["symbols"]},
            )
        elif kind == "fixed":
            scalar = _scalar(schema, kind)
            reader, description = {**scalar.reader, "size": schema["size"]}, scalar.description
            if schema["size"] == 0:
                self._empty.add(_name_for_reader(name))
        else:
            reader, description = self._translate_fields(schema["fields"], name, namespace)
        self.definitions[name] = {**description, **_documentation(schema)}
        return _Type({**reader, "name": _name_for_reader(name)}, {"$ref": f"#/$defs/{name}"})

    def _translate_fields(self, fields: Iterable[JsonObject], name: str, namespace: str) -> _Type:
        self._open.add(name)
        types = [(field, self.translate(field["type"], namespace)) for field in fields]
        self._open.discard(name)
        if all(self._is_empty(field_type.reader) for _, field_type in types):
            self._empty.add(_name_for_reader(name))
        properties = {field["name"]: {**field_type.description, **_documentation(field)} for field, field_type in types}
        return _Type(
            {
                "type": "record",
                "fields": [{"name": field["name"], "type": field_type.reader} for field, field_type in types],
            },
            {"type": "object", "properties": properties, "required": list(properties)},
        )

    def _is_empty(self, reader: Any) -> bool:
        if isinstance(reader, dict):
            return reader["type"] == "null" or reader.get("name") in self._empty
        return reader == "null" or (isinstance(reader, str) and reader in self._empty)


def _documentation(schema: JsonObject) -> JsonObject:
    return {"description": schema["doc"]} if isinstance(schema.get("doc"), str) else {}


def _full_name(schema: JsonObject, namespace: str) -> tuple[str, str]:
    """Return the full name and the namespace of a named type inside a namespace."""
    name = schema["name"]
    if "." in name:
        return name, name.rpartition(".")[0]
    namespace = schema.get("namespace", namespace)
    return (f"{namespace}.{name}" if namespace else name), namespace


def _find_name(name: str, namespace: str, definitions: Mapping[str, Any]) -> str:
    """Return the full name to which `name` refers inside a namespace."""
    inside = f"{namespace}.{name}"
    return inside if "." not in name and inside in definitions else name


def _name_for_reader(name: str) -> str:
    """Return a name with a namespace. fastavro looks for a name without one only in the enclosing namespace."""
    return name if "." in name else f"kafkasse.{name}"


# Logical types.


def _scalar(schema: JsonObject, kind: str) -> _Type:
    """Translate a primitive type or `fixed`."""
    logical_type = schema.get("logicalType") if _has_valid_logical_type(schema) else None
    if (kind, logical_type) == ("string", "uuid"):
        return _Type(kind, _DESCRIPTIONS["uuid"])
    if (kind, logical_type) not in _CONVERTERS:
        logical_type = None
    description = _DESCRIPTIONS.get(logical_type or kind, {"type": "string"})
    if (kind, logical_type) not in _CONVERTERS:
        return _Type(kind, description)
    reader: JsonObject = {"type": kind, "logicalType": f"kafkasse-{logical_type}"}
    if logical_type == "decimal":
        reader["scale"] = schema.get("scale", 0)
        if reader["scale"] > MAX_SCALE:
            raise ValueError(f"the scale of a decimal is more than {MAX_SCALE}")
        reader["precision"] = schema["precision"]
    return _Type(reader, description)


def _has_valid_logical_type(schema: JsonObject) -> bool:
    """Return whether the attributes fit the logical type. Avro's specification requires readers to ignore an invalid one."""
    match schema.get("logicalType"):
        case "decimal":
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            return isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision
        case "duration":
            return bool(schema.get("size") == 12)
        case "uuid":
            return bool(schema.get("size", 16) == 16)
        case logical_type:
            return isinstance(logical_type, str)


# By logical type, or by type. Those that are missing are texts.
_DESCRIPTIONS: dict[str, JsonObject] = {
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "int": {"type": "integer"},
    "long": {"type": "integer"},
    "float": {"type": ["number", "string"]},
    "double": {"type": ["number", "string"]},
    "bytes": {"type": "string", "contentEncoding": "base64"},
    "fixed": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    **{f"timestamp-{unit}": {"type": "string", "format": "date-time"} for unit in ("millis", "micros", "nanos")},
    "uuid": {"type": "string", "format": "uuid"},
    "duration": {"type": "string", "format": "duration"},
}


def _decimal(value: bytes, schema: JsonObject) -> str:
    unscaled, scale = int.from_bytes(value, "big", signed=True), schema["scale"]
    digits = str(abs(unscaled)).rjust(scale + 1, "0")  # Python rejects a number with more than 4,300 digits
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _duration(value: bytes) -> str:
    months, days, milliseconds = struct.unpack("<3I", value)
    return f"P{months}M{days}DT{milliseconds // 1000}.{milliseconds % 1000:03}S"


def _date(days: int) -> str | int:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


def _timestamp(digits: int, suffix: str) -> Callable[[int], str | int]:
    """Return a function from a number since the epoch, in units of 10**-digits seconds, to ISO 8601.

    The function returns a number outside of the years 1 to 9999 unchanged, because ISO 8601 cannot express it.
    """
    per_s = 10**digits

    def convert(number: int) -> str | int:
        seconds, fraction = divmod(number, per_s)
        try:
            time = (_EPOCH + timedelta(seconds=seconds)).isoformat()
        except OverflowError:
            return number
        return f"{time}.{fraction:0{digits}}{suffix}"

    return convert


def _time(digits: int) -> Callable[[int], str | int]:
    per_s = 10**digits

    def convert(number: int) -> str | int:
        seconds, fraction = divmod(number, per_s)
        if not 0 <= seconds < 86_400:
            return number
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:0{digits}}"

    return convert


_CONVERTERS: dict[tuple[str, str | None], Callable[..., Any]] = {
    ("float", None): as_json_number,
    ("double", None): as_json_number,
    ("bytes", None): as_base64,
    ("fixed", None): as_base64,
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("fixed", "duration"): _duration,
    ("fixed", "uuid"): lambda value: str(uuid.UUID(bytes=value)),
    ("int", "date"): _date,
    ("int", "time-millis"): _time(3),
    ("long", "time-micros"): _time(6),
    ("long", "timestamp-millis"): _timestamp(3, "Z"),
    ("long", "timestamp-micros"): _timestamp(6, "Z"),
    ("long", "timestamp-nanos"): _timestamp(9, "Z"),
    ("long", "local-timestamp-millis"): _timestamp(3, ""),
    ("long", "local-timestamp-micros"): _timestamp(6, ""),
    ("long", "local-timestamp-nanos"): _timestamp(9, ""),
}


def _register(kind: str, logical_type: str | None, convert: Callable[..., Any]) -> None:
    def read(value: Any, schema: JsonObject, _: Any = None) -> Any:
        return convert(value, schema) if logical_type == "decimal" else convert(value)

    readers: dict[str, Any] = LOGICAL_READERS
    readers[f"{kind}-kafkasse-{logical_type}"] = read


for (_kind, _logical_type), _convert in _CONVERTERS.items():
    _register(_kind, _logical_type, _convert)
