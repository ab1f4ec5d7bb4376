"""The streams as an AsyncAPI 3.0 document: the topics that kafkasse reads, and the streams that it sends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kafkasse import __version__
from kafkasse.route import is_pattern
from kafkasse.web.describe import events
from kafkasse.web.describe.events import Schema, data_schema, shared_schemas, value_of
from kafkasse.web.describe.security import Scheme
from kafkasse.web.describe.streams import StreamDescription

_KAFKA_BINDING = "0.5.0"
_HTTP_BINDING = "0.3.0"
# Clients of this server do not connect to Kafka, so the document does not contain the addresses of the brokers.
_KAFKA_SERVER = {
    "host": "{cluster}",
    "protocol": "kafka",
    "variables": {"cluster": {"description": "The Kafka cluster that the server reads. It is not published."}},
}


def asyncapi(streams: Sequence[StreamDescription]) -> dict[str, Any]:
    """Return the document without its server `http`, whose address depends on the request.

    `streams` are those that the visitor may see.
    """
    keys = _keys(sorted({topic for stream in streams for topic in stream.topics}))
    values = {topic: value_of(stream, topic) for stream in streams for topic in stream.schemas}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Streams",
            "version": __version__,
            "description": "kafkasse reads Kafka topics and sends their records as Server-Sent Events. The OpenAPI document "
            "also describes finite reads.",
        },
        "servers": {"kafka": _KAFKA_SERVER},
        "channels": {key: _topic(topic, values.get(topic, {})) for topic, key in keys.items()}
        | {f"stream_{stream.name}": _stream(stream) for stream in streams},
        "operations": {
            f"receive_{key}": {"action": "receive", "channel": {"$ref": f"#/channels/{key}"}} for key in keys.values()
        }
        | {f"send_{stream.name}": _send(stream) for stream in streams},
        "components": {
            "schemas": shared_schemas(streams),
            "securitySchemes": {name: _scheme(scheme) for stream in streams for name, scheme in stream.schemes.items()},
        },
    }


def _keys(topics: Sequence[str]) -> dict[str, str]:
    """Return a unique key for each topic. A key must not contain dots or the characters of patterns."""
    keys: dict[str, str] = {}
    for topic in topics:
        key = "topic_" + re.sub(r"[^A-Za-z0-9_-]", "_", topic)
        while key in keys.values():
            key += "_"
        keys[topic] = key
    return keys


def _topic(topic: str, value: Schema) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "servers": [{"$ref": "#/servers/kafka"}],
        "messages": {
            "record": {
                "description": "A record.",
                "payload": value,
                "bindings": {"kafka": {"key": {"type": "string"}, "bindingVersion": _KAFKA_BINDING}},
            }
        },
    }
    if is_pattern(topic):
        return channel | {"address": None, "description": f"All topics whose names match {topic}."}
    return channel | {"address": topic, "bindings": {"kafka": {"topic": topic, "bindingVersion": _KAFKA_BINDING}}}


def _stream(stream: StreamDescription) -> dict[str, Any]:
    channel = {
        "address": stream.path,
        "title": stream.name,
        "description": stream.description or f"The records of {', '.join(stream.topics)}.",
        "servers": [{"$ref": "#/servers/http"}],
        "messages": {event: _message(stream, event) for event in stream.events},
    }
    if stream.parameters:
        what = "One or more topics, separated by commas." if stream.is_open else "Selects the records."
        channel["parameters"] = {name: {"description": what} for name in stream.parameters}
    return channel


def _message(stream: StreamDescription, event: str) -> dict[str, Any]:
    return {
        "name": event,
        "title": f"An event of the type {event}",
        "description": events.DESCRIPTIONS[event],
        "contentType": "application/json" if events.is_json(stream, event) else "text/plain",
        "payload": data_schema(stream, event),
    }


def _send(stream: StreamDescription) -> dict[str, Any]:
    query = {name: {"type": "string"} for name in ("lastEventId", "timestamp", "since", *stream.filters)}
    http = {"method": "GET", "query": {"type": "object", "properties": query}, "bindingVersion": _HTTP_BINDING}
    operation: dict[str, Any] = {
        "action": "send",
        "channel": {"$ref": f"#/channels/stream_{stream.name}"},
        "summary": "Server-Sent Events (text/event-stream). The server sends them in the response to a GET request.",
        "bindings": {"http": http},
    }
    if security := [{"$ref": f"#/components/securitySchemes/{name}"} for name in stream.schemes]:
        operation["security"] = security
    return operation


def _scheme(scheme: Scheme) -> Scheme:
    """Return a security scheme of OpenAPI as one of AsyncAPI, which has another name for the same type."""
    return scheme | {"type": "httpApiKey"} if scheme["type"] == "apiKey" else scheme
