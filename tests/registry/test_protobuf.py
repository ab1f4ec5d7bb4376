"""Protobuf messages have Protobuf's JSON mapping, and hostile data does not stall the event loop."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.protobuf import ProtobufSchema
from tests.support.examples import examples
from tests.support.registry import proto_file
from tests.support.turns import MAX_LINES, most_lines_in_a_piece

F = FieldDescriptorProto
SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in F.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
WELL_KNOWN = ["any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers"]
TYPES = {
    "when": "Timestamp", "took": "Duration", "mask": "FieldMask", "object": "Struct", "item": "Value", "list": "ListValue",
    "any": "Any", "nothing": "Empty", "int64": "Int64Value", "float": "FloatValue", "text": "StringValue",
    "raw": "BytesValue", "flag": "BoolValue",
}  # fmt: skip


def add(to: DescriptorProto, name: str, number: int, kind: int | str, **rest: Any) -> None:
    """Add a field. `kind` is a scalar, or the name of a message."""
    rest = {"label": F.LABEL_OPTIONAL, **rest}
    type_of = {"type": kind} if isinstance(kind, int) else {"type": F.TYPE_MESSAGE, "type_name": kind}
    to.field.add(name=name, number=number, **type_of, **rest)


def shop() -> FileDescriptorProto:
    """A file with all kinds of fields: scalars, repeated scalars, maps, an enum, a oneof, and well-known types."""
    file = proto_file("shop.proto", "shop", [f"google/protobuf/{name}.proto" for name in WELL_KNOWN])
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=7)
    scalars, repeated = file.message_type.add(name="Scalars"), file.message_type.add(name="Repeated")
    for number, (name, kind) in enumerate(SCALARS.items(), start=1):
        add(scalars, f"a_{name}", number, kind)
        add(repeated, f"a_{name}", number, kind, label=F.LABEL_REPEATED)
    special = file.message_type.add(name="Special")
    for number, (name, type_name) in enumerate(TYPES.items(), start=1):
        add(special, name, number, f".google.protobuf.{type_name}")
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="kind")
    add(order, "color", 1, F.TYPE_ENUM, type_name=".shop.Color")
    add(order, "item", 2, ".shop.Order.Item", label=F.LABEL_REPEATED)
    add(order, "count", 3, F.TYPE_INT32, oneof_index=0)
    add(order, "other", 4, ".shop.Order")
    add(order, "null", 5, F.TYPE_ENUM, type_name=".google.protobuf.NullValue", label=F.LABEL_REPEATED)
    add(order.nested_type.add(name="Item"), "id", 1, F.TYPE_STRING)
    for number, kind in ((10, "string"), (11, "int64"), (12, "bool")):
        entry = order.nested_type.add(name=f"By{kind.capitalize()}Entry")
        entry.options.map_entry = True
        add(entry, "key", 1, SCALARS[kind])
        add(entry, "value", 2, ".shop.Order.Item")
        add(order, f"by_{kind}", number, f".shop.Order.By{kind.capitalize()}Entry", label=F.LABEL_REPEATED)
    return file


def registered(file: FileDescriptorProto) -> RegisteredSchema:
    return RegisteredSchema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode(), ())


SCHEMA = ProtobufSchema(registered(shop()), {})
INDEXES = {"Scalars": b"\0", "Repeated": b"\2\2", "Special": b"\2\4", "Order": b"\2\6", "Order.Item": b"\4\6\0"}
POOL: DescriptorPool = SCHEMA._pool  # without it, json_format cannot find the types inside an Any


def message(name: str, **fields: Any) -> Any:
    message_class: Callable[..., Message] = GetMessageClass(POOL.FindMessageTypeByName(f"shop.{name}"))
    return message_class(**fields)


def decode(name: str, data: Message | bytes) -> Any:
    return SCHEMA.decode(INDEXES[name] + (data if isinstance(data, bytes) else data.SerializeToString()))


def expected(of: Message) -> Any:
    return json_format.MessageToDict(of, descriptor_pool=POOL)


INTEGERS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(width=32).filter(lambda number: not math.isnan(number))
STRATEGIES = {
    "string": st.text(), "bytes": st.binary(), "bool": st.booleans(), "float": FLOATS, "double": st.floats(allow_nan=False),
}  # fmt: skip


@given(st.fixed_dictionaries({}, optional={f"a_{name}": STRATEGIES.get(name, INTEGERS) for name in SCALARS}))
@settings(max_examples=examples(200), deadline=None)
def test_scalars_have_protobufs_json_mapping(fields):
    """The result is that of protobuf's own json_format."""
    scalars = message("Scalars", **fields)
    repeated = message("Repeated", **{name: [value, value] for name, value in fields.items()})

    assert expected(scalars) == decode("Scalars", scalars)
    assert expected(repeated) == decode("Repeated", repeated)


def test_numbers_that_json_lacks_are_text():
    assert {"aDouble": "NaN", "aFloat": "-Infinity", "aInt64": str(-(2**63)), "aUint64": str(2**64 - 1)} == decode(
        "Scalars", message("Scalars", a_double=math.nan, a_float=-math.inf, a_int64=-(2**63), a_uint64=2**64 - 1)
    )


def test_messages_maps_and_enums():
    """Nested messages, maps with all kinds of keys, enums with an unknown number, and a oneof that has its default value."""
    order = message("Order", color=7, item=[{"id": "a"}, {}], count=0, other={"color": 99}, null=[0])
    order.by_string["k"].id = "x"
    order.by_int64[-5].id = "y"
    order.by_bool[True].id = "z"

    assert expected(order) == decode("Order", order)
    assert {"id": "a"} == decode("Order.Item", message("Order.Item", id="a"))


def test_well_known_types():
    special = message("Special")
    special.when.FromJsonString("2026-11-22T05:42:55.123Z")
    special.took.FromJsonString("-1.5s")
    special.mask.FromJsonString("a,bC")
    special.object.update({"a": [1, "x", None, True, {"b": {}}]})
    special.item.number_value = 1.5
    special.list.extend([1, [2]])
    special.any.Pack(message("Order", color=7))
    special.nothing.SetInParent()
    special.int64.value = 2**60
    special.float.value = 0.1
    special.text.value = ""
    special.raw.value = b"\xff"
    special.flag.value = False

    assert expected(special) == decode("Special", special)


def test_an_any_of_a_special_or_unknown_type():
    """A special type is the member `value`. A type that the schema lacks stays bytes, instead of an error."""
    special, unknown = message("Special"), message("Special")
    special.any.Pack(message("Special", took={"seconds": 1}).took)
    unknown.any.type_url, unknown.any.value = "type.googleapis.com/other.Type", b"\1"

    assert expected(special) == decode("Special", special)
    assert {"any": {"@type": "type.googleapis.com/other.Type", "value": "AQ=="}} == decode("Special", unknown)


def test_imports_are_references():
    """A file may import other files by the names of the references, and files that define only options."""
    money = proto_file("other-name.proto", "shop")
    add(money.message_type.add(name="Money"), "cents", 1, F.TYPE_INT32)
    imports = ["shop/money.proto", "confluent/meta.proto", "confluent/type/decimal.proto"]
    bill = proto_file("", "shop", imports)
    sum_of = bill.message_type.add(name="Bill")
    add(sum_of, "sum", 1, ".shop.Money")
    add(sum_of, "tax", 2, ".confluent.type.Decimal")
    schema = ProtobufSchema(registered(bill), {"shop/money.proto": registered(money)})

    decoded = schema.decode(b"\0" + b"\x0a\2\x08\5" + b"\x12\3\x0a\1\x09")

    assert {"sum": {"cents": 5}, "tax": {"value": "CQ=="}} == decoded


def test_the_text_of_a_file_is_not_enough():
    with pytest.raises(ValueError, match="format=serialized"):
        ProtobufSchema(RegisteredSchema("PROTOBUF", 'syntax = "proto3";', ()), {})


NESTED = b"\x22\0"
for _ in range(200):
    _size = len(NESTED)
    NESTED = b"\x22" + (bytes([_size]) if _size < 128 else bytes([_size & 127 | 128, _size >> 7])) + NESTED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        b"\2\x7e",
        b"\2\7",
        b"\x02" + b"\xff" * 100,
        b"\xff" * 5,
        b"\xce\x01" + b"\0" * 200,
        b"\2\6\xff",
        b"\2\6\x12\x7f",
        b"\2\6" + NESTED,
        b"\2\4" + message("Special", when={"seconds": 2**62}).SerializeToString(),
        b"\2\4" + message("Special", mask={"paths": ["x" * 20_000]}).SerializeToString(),
        b"\0\x4a\1\xff",
    ],
)
def test_data_that_is_not_of_the_schema_is_an_error(data):
    """Invalid message indexes, truncated messages, 200 levels, and a time after the year 9999."""
    with pytest.raises(DeserializationError) as caught:
        SCHEMA.decode(data)

    assert "undecodable" == caught.value.kind


def test_any_messages_have_a_maximum_depth():
    """Each level of Any messages is parsed again, so the number of levels is limited."""
    special = message("Special")
    for _ in range(30):
        outer = message("Special")
        outer.any.Pack(special)
        special = outer

    with pytest.raises(DeserializationError):
        decode("Special", special)


@pytest.mark.parametrize(
    ("name", "large"),
    [
        ("Repeated", lambda: message("Repeated", a_int64=[5] * 20_000)),
        ("Repeated", lambda: message("Repeated", a_float=[0.1] * 8_000)),
        ("Order", lambda: message("Order", item=[{}] * 10_000)),
        ("Order", lambda: message("Order", null=[0] * 20_000)),
        ("Special", lambda: message("Special", list={"values": [{"null_value": 0}] * 8_000})),
    ],
)
def test_a_large_message_does_not_stall_the_event_loop(name, large):
    data = large().SerializeToString()

    assert most_lines_in_a_piece(lambda: decode(name, data)) < MAX_LINES
