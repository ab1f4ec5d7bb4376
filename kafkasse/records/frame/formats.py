"""The formats of a route: what a client receives as the data of a record.

A format does not know how the data is framed, and does not see event IDs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kafkasse.log import Record
from kafkasse.records.frame.json_text import (
    MAX_DECODED_BYTES,
    MAX_NUMBER_DIGITS,
    TakeTurn,
    dumps,
    escape_line_separators,
    has_line_separator,
    is_json,
    is_utf8,
    loads,
    may_have_long_number,
    without_lone_surrogates,
    without_member,
)

_OPENING_BRACE, _CLOSING_BRACE, _SPACE, _LF, _CR = b"{} \n\r"  # numbers: for bytes, `in` takes ten times as long
_PLAIN_KEY = re.compile(rb"[A-Za-z0-9 ._:/@#+-]*")  # needs no escaping in JSON
_ATTRIBUTE = re.compile(r"ce_(?!specversion$|data$|datacontenttype$)([a-z0-9]+)")  # attributes that a producer may set


class Payload(NamedTuple):
    """An event without its ID: the event name, and the data in UTF-8."""

    event: str
    data: bytes


Format = Callable[[str, int, Record, TakeTurn], Payload]  # calls its last argument after each piece of a large value


def as_kafkasse(topic: str, partition: int, record: Record, take_turn: TakeTurn) -> Payload:
    """KafkaSSE's format: a JSON object with the member `_kafka` added. Any other JSON value is sent unchanged.

    A `_kafka` member in the value is removed, so that a producer cannot forge the position of its record.
    """
    value = record.value
    if value is None:
        return Payload("delete", b'{"_kafka":' + kafka_member(topic, partition, record) + b"}")
    is_object, has_kafka = _outline(value, take_turn)
    value = escape_line_separators(value)
    if not is_object:
        return Payload("message", value)
    if has_kafka:
        value = without_member(value, "_kafka", take_turn)
    head = value[: value.rindex(b"}")]
    separator = b"" if head.rstrip().endswith(b"{") else b","
    return Payload("message", b'%b%b"_kafka":%b}' % (head, separator, kafka_member(topic, partition, record)))


def _outline(value: bytes, take_turn: TakeTurn) -> tuple[bool, bool]:
    """Return whether JSON is an object, and whether that object has a member `_kafka`.

    Raises:
        DeserializationError: the value is not JSON.
    """
    if len(value) > MAX_DECODED_BYTES and is_json(value, take_turn):
        with suppress(msgspec.MsgspecError, RecursionError):  # not an object, or a lone surrogate
            return True, _find_members(value).kafka is not msgspec.UNSET
        if not value.lstrip().startswith(b"{"):
            return False, False
        with suppress(msgspec.MsgspecError, RecursionError):  # nested too deeply
            return True, _find_members(without_lone_surrogates(value, take_turn)).kafka is not msgspec.UNSET
    message = loads(value)
    return type(message) is dict, type(message) is dict and "_kafka" in message


def as_value(topic: str, partition: int, record: Record, take_turn: TakeTurn) -> Payload:
    """The value unchanged, or in base64 with the event name `base64` if SSE cannot carry it."""
    value = record.value
    if value is None:
        return Payload("delete", dumps(_text_member("key", record.key)))
    if is_utf8(value) and (b"\r" not in value or is_json(value, take_turn)):
        return Payload("message", value)
    return Payload("base64", base64.b64encode(value))


def as_envelope(topic: str, partition: int, record: Record, take_turn: TakeTurn) -> Payload:
    """A JSON object with topic, partition, offset, timestamp, key, headers and value."""
    encoding = _encoding(record.value, take_turn)
    members = [
        kafka_member(topic, partition, record)[:-1],
        b'"headers":' + dumps([{"key": name, **_text_member("value", value)} for name, value in record.headers]),
        b'"value":' + _embedded(record.value, encoding),
    ]
    if encoding != "json":
        members.append(b'"value_encoding":"%b"' % encoding.encode())
    return Payload("message" if record.value is not None else "delete", b",".join(members) + b"}")


def as_cloudevent(topic: str, partition: int, record: Record, take_turn: TakeTurn) -> Payload:
    """A CloudEvent 1.0 in JSON. Attributes from the record's headers (Kafka's binary binding) override the defaults."""
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{topic}/{partition}/{record.offset}",
        "source": f"/kafka/{topic}/{partition}",
        "type": "kafka.record" if record.value is not None else "kafka.tombstone",
    }
    if record.timestamp is not None and record.timestamp >= 0:
        attributes["time"] = _rfc3339(record.timestamp)
    if record.key and is_utf8(record.key):  # CloudEvents allows no empty subject
        attributes["subject"] = record.key.decode()
    headers = {name: value.decode() for name, value in record.headers if value and is_utf8(value)}
    attributes |= {match[1]: value for name, value in headers.items() if (match := _ATTRIBUTE.fullmatch(name))}
    if record.value is None:
        # The key of a delete event, even if a header has replaced the subject. Attribute names have no underscores.
        attributes.pop("keyencoding", None)
        attributes |= {name.replace("_", ""): text for name, text in _text_member("key", record.key).items()}
    members = [dumps(attributes)[1:-1], *_cloudevent_data(record.value, headers.get("content-type"), take_turn)]
    return Payload("message" if record.value is not None else "delete", b"{" + b",".join(members) + b"}")


def _cloudevent_data(value: bytes | None, content_type: str | None, take_turn: TakeTurn) -> list[bytes]:
    """Return the members of a CloudEvent that hold the value, encoded as its declared content type requires."""
    if value is None:
        return []
    encoding = _encoding(value, take_turn)
    if encoding == "json" and content_type and not re.search(r"[/+]json\b", content_type, re.IGNORECASE):
        encoding = "text"
    content_type = content_type or {"json": "application/json", "text": "text/plain"}.get(encoding)
    name = b'"data_base64":' if encoding == "base64" else b'"data":'
    members = [b'"datacontenttype":' + dumps(content_type)] if content_type else []
    return [*members, name + _embedded(value, encoding)]


FORMATS: dict[str, Format] = {
    "kafkasse": as_kafkasse,
    "value": as_value,
    "envelope": as_envelope,
    "cloudevents": as_cloudevent,
}


def kafka_member(topic: str, partition: int, record: Record) -> bytes:
    """Return the value of `_kafka`: a JSON object with the record's topic, partition, offset, timestamp and key.

    Kafka allows no characters in a topic name that JSON would have to escape.
    """
    key = record.key
    is_plain = key is not None and _PLAIN_KEY.fullmatch(key)
    key_member = b'"key":"%s"' % key if is_plain else dumps(_text_member("key", key))[1:-1]
    timestamp = record.timestamp
    return b'{"topic":"%s","partition":%d,"offset":%d,"timestamp":%s,%s}' % (
        topic.encode(),
        partition,
        record.offset,
        b"null" if timestamp is None or timestamp < 0 else b"%d" % timestamp,
        key_member,
    )


class _Members(msgspec.Struct, gc=False):
    """A JSON object of which only the members `_kafka` and `event` are found, however their names are escaped."""

    kafka: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="_kafka", default=msgspec.UNSET)
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


# Validates the whole value, except that it does not check that the text is valid UTF-8.
_find_members = msgspec.json.Decoder(_Members).decode


def can_append_member(value: bytes, is_line: bool = False) -> bool:
    """Return whether `value` can be extended by replacing its last byte with `,"_kafka":{…}}`, as as_kafkasse() would.

    This is possible if `value` is a JSON object on one line that has members, but no member `_kafka`, no space before or
    after its closing brace, and no character that as_kafkasse() would escape. A line may have no member `event`, either.
    """
    try:
        message = _find_members(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return (
        message.kafka is msgspec.UNSET
        and not (is_line and message.event is not msgspec.UNSET)
        and value[-1] == _CLOSING_BRACE
        and value[-2] > _SPACE
        and value[-2] != _OPENING_BRACE
        and _LF not in value
        and _CR not in value
        and (value.isascii() or _is_plain_utf8(value))
        and (len(value) <= MAX_NUMBER_DIGITS or not may_have_long_number(value))  # the first test saves a call
    )


def _is_plain_utf8(value: bytes) -> bool:
    try:
        return not has_line_separator(value.decode())
    except UnicodeDecodeError:
        return False


def _text_member(name: str, value: bytes | None) -> dict[str, Any]:
    """Return bytes as a JSON member: as text if they are UTF-8, else as base64 with a member that gives the encoding."""
    if value is None:
        return {name: None}
    if is_utf8(value):
        return {name: value.decode()}
    return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


def _encoding(value: bytes | None, take_turn: TakeTurn) -> str:
    if value is None or is_json(value, take_turn):
        return "json"
    return "text" if is_utf8(value) else "base64"


def _embedded(value: bytes | None, encoding: str) -> bytes:
    """Return a value as JSON text that can be embedded in an object."""
    if value is None:
        return b"null"
    match encoding:
        case "json":
            return escape_line_separators(value)
        case "text":
            return dumps(value.decode())
        case _:
            return b'"' + base64.b64encode(value) + b'"'


def _rfc3339(timestamp_ms: int) -> str:
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59.999Z"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
