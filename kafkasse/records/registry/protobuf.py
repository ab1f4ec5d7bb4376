"""Protobuf: decode messages to Protobuf's JSON mapping.

The names of fields are in lowerCamelCase; 64-bit numbers are text; bytes are base64; fields without presence that have their
default value are omitted. See https://protobuf.dev/programming-guides/json/.

protobuf's own json_format takes a second for a hostile megabyte. The conversion in this module lets other greenlets run.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from kafkasse.process.event_loop import take_turn
from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.json_types import JsonObject, as_base64, as_json_number
from kafkasse.records.registry.wire_format import message_indexes

VALUES_PER_TURN = 500
MAX_ANY_DEPTH = 20  # an Any inside an Any is parsed again, which takes quadratic time
MAX_PATH_BYTES = 10_000  # of a FieldMask, which json_format converts at once

MAIN_FILE = "kafkasse/value.proto"
_MODULES = (
    any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2, timestamp_pb2,
    type_pb2, wrappers_pb2,
)  # fmt: skip
# The files that protobuf itself contains, and those that Confluent's registry adds to each schema.
_BUILT_IN: dict[str, bytes] = {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in _MODULES}


def _confluent_decimal() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(
        name="confluent/type/decimal.proto", package="confluent.type", syntax="proto3"
    )
    message = file.message_type.add(name="Decimal")
    fields = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("value", fields.TYPE_BYTES), ("precision", fields.TYPE_UINT32), ("scale", fields.TYPE_INT32)), start=1
    ):
        message.field.add(name=name, number=number, type=kind, label=fields.LABEL_OPTIONAL)
    return bytes(file.SerializeToString())


_BUILT_IN["confluent/type/decimal.proto"] = _confluent_decimal()


class ProtobufSchema:
    """A .proto file with the files that it imports. The registry returns each as a FileDescriptorProto in base64."""

    def __init__(self, schema: RegisteredSchema, references: Mapping[str, RegisteredSchema]) -> None:
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        self._references = references
        self._file = _file(schema, MAIN_FILE)
        self._add(self._file)
        self._converters: dict[str, _MessageConverter] = {}
        self._by_indexes: dict[tuple[int, ...], _MessageConverter] = {}

    def _add(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        """Add a file to the pool, after the files that it imports."""
        self._added.add(file.name)
        for name in file.dependency:
            if name in self._added:
                continue
            if name in self._references:
                self._add(_file(self._references[name], name))
            elif name in _BUILT_IN:
                self._add(descriptor_pb2.FileDescriptorProto.FromString(_BUILT_IN[name]))
            else:  # such as files that define only options, like confluent/meta.proto
                self._added.add(name)
                self._pool.Add(descriptor_pb2.FileDescriptorProto(name=name))
        self._pool.AddSerializedFile(file.SerializeToString())

    def decode(self, data: bytes, validate: bool = False) -> Any:
        """Return a message in JSON types. See lookup.CompiledSchema."""
        indexes, at = message_indexes(data)
        converter = self._by_indexes.get(indexes)
        if converter is None:
            converter = self._by_indexes[indexes] = self._find(indexes)
        try:
            return converter.convert(converter.parse(data[at:]), 0)
        except DecodeError as error:
            raise DeserializationError("the value is not Protobuf of its schema", "undecodable") from error
        except (ValueError, RecursionError) as error:
            reason = f"the value cannot be converted to JSON: {type(error).__name__}"
            raise DeserializationError(reason, "undecodable") from error

    def _find(self, indexes: tuple[int, ...]) -> _MessageConverter:
        """Return the converter of a message: its index in the file, and then in each message that contains it."""
        name, messages = self._file.package, self._file.message_type
        try:
            for index in indexes:
                message = messages[index]
                name, messages = f"{name}.{message.name}".lstrip("."), message.nested_type
            return self.converter(name)
        except (IndexError, KeyError) as error:
            raise DeserializationError("the schema has no message with these indexes", "undecodable") from error

    def converter(self, name: str) -> _MessageConverter:
        """Return the converter of a type of messages by its full name. Raises KeyError if there is no such type."""
        if name not in self._converters:
            self._converters[name] = _MessageConverter(self, self._pool.FindMessageTypeByName(name))
        return self._converters[name]

    def json_schema(self) -> JsonObject:
        """Return a JSON Schema of all messages: each record names its own."""
        return {"type": "object"}


def _file(schema: RegisteredSchema, name: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except (ValueError, DecodeError) as error:
        raise ValueError("the registry does not return descriptors (format=serialized)") from error
    file.name = name
    return file


class _Pieces:
    """Lets other greenlets run after every VALUES_PER_TURN values."""

    def __init__(self) -> None:
        self._left = VALUES_PER_TURN

    def count(self, values: int) -> None:
        self._left -= values
        if self._left <= 0:
            self._left = VALUES_PER_TURN
            take_turn()


_pieces = _Pieces()  # of all greenlets together, because their work adds up


class _MessageConverter:
    """Converts messages of one type to JSON types."""

    def __init__(self, schema: ProtobufSchema, descriptor: Descriptor) -> None:
        self._schema = schema
        self.parse: Callable[[bytes], Message] = GetMessageClass(descriptor).FromString
        self._special = _SPECIAL.get(descriptor.full_name)
        self._fields: dict[FieldDescriptor, tuple[str, Callable[[Any, int], Any]]] = {}

    def convert(self, message: Any, depth: int) -> Any:
        """Return a message in JSON types. `depth` is the number of Any messages around it."""
        _pieces.count(1)
        if self._special is not None:
            return self._special(self._schema, message, depth)
        converted: JsonObject = {}
        for field, value in message.ListFields():
            known = self._fields.get(field)
            if known is None:
                known = self._fields[field] = _name(field), self._field_converter(field)
            converted[known[0]] = known[1](value, depth)
        return converted

    def _field_converter(self, field: FieldDescriptor) -> Callable[[Any, int], Any]:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            value = self._value_converter(kind.fields_by_name["value"])
            return lambda values, depth: {_key(key): value(values[key], depth) for key in _in_pieces(values)}
        convert = self._value_converter(field)
        # protobuf 7 has no `label`, and versions before 6.31 have no `is_repeated`.
        if field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            return lambda values, depth: [convert(value, depth) for value in _in_pieces(values)]
        return convert

    def _value_converter(self, field: FieldDescriptor) -> Callable[[Any, int], Any]:
        """Return a function from a value of a field, and the depth, to JSON types."""
        if field.message_type is not None:
            return self._schema.converter(field.message_type.full_name).convert
        if field.enum_type is not None:
            if field.enum_type.full_name == "google.protobuf.NullValue":
                return lambda value, depth: None
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda value, depth: names.get(value, value)
        if field.type == FieldDescriptor.TYPE_FLOAT:
            return lambda value, depth: as_json_number(_shortest(value))
        return _CONVERTERS.get(
            field.cpp_type,
            (lambda value, depth: as_base64(value)) if field.type == FieldDescriptor.TYPE_BYTES else _unchanged,
        )


def _in_pieces(values: Any) -> Iterable[Any]:
    if len(values) < VALUES_PER_TURN:
        _pieces.count(len(values))
        return values  # type: ignore[no-any-return]
    return _each_in_pieces(values)


def _each_in_pieces(values: Any) -> Iterable[Any]:
    for value in values:
        _pieces.count(1)
        yield value


def _name(field: FieldDescriptor) -> str:
    return f"[{field.full_name}]" if field.is_extension else field.json_name


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _unchanged(value: Any, depth: int) -> Any:
    return value


def _shortest(value: float) -> float:
    """Return the shortest decimal number that is this 32-bit float: 0.1 and not 0.10000000149011612."""
    if not math.isfinite(value):
        return value
    for digits in range(6, 9):
        number = float(f"{value:.{digits}g}")
        if struct.pack("<d", struct.unpack("<f", struct.pack("<f", number))[0]) == struct.pack("<d", value):
            return number
    return float(f"{value:.9g}")


_CONVERTERS: dict[int, Callable[[Any, int], Any]] = {
    FieldDescriptor.CPPTYPE_INT64: lambda value, depth: str(value),
    FieldDescriptor.CPPTYPE_UINT64: lambda value, depth: str(value),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda value, depth: as_json_number(value),
}


# Messages with a JSON mapping of their own.


def _as_json_format(schema: ProtobufSchema, message: Any, depth: int) -> Any:
    if message.ByteSize() > MAX_PATH_BYTES:
        raise ValueError("a FieldMask is too long")
    return json_format.MessageToDict(message)


def _wrapper(schema: ProtobufSchema, message: Any, depth: int) -> Any:
    field = message.DESCRIPTOR.fields_by_name["value"]
    return schema.converter(message.DESCRIPTOR.full_name)._value_converter(field)(message.value, depth)


def _any(schema: ProtobufSchema, message: Any, depth: int) -> JsonObject:
    if depth >= MAX_ANY_DEPTH:
        raise ValueError("Any messages are nested too deeply")
    name = message.type_url.rpartition("/")[2]
    if not name:
        return {}
    try:
        converter = schema.converter(name)
    except KeyError:  # the schema does not contain the type
        return {"@type": message.type_url, "value": as_base64(message.value)}
    value = converter.convert(converter.parse(message.value), depth + 1)
    if name in _SPECIAL:
        return {"@type": message.type_url, "value": value}
    return {"@type": message.type_url, **value}


def _struct(schema: ProtobufSchema, message: Any, depth: int) -> JsonObject:
    fields = message.fields
    return {key: _struct_value(schema, fields[key], depth) for key in _in_pieces(fields)}


def _list_value(schema: ProtobufSchema, message: Any, depth: int) -> list[Any]:
    return [_struct_value(schema, value, depth) for value in _in_pieces(message.values)]


def _struct_value(schema: ProtobufSchema, message: Any, depth: int) -> Any:
    match message.WhichOneof("kind"):
        case "struct_value":
            return _struct(schema, message.struct_value, depth)
        case "list_value":
            return _list_value(schema, message.list_value, depth)
        case "number_value":
            return as_json_number(message.number_value)
        case "string_value" | "bool_value" as kind:
            return getattr(message, kind)
        case _:
            return None


_SPECIAL: dict[str, Callable[[ProtobufSchema, Any, int], Any]] = {
    "google.protobuf.Any": _any,
    "google.protobuf.Struct": _struct,
    "google.protobuf.ListValue": _list_value,
    "google.protobuf.Value": _struct_value,
    **{f"google.protobuf.{name}": _as_json_format for name in ("Timestamp", "Duration", "FieldMask")},
    **{
        f"google.protobuf.{name}Value": _wrapper
        for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    },
}
