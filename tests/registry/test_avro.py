"""Avro values become JSON types, and hostile data ends in an error after a short time."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import jsonschema
import pytest
from fastavro import _read_py

from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry.avro import AvroSchema
from kafkasse.records.registry.client import RegisteredSchema
from tests.registry.avro_values import NODE, VALUES, encoded, logical, record, varint
from tests.support.turns import MAX_LINES, most_lines_in_a_piece


def compiled(schema: Any, references: Sequence[Any] = ()) -> AvroSchema:
    registered = [RegisteredSchema("AVRO", json.dumps(reference), ()) for reference in (*references, schema)]
    return AvroSchema(registered[-1], {str(number): reference for number, reference in enumerate(registered[:-1])})


@pytest.mark.parametrize(("schema", "value", "expected"), VALUES)
def test_values_become_json_types(schema, value, expected):
    """Each type has a JSON form, at the top and inside a record."""
    inside = {**record(a=schema), "name": "Outer"}

    assert expected == compiled(schema).decode(encoded(schema, value))
    assert {"a": expected} == compiled(inside).decode(encoded(inside, {"a": value}))


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (logical("bytes", "decimal"), b"a", "YQ=="),
        *((logical("bytes", "decimal", precision=2, scale=scale), b"a", "YQ==") for scale in (-1, 3, "1")),
        (logical("fixed", "duration", name="D", size=3), b"abc", "YWJj"),
        (logical("fixed", "uuid", name="U", size=3), b"abc", "YWJj"),
        ({"type": "string", "logicalType": ["uuid"]}, "x", "x"),
    ],
)
def test_a_logical_type_that_is_not_valid_is_ignored(schema, value, expected):
    """Avro's specification requires this. The value is described as what it is."""
    compiled_schema = compiled(schema)

    assert expected == compiled_schema.decode(encoded({**schema, "logicalType": "none"}, value))
    jsonschema.Draft202012Validator(compiled_schema.json_schema()).validate(expected)


@pytest.mark.parametrize(("schema", "value", "expected"), VALUES)
def test_the_json_schema_matches_the_values(schema, value, expected):
    """Numbers that ISO 8601 cannot express are the exception."""
    described = compiled({**record(a=schema), "name": "Outer"}).json_schema()

    if not (isinstance(schema, dict) and "time" in schema.get("logicalType", "") and isinstance(expected, int)):
        jsonschema.Draft202012Validator(described).validate({"a": expected})


def test_the_json_schema_of_a_recursive_schema_has_references():
    """A named type becomes a definition, with its documentation."""
    assert {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}]}},
                "required": ["next"],
                "description": "A list.",
            }
        },
    } == compiled({**NODE, "doc": "A list."}).json_schema()


def test_references_define_named_types():
    """A schema may use the types of other schemas, with and without the namespace that both share."""
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "a", "type": "Money"}, {"name": "b", "type": ["null", "shop.Money"]}],
    }
    value = {"a": {"cents": 1}, "b": {"cents": 2}}

    assert value == compiled(order, [money]).decode(encoded(order, value, [money]))
    assert value == compiled(["null", "shop.Order"], [money, order]).decode(b"\2" + encoded(order, value, [money]))


@pytest.mark.parametrize("schema", ["bytes", {"type": "bytes"}])
@pytest.mark.parametrize("value", [b"", b"a", b"\2", b"\2ab", b"\xff" * 20_000])
def test_confluents_java_client_writes_bytes_without_a_length(schema, value):
    assert base64.b64encode(value).decode() == compiled(schema).decode(value)
    assert base64.b64encode(value).decode() == compiled(schema).decode(encoded(schema, value))


def test_a_type_with_a_namespace_may_use_one_without():
    """A name is first resolved in the enclosing namespace, as in Java."""
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    inner = {
        "type": "record",
        "name": "Line",
        "namespace": "shop",
        "fields": [{"name": "of", "type": ["Money", "Order"]}],
    }
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": ["null", inner]}]}
    schema = compiled(order, [money])

    assert {"line": {"of": {"line": {"of": {"cents": 5}}}}} == schema.decode(b"\2\2\2\0\x0a")
    assert {"Money", "Order", "shop.Line"} == schema.json_schema()["$defs"].keys()


ARRAY = {"type": "array", "items": "long"}
MALFORMED: list[tuple[Any, bytes]] = [
    ("long", b""),
    ("long", b"\xff" * 1_000_000),
    ("string", varint(2**62) + b"abc"),
    ("string", b"\1abc"),
    ("string", b"\2\xff"),
    (record(a="bytes"), varint(2**40)),
    (ARRAY, varint(2**62)),
    (ARRAY, b"\1" + varint(2**62)),
    ({"type": "map", "values": "null"}, varint(2**62)),
    (["null", "long"], varint(7)),
    (["null", "long"], b"\1"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, varint(9)),
    (logical("bytes", "decimal", precision=9, scale=2), varint(1_000_000) + b"\x7f" * 1_000_000),
    (NODE, b"\2" * 1_000_000),
    (NODE, b"\x82" + b"\x80" * 10 + b"\0\0"),  # a number of 12 bytes; one of 1 MB would take minutes
    ({"type": "record", "name": "T", "fields": [{"name": "a", "type": {"type": "array", "items": "T"}}]}, b"\2" * 1_000_000),
    ({"type": "record", "name": "T", "fields": [{"name": "a", "type": {"type": "map", "values": "T"}}]}, b"\2\0" * 500_000),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "data"), MALFORMED)
def test_data_that_is_not_of_the_schema_is_an_error(schema, data):
    """The error does not contain data of the record. The process survives a million levels."""
    with pytest.raises(DeserializationError, match=r"^the value is not Avro of its schema: \w+$") as caught:
        compiled(schema).decode(data)

    assert "undecodable" == caught.value.kind


def test_fastavro_has_the_private_names_that_are_replaced():
    """Without them, hostile data would reach the decoder of fastavro. `make compat` installs other versions."""
    version = f"fastavro {fastavro.__version__}"

    assert "BinaryDecoder" in _read_py.schemaless_reader.__code__.co_names, f"{version} uses another decoder"
    for name in ("read_int", "read_long"):
        assert hasattr(_read_py.BinaryDecoder, name), f"{version} has no BinaryDecoder.{name}"
    assert hasattr(_read_py.BinaryDecoder(None), "fo"), f"{version} has no BinaryDecoder.fo"


@pytest.mark.parametrize(
    "items", ["null", record(), record(a="null", b=record()), {"type": "fixed", "name": "F", "size": 0}]
)
def test_arrays_whose_items_take_up_no_bytes_are_rejected(items):
    """Ten bytes could be an array with 2**63 items."""
    with pytest.raises(ValueError, match="an array whose items take up no bytes"):
        compiled({"type": "array", "items": items})


@pytest.mark.parametrize(
    ("items", "data"),
    [
        ("long", b"\2" * 30_000),
        ({"type": "array", "items": "long"}, b"\0" * 30_000),
        ({"type": "map", "values": "long"}, b"\0" * 30_000),
        ("double", bytes(8) * 12_500),
        (logical("long", "timestamp-millis"), b"\2" * 20_000),
        (record(a="bytes"), b"\0" * 20_000),
    ],
)
def test_a_large_value_does_not_stall_the_event_loop(items, data):
    schema = compiled({"type": "array", "items": items})
    count = len(data) // 8 if items == "double" else len(data)

    assert most_lines_in_a_piece(lambda: schema.decode(varint(count) + data + b"\0")) < MAX_LINES
