"""The streams as an OpenAPI 3.2 document, which describes each event of `text/event-stream` with `itemSchema`.

An operation describes a stream and its finite reads, because they have the same URL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafkasse import __version__
from kafkasse.errors import KafkasseError, pages
from kafkasse.records.filter.language import MAX_CHARS
from kafkasse.settings import WebSettings
from kafkasse.web.describe import events
from kafkasse.web.describe.events import Schema, data_schema, ref, shared_schemas
from kafkasse.web.describe.security import TICKET
from kafkasse.web.describe.streams import StreamDescription

_ACCESS_STATUSES = (401, 403)  # only of streams that need credentials
_IN_STREAM = "FilterError"
_DEFINITIONS: Mapping[str, tuple[str, Schema]] = {
    "timestamp": (
        "Start at the first record at or after this time, in milliseconds since 1970.",
        {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    ),
    "since": (
        "Start at the first record at or after this time: in ISO 8601, or in milliseconds since 1970. Cannot be combined "
        "with `timestamp`.",
        {"type": "string", "examples": ["2026-01-31T12:00:00Z"]},
    ),
    "offset": (
        "Read one chunk: at the first record (`-1`), at the end of the log (`now`), or at the `Stream-Next-Offset` of a "
        "response.",
        {"type": "string", "pattern": r"^(-1|now|[a-z][0-9]+\.[A-Za-z0-9_-]+)$"},
    ),
    "live": (
        "At the end of the log, wait for records (`long-poll`), or receive chunks as events (`sse`). `events`, without "
        "`offset`: a response with the events of the stream that ends.",
        {"type": "string", "enum": ["long-poll", "sse", "events"]},
    ),
    "cursor": ("The `Stream-Cursor` of the last response to a live read.", {"type": "string"}),
}
_OFFSET = "Stream-Next-Offset"
_HEADERS: Mapping[str, tuple[str, Schema]] = {
    "Retry-After": ("Seconds to wait before a retry.", {"type": "integer"}),
    _OFFSET: ("The offset of the next finite read.", {"type": "string"}),
    "Stream-Up-To-Date": ("The chunk ends at the end of the log.", {"const": "true"}),
    "Stream-Cursor": ("Send it as `cursor` with the next live read.", {"type": "string"}),
    "ETag": ("Send it as If-None-Match with the same finite read.", {"type": "string"}),
}
_CONTROL: Schema = {
    "type": "object",
    "properties": {
        "streamNextOffset": {"type": "string"},
        "streamCursor": {"type": "string"},
        "upToDate": {"const": True},
    },
    "required": ["streamNextOffset", "streamCursor"],
    "additionalProperties": False,
}


def openapi(streams: Sequence[StreamDescription], settings: WebSettings) -> dict[str, Any]:
    """Return the document without its server, whose address depends on the request.

    `streams` are those that the visitor may see.
    """
    return {
        "openapi": "3.2.0",
        "info": {
            "title": "Streams",
            "version": __version__,
            "description": "Kafka topics as Server-Sent Events. A stream is a response that does not end. With `offset`, a "
            "response is a chunk of the stream, as in the Durable Streams protocol.",
        },
        "servers": [],
        "paths": {stream.path: _path(stream, settings) for stream in streams} | _ticket_path(streams),
        "components": {
            "schemas": shared_schemas(streams)
            | {_line_name(stream): {"anyOf": [*_lines(stream)]} for stream in streams},
            "parameters": _parameters(settings),
            "headers": {
                name: {"description": description, "schema": schema} for name, (description, schema) in _HEADERS.items()
            },
            "responses": {str(status): _rejection(errors) for status, errors in _errors().items()},
            "securitySchemes": {name: scheme for stream in streams for name, scheme in stream.schemes.items()},
        },
    }


def _path(stream: StreamDescription, settings: WebSettings) -> dict[str, Any]:
    parameters = [_path_parameter(stream, name, settings) for name in stream.parameters]
    parameters += [_filter(name, description) for name, description in stream.filters.items()]
    shared = [{"$ref": f"#/components/parameters/{name}"} for name in _parameters(settings)]
    operation = {
        "description": _description(stream),
        "security": [{name: []} for name in stream.schemes],
        "parameters": parameters + shared,
    }
    rejections = {
        str(status): {"$ref": f"#/components/responses/{status}"}
        for status in _errors()
        if not (stream.is_public and status in _ACCESS_STATUSES)
    }
    return {
        "get": {
            "operationId": stream.name,
            "summary": f"Read the stream {stream.name}",
            **operation,
            "responses": {
                "200": _stream(stream),
                "204": _response("A long poll has received no records.", _OFFSET, "Stream-Up-To-Date", "Stream-Cursor"),
                "304": _response("The chunk is unchanged.", _OFFSET, "Stream-Up-To-Date", "ETag"),
                **rejections,
            },
        },
        "head": {
            "operationId": f"check-{stream.name}",  # names of routes contain no hyphens
            "summary": f"Get the offset at the end of the stream {stream.name}",
            **operation,
            "responses": {"200": _response("GET would succeed.", _OFFSET), **rejections},
        },
    }


def _ticket_path(streams: Sequence[StreamDescription]) -> dict[str, Any]:
    """Return the path at which a client requests a ticket, if one of the streams accepts tickets."""
    schemes = {name for stream in streams for name in stream.schemes}
    if TICKET not in schemes:
        return {}
    path = {
        "name": "path",
        "in": "query",
        "required": True,
        "description": "The path of the stream, without the prefix.",
    }
    ticket = {"type": "object", "properties": {"ticket": {"type": "string"}, "expires_in": {"type": "integer"}}}
    operation = {
        "operationId": "request-ticket",
        "summary": "Exchange a token for a ticket, which may be part of the URL of a stream",
        "security": [{name: []} for name in sorted(schemes - {TICKET})],
        "parameters": [path | {"schema": {"type": "string", "examples": ["/me/orders"]}}],
        "responses": {
            "200": {"description": "The ticket.", "content": {"application/json": {"schema": ticket}}},
            **{
                status: {"$ref": f"#/components/responses/{status}"}
                for status in ("400", "401", "403", "405", "429", "503")
            },
        },
    }
    return {"/-/ticket": {"post": operation}}


def _description(stream: StreamDescription) -> str:
    topics = ", ".join(stream.topics)
    what = f"The topics to choose from: {topics}." if stream.is_open else f"Topics: {topics}."
    return f"{stream.description}\n\n{what} Format: {stream.format}. Start without an event ID: {stream.start}.".strip()


def _stream(stream: StreamDescription) -> dict[str, Any]:
    response = _response("The stream, or a chunk.", _OFFSET, "Stream-Up-To-Date", "Stream-Cursor", "ETag")
    return response | {
        "content": {
            "text/event-stream": {"itemSchema": _server_sent_event(stream)},
            "application/x-ndjson": {"itemSchema": ref(_line_name(stream))},
            "application/json": {"schema": _chunk(stream)},
        }
    }


def _response(description: str, *headers: str) -> dict[str, Any]:
    return {"description": description, "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in headers}}


def _line_name(stream: StreamDescription) -> str:
    return f"Line.{stream.name}"


def _chunk(stream: StreamDescription) -> Schema:
    return {"type": "array", "items": ref(_line_name(stream))}


def _server_sent_event(stream: StreamDescription) -> Schema:
    """Return the schema of an event after it was parsed: an object with the fields of the event."""
    return {
        "type": "object",
        "properties": {
            "id": {
                "type": "string",
                "description": "The event ID. Send it as Last-Event-ID to resume after this event.",
            },
            "retry": {"type": "integer", "description": "Milliseconds to wait before a reconnection."},
        },
        "oneOf": [
            {
                "description": "Only `retry`, or only an event ID.",
                "minProperties": 1,
                "properties": {"event": False, "data": False},
            },
            *(_event(event, events.DESCRIPTIONS[event], _text_of(stream, event)) for event in stream.events),
            _event("data", "With `live=sse`: a chunk.", _json_text(_chunk(stream))),
            _event("control", "With `live=sse`: where the chunk ends.", _json_text(_CONTROL)),
        ],
    }


def _event(event: str, description: str, text: Schema) -> Schema:
    return {
        "description": description,
        "required": ["event", "data"],
        "properties": {"event": {"const": event}, "data": text},
    }


def _text_of(stream: StreamDescription, event: str) -> Schema:
    """Return the schema of the field `data`, which is text."""
    schema = data_schema(stream, event)
    if not events.is_json(stream, event):
        return {"type": "string"} | schema
    return _json_text(schema)


def _json_text(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def _lines(stream: StreamDescription) -> Iterable[Schema]:
    """Yield the schema of each kind of line. A `position` line is always the end of a snapshot."""
    if stream.start == "snapshot":
        yield _marked("position", data_schema(stream, "position"))
    for event in stream.events:
        schema = data_schema(stream, event)
        match event:
            case "position":
                continue
            case "message":
                yield schema
                yield _wrapped(event, schema)
            case "base64":
                yield _wrapped(event, schema)
            case _:
                yield _marked(event, schema)


def _marked(event: str, schema: Schema) -> Schema:
    marked = {"type": "object", "required": ["event"], "properties": {"event": {"const": event}}}
    return {"allOf": [marked, schema]}


def _wrapped(event: str, schema: Schema) -> Schema:
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": event}, "data": schema}}


def _parameters(settings: WebSettings) -> dict[str, Any]:
    """Return the parameters that all streams have, by name."""
    compact = {"type": "string", "pattern": "^~~[A-Za-z0-9_-]*~$"}
    event_id = {"anyOf": [_json_text(ref("LastEventId")), compact], "maxLength": settings.max_last_event_id_bytes}
    resume = "Resume after the event with this ID, in its JSON form or its compact form."
    header = {"name": "Last-Event-ID", "in": "header", "description": resume, "schema": event_id}
    return {
        "Last-Event-ID": header,
        "lastEventId": _query("lastEventId", f"{resume} For clients that cannot set headers.", event_id),
        **{name: _query(name, description, schema) for name, (description, schema) in _DEFINITIONS.items()},
    }


def _filter(name: str, description: str) -> dict[str, Any]:
    """Return the parameter of a filter. `header.*` stands for any number of parameters such as `header.type`."""
    if name == "filter":
        return _query(name, description, {"type": "string", "maxLength": MAX_CHARS})
    values = {"type": "array", "items": {"type": "string"}}
    if not name.endswith(".*"):
        return _query(name, description, values)
    prefix = name.removesuffix("*")
    schema = {"type": "object", "propertyNames": {"pattern": f"^{re.escape(prefix)}."}, "additionalProperties": values}
    return _query(prefix + "NAME", description, schema) | {"style": "form", "explode": True}


def _query(name: str, description: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _path_parameter(stream: StreamDescription, name: str, settings: WebSettings) -> dict[str, Any]:
    parameter = {"name": name, "in": "path", "required": True}
    if not stream.is_open:
        return {**parameter, "schema": {"type": "string"}}
    topic = {"type": "string", "pattern": "^[a-zA-Z0-9._-]{1,249}$"}
    groups: list[Schema] = [{"description": "A group of topics.", "enum": list(stream.groups)}] if stream.groups else []
    items = {"anyOf": [*groups, topic]} if groups else topic
    topics = {"type": "array", "items": items, "minItems": 1, "maxItems": settings.max_topics_per_stream}
    return {**parameter, "description": "One or more topics, separated by commas.", "style": "simple", "schema": topics}


def _errors() -> dict[int, list[type[KafkasseError]]]:
    """Return the errors with which a request for a stream can be rejected, by status."""
    errors: dict[int, list[type[KafkasseError]]] = defaultdict(list)
    for error in pages().values():
        if error.__name__ != _IN_STREAM:
            errors[error.status].append(error)
    return dict(sorted(errors.items()))


def _rejection(errors: Sequence[type[KafkasseError]]) -> dict[str, Any]:
    names = {"enum": sorted({error.name for error in errors})}
    schema = {"allOf": [ref("Problem"), {"properties": {"name": names, "status": {"const": errors[0].status}}}]}
    # An unexpected error has this header if a guard of the application has failed.
    has_retry_after = any(error is KafkasseError or "Retry-After" in error("").headers for error in errors)
    return {
        "description": " ".join(dict.fromkeys(error.cause for error in errors)),
        "content": {"application/problem+json": {"schema": schema}},
        **({"headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}} if has_retry_after else {}),
    }
