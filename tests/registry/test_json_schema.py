"""JSON Schema: values are JSON, and can be validated within limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry import json_schema
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.json_schema import JsonSchema
from tests.support.turns import MAX_LINES, most_lines_in_a_piece


def compiled(schema: Any, **references: Any) -> JsonSchema:
    def registered(contents: Any) -> RegisteredSchema:
        return RegisteredSchema("JSON", json.dumps(contents), ())

    return JsonSchema(
        registered(schema), {f"{name}.json": registered(contents) for name, contents in references.items()}
    )


def test_a_valid_value():
    """The value is returned, whether it is validated or not."""
    schema = compiled({"type": "object", "required": ["a"]})

    assert {"a": 1.5} == schema.decode(b'{"a":1.5}', validate=True)
    assert {"b": 1.5} == schema.decode(b'{"b":1.5}')


def test_an_invalid_value():
    """The error names the place and the keyword, but contains no data of the record."""
    schema = compiled({"properties": {"a": {"items": {"type": "integer"}}}})

    with pytest.raises(
        DeserializationError, match=r"^the value does not match its schema: type at \$\.a\[1\]$"
    ) as caught:
        schema.decode(b'{"a":[1,"secret"]}', validate=True)

    assert "invalid" == caught.value.kind
    for value in (b"{", b"1e400"):  # 1e400 would become null
        with pytest.raises(DeserializationError, match="the value is not JSON"):
            schema.decode(value)


@pytest.mark.parametrize("schema", [{"pattern": r"^\p{L}+$"}, {"type": "text"}, []])
def test_a_schema_that_cannot_validate_decodes(schema):
    """Only a route that validates values needs a validator. Other validators accept Unicode properties in a pattern."""
    assert "a" == compiled(schema).decode(b'"a"')
    with pytest.raises(DeserializationError, match=r"^the schema cannot validate values: ") as caught:
        compiled(schema).decode(b'"a"', validate=True)

    assert "invalid_schema" == caught.value.kind


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"multipleOf": 0.1}, b"1" + b"0" * 400),
        ({"$ref": "#/items/x", "items": [{}]}, b"1"),
    ],
)
def test_a_failure_of_the_validator_is_an_error_of_the_record(schema, data):
    """Otherwise, the record would end the stream after each reconnect."""
    with pytest.raises(DeserializationError, match=r"^the value cannot be validated: \w+$"):
        compiled(schema).decode(data, validate=True)


DRAFT4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


@pytest.mark.parametrize(
    "base", [{}, {"$id": "https://shop.example/o.json"}, {**DRAFT4, "id": "https://shop.example/o.json"}]
)
def test_references(base):
    """A $ref may contain the name of a reference, also if the schema has an ID of its own."""
    schema = compiled({**base, "items": {"$ref": "money.json"}}, money={"type": "integer"})

    assert [1] == schema.decode(b"[1]", validate=True)
    with pytest.raises(DeserializationError):
        schema.decode(b'["1"]', validate=True)


def test_a_schema_with_references_is_described_as_any_value():
    """A document would lack the schemas to which it refers. Events may have the member `_kafka` too."""
    assert {"type": "string"} == compiled({"type": "string"}).json_schema()
    assert {} == compiled(True).json_schema() == compiled({"type": "text"}).json_schema()
    assert {"type": "object"} == compiled({"type": "object", "additionalProperties": False}).json_schema()
    assert {} == compiled({"items": {"$ref": "money.json"}}, money={"type": "integer"}).json_schema()


def test_an_unknown_reference_is_not_downloaded():
    with pytest.raises(DeserializationError, match="a \\$ref of the schema cannot be resolved"):
        compiled({"$ref": "http://127.0.0.1:9/schema.json"}).decode(b"1", validate=True)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1}, 1, 0),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "minimum": 1}, 1, 0),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", "minimum": 1}, 1, 0),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "minimum": 1}, 1, 0),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 2}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
        ({"uniqueItems": True}, [{"a": "\ud800", "b": 1}, {}], [{"a": "\ud800", "b": 1}, {"b": 1, "a": "\ud800"}]),
    ],
)
def test_keywords(schema, valid, invalid):
    """`$schema` chooses the draft. The order of members does not matter."""
    assert valid == compiled(schema).decode(json.dumps(valid).encode(), validate=True)
    with pytest.raises(DeserializationError):
        compiled(schema).decode(json.dumps(invalid).encode(), validate=True)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"type": "integer", "minimum": 0}}, list(range(1_000))),
        ({"uniqueItems": True}, [{"a": number} for number in range(20_000)]),
        ({"additionalProperties": {"type": "integer"}}, {str(number): 1 for number in range(1_000)}),
        ({"items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, list(range(400))),
    ],
)
def test_validation_does_not_stall_the_event_loop(schema, value):
    data = json.dumps(value).encode()

    assert most_lines_in_a_piece(lambda: compiled(schema).decode(data, validate=True)) < MAX_LINES


def test_a_large_schema_does_not_stall_the_event_loop():
    properties = {str(number): {"type": ["null", "string"]} for number in range(1_000)}

    assert most_lines_in_a_piece(lambda: compiled({"properties": properties})) < MAX_LINES


NODE = {"items": {"$ref": "#"}}


@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
@pytest.mark.parametrize(
    ("schema", "depth", "max_steps"),
    [
        (
            {"anyOf": [{**NODE, "required": ["a"], "type": "object"}, {"anyOf": [{**NODE, "not": {}}, NODE]}]},
            60,
            10_000,
        ),
        (NODE, 900, json_schema.MAX_STEPS),
    ],
    ids=["alternatives", "deep"],
)
def test_validation_has_limits(schema, depth, max_steps, dialect, monkeypatch):
    """Alternatives in a recursive schema take a number of steps that is exponential in the depth of the value."""
    monkeypatch.setattr(json_schema, "MAX_STEPS", max_steps)

    with pytest.raises(DeserializationError, match="validation of the value exceeds the limits"):
        compiled({**schema, **dialect}).decode(b"[" * depth + b"]" * depth, validate=True)


def test_a_value_that_is_nested_too_deeply_is_an_error_wherever_the_recursion_ends():
    """A library in Rust raises a BaseException at the recursion limit, which no stream would handle."""
    schema = compiled({"type": "array", "items": {"$ref": "#"}})

    def decode(frames: int) -> None:
        if frames:
            decode(frames - 1)
        else:
            schema.decode(b"[" * 200 + b"]" * 200, validate=True)

    for frames in range(20):
        with pytest.raises(DeserializationError, match="validation of the value exceeds the limits"):
            decode(frames)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {"": True}, "unevaluatedProperties": False}, {str(n): n for n in range(2_001)}),
        ({"contains": {"type": "integer"}, "unevaluatedItems": False}, list(range(2_001))),
    ],
)
def test_unevaluated_members_have_a_limit(schema, value):
    """jsonschema compares each pair of them: an object of 1 MB would take minutes."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

    with pytest.raises(DeserializationError, match="validation of the value exceeds the limits"):
        compiled({**dialect, **schema}).decode(json.dumps(value).encode(), validate=True)
