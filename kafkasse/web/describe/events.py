"""The JSON Schemas of the events, for each format. The documents for tools share them.

A schema refers to another by `#/components/schemas/NAME`, which OpenAPI and AsyncAPI have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafkasse import schemas
from kafkasse.web.describe.streams import StreamDescription

Schema = dict[str, Any]

_PARTS: Mapping[str, Schema] = schemas.read("event")["$defs"]
DESCRIPTIONS = {
    "message": "A record.",
    "delete": "A tombstone: a record with a key and no value. Delete your data for this key.",
    "base64": "A record whose value is not text, in base64.",
    "position": _PARTS["Position"]["description"],
    "gap": _PARTS["Gap"]["description"],
    "error": "The stream has ended because of this error. Reconnect only if its status is above 500.",
}


def ref(name: str) -> Schema:
    """Return a reference to a shared schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def shared_schemas(streams: Iterable[StreamDescription]) -> dict[str, Schema]:
    """Return the schemas to which the events of streams refer, by name."""
    values = {topic: schema for stream in streams for topic, schema in stream.schemas.items()}
    return {_value_name(topic): _embedded(schema, _value_name(topic)) for topic, schema in values.items()} | {
        "LastEventId": _embedded(schemas.read("last-event-id"), "LastEventId"),
        "Problem": _embedded(schemas.read("problem"), "Problem"),
        **_PARTS,
    }


def data_schema(stream: StreamDescription, event: str) -> Schema:
    """Return the schema of the data of an event of a stream, after its JSON was decoded."""
    shared = {"position": ref("Position"), "gap": ref("Gap"), "error": ref("Problem")}
    if event in shared:
        return shared[event]
    if event == "base64":
        return {"type": "string", "contentEncoding": "base64"}
    return _RECORD_SCHEMAS[stream.format](event, _value(stream))


def is_json(stream: StreamDescription, event: str) -> bool:
    """Return whether the data of an event is JSON."""
    return event != "base64" and (event != "message" or stream.format != "value" or bool(_value(stream)))


def value_of(stream: StreamDescription, topic: str) -> Schema:
    """Return the schema of the values of a topic."""
    return ref(_value_name(topic)) if topic in stream.schemas else {}


def _value_name(topic: str) -> str:
    return f"Value.{topic}"


def _value(stream: StreamDescription) -> Schema:
    known = [value_of(stream, topic) for topic in stream.topics]
    if all(known):
        return known[0] if len(known) == 1 else {"anyOf": known}
    if stream.fields:
        return {"type": "object", "properties": {name.split(".")[0]: {} for name in stream.fields}}
    return {}


def _kafkasse(event: str, value: Schema) -> Schema:
    kafka = _object({"_kafka": ref("Record")}, ["_kafka"])
    if event == "delete":
        return kafka
    added = {"if": {"type": "object"}, "then": kafka}  # only an object can have the member
    return {"allOf": [value, added]} if value else added


def _value_alone(event: str, value: Schema) -> Schema:
    if event == "message":
        return value
    return _object({"key": {"type": ["string", "null"]}, "key_encoding": {"const": "base64"}}, ["key"])


def _envelope(event: str, value: Schema) -> Schema:
    members = {
        "headers": ref("Headers"),
        "value": {"type": "null"} if event == "delete" else value,
        "value_encoding": {"enum": ["text", "base64"]},
    }
    return {"allOf": [ref("Record"), _object(members, ["headers", "value"])]}


def _cloudevent(event: str, value: Schema) -> Schema:
    text: Schema = {"type": "string"}
    members: dict[str, Schema] = {"specversion": {"const": "1.0"}} | dict.fromkeys(
        ["id", "source", "type", "subject", "time"], text
    )
    if event == "message":
        members |= {"datacontenttype": text, "data": value, "data_base64": text | {"contentEncoding": "base64"}}
    else:
        members |= {"key": {"type": ["string", "null"]}, "keyencoding": {"const": "base64"}}
    return _object(members, ["specversion", "id", "source", "type", *(["key"] if event == "delete" else [])])


_RECORD_SCHEMAS = {"kafkasse": _kafkasse, "value": _value_alone, "envelope": _envelope, "cloudevents": _cloudevent}


def _object(properties: dict[str, Any], required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _embedded(schema: Mapping[str, Any], name: str) -> Schema:
    """Return a schema with references that are correct inside a document, where its name is `name`."""
    embedded: Schema = _moved(schema, f"#/components/schemas/{name}")
    return embedded


def _moved(value: Any, root: str) -> Any:
    """Change local references so that they start at `root`. A reference to another document accepts everything."""
    if isinstance(value, list):
        return [_moved(item, root) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(member, root) for key, member in value.items() if key not in ("$schema", "$id")}
    reference = moved.get("$ref")
    if isinstance(reference, str):
        if reference == "#" or reference.startswith("#/"):
            moved["$ref"] = root + reference[1:]
        else:
            del moved["$ref"]
    return moved
