"""The event that a client must receive for each record and format, written from docs/wire.md and without code of kafkasse.

If docs/wire.md promises bytes, this module compares bytes. If it promises only a meaning, this module compares parsed JSON
in which each number keeps its text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_ATTRIBUTE = re.compile(r"ce_(?!specversion$|data$|datacontenttype$)([a-z0-9]+)")  # attributes that a producer may set
NOT_JSON = object()
MAX_TEXTS_CACHED = 256  # parsed JSON texts; one event is compared with many records
_JSON_TYPE = re.compile(r"[/+]json\b", re.IGNORECASE)


class StoredRecord(NamedTuple):
    """A record as an independent consumer read it.

    `timestamp` is in milliseconds. `topic_id` counts how often the topic was recreated. `epoch` counts how often the
    partition's log was truncated. After each change the consumer reads the whole partition again under the new number.
    `seen` is the time until which the log certainly held the record: infinite, unless compaction may have removed it.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic_id: int = 0
    epoch: int = 0
    seen: float = inf


class ExpectedEvent(NamedTuple):
    """The event that a client must receive: its name, and a function that checks its data."""

    event: str
    matches: Callable[[str], bool]


def expected_event(record: StoredRecord, format: str) -> ExpectedEvent | None:
    """Return the Server-Sent Event for a record, or None if this format skips it."""
    return FORMATS[format](record)


def expected_line(record: StoredRecord, format: str) -> ExpectedEvent | None:
    """Return the line of newline-delimited JSON for a record. The line contains the event name: all lines are messages."""
    expected = expected_event(record, format)
    if expected is None:
        return None
    if expected.event == "delete":
        return ExpectedEvent("message", lambda line: _unwrapped(line, "delete", expected))
    if expected.event == "base64":
        data = base64.b64encode(record.value or b"").decode()
        return ExpectedEvent("message", lambda line: _same(line, {"event": "base64", "data": data}))
    if format == "value" and not is_json(record.value or b""):
        return ExpectedEvent("message", lambda line: _same(line, (record.value or b"").decode()))
    return ExpectedEvent("message", lambda line: expected.matches(line) or _same_except_breaks(line, record, format))


def is_json(value: bytes) -> bool:
    """Return whether a value is JSON according to RFC 8259."""
    try:
        json.loads(value.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _as_kafkasse(record: StoredRecord) -> ExpectedEvent | None:
    value = record.value
    if value is None:
        return ExpectedEvent("delete", lambda data: _same(data, {"_kafka": _origin(record)}))
    if not is_json(value):
        return None
    text = _escaped(_joined(value))
    if not isinstance(_parsed(text), _Members):
        return ExpectedEvent("message", lambda data: data == text)
    if "_kafka" in json.loads(text):
        return ExpectedEvent("message", lambda data: _kafka_replaced(data, text, record))
    head = text.rstrip(" \t\n").removesuffix("}")
    comma = "," if json.loads(text) else ""
    return ExpectedEvent("message", lambda data: _spliced(data, f'{head}{comma}"_kafka":', record))


def _as_value(record: StoredRecord) -> ExpectedEvent:
    value = record.value
    if value is None:
        return ExpectedEvent("delete", lambda data: _same(data, _bytes("key", record.key)))
    if not _is_text(value) or (b"\r" in value and not is_json(value)):
        encoded = base64.b64encode(value).decode()
        return ExpectedEvent("base64", lambda data: data == encoded)
    text = _joined(value)
    return ExpectedEvent("message", lambda data: data == text)


def _as_envelope(record: StoredRecord) -> ExpectedEvent:
    content, encoding = _content(record.value)
    headers = [{"key": name, **_bytes("value", value)} for name, value in record.headers]
    expected = {**_origin(record), "headers": headers, "value": content}
    if encoding != "json":
        expected["value_encoding"] = encoding
    raw = _escaped(_joined(record.value)) if encoding == "json" and record.value is not None else ""
    event = "delete" if record.value is None else "message"
    return ExpectedEvent(event, lambda data: _same(data, expected) and raw in data)


def _as_cloudevent(record: StoredRecord) -> ExpectedEvent:
    where = f"{record.topic}/{record.partition}"
    expected: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{where}/{record.offset}",
        "source": f"/kafka/{where}",
        "type": "kafka.record" if record.value is not None else "kafka.tombstone",
    }
    if record.key and _is_text(record.key):
        expected["subject"] = record.key.decode()
    if record.timestamp >= 0:
        moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        expected["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {name: value.decode() for name, value in record.headers if value and _is_text(value)}
    expected |= {match[1]: text for name, text in headers.items() if (match := _ATTRIBUTE.fullmatch(name))}
    if record.value is None:
        expected |= {name.replace("_", ""): text for name, text in _bytes("key", record.key).items()}
    expected |= _cloud_content(record.value, headers.get("content-type"))
    event = "delete" if record.value is None else "message"
    return ExpectedEvent(event, lambda data: _same(data, expected))


FORMATS: dict[str, Callable[[StoredRecord], ExpectedEvent | None]] = {
    "kafkasse": _as_kafkasse,
    "value": _as_value,
    "envelope": _as_envelope,
    "cloudevents": _as_cloudevent,
}


def _cloud_content(value: bytes | None, declared: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    content, encoding = _content(value)
    if encoding == "json" and declared and not _JSON_TYPE.search(declared):
        content, encoding = value.decode(), "text"
    content_type = declared or {"json": "application/json", "text": "text/plain"}.get(encoding)
    name = "data_base64" if encoding == "base64" else "data"
    return {**({"datacontenttype": content_type} if content_type else {}), name: content}


def _content(value: bytes | None) -> tuple[Any, str]:
    """Return a value as a member of a JSON object, and its encoding: json, text or base64."""
    if value is None or is_json(value):
        return None if value is None else _parsed(value.decode()), "json"
    if _is_text(value):
        return value.decode(), "text"
    return base64.b64encode(value).decode(), "base64"


def _origin(record: StoredRecord) -> dict[str, Any]:
    at = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    when = record.timestamp if record.timestamp >= 0 else None
    return {**at, "timestamp": when, **_bytes("key", record.key)}


def _bytes(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None or _is_text(value):
        return {name: None if value is None else value.decode()}
    return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


def _spliced(data: str, head: str, record: StoredRecord) -> bool:
    """The value is unchanged up to its closing brace; `_kafka` and the brace follow."""
    return data.startswith(head) and data.endswith("}") and _same(data[len(head) : -1], _origin(record))


def _kafka_replaced(data: str, text: str, record: StoredRecord) -> bool:
    """The value already had `_kafka`: it was removed, all other members are unchanged, and the added one is the last."""
    kept = [pair for pair in _parsed(text).pairs if pair[0] != "_kafka"]
    received = _parsed_if_json(data)
    if not isinstance(received, _Members) or not received.pairs:
        return False
    *others, (name, added) = received.pairs
    return others == kept and name == "_kafka" and _equal(added, _origin(record))


def _unwrapped(line: str, event: str, expected: ExpectedEvent) -> bool:
    start = f'{{"event":"{event}",'
    return line.startswith(start) and expected.matches("{" + line.removeprefix(start))


def _same_except_breaks(line: str, record: StoredRecord, format: str) -> bool:
    """A line break outside a string is white space. A line cannot contain it, so another white space replaces it."""
    value = record.value or b""
    if b"\n" not in value and b"\r" not in value:
        return False
    spaced = record._replace(value=_LINE_BREAK.sub(" ", value.decode()).encode())
    expected = expected_event(spaced, format)
    return expected is not None and expected.matches(line)


class _Members:
    """The members of a JSON object in order, including repeated names."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Members) and self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]


def _parsed(text: str) -> Any:
    """Parse JSON and keep the text of each number: 25.00 is not 25, and 9007199254740993 is not 9007199254740992."""
    return json.loads(
        text,
        parse_int=lambda digits: ("number", digits),
        parse_float=lambda digits: ("number", digits),
        parse_constant=_no_constant,
        object_pairs_hook=_Members,
    )


@lru_cache(MAX_TEXTS_CACHED)
def _parsed_if_json(text: str) -> Any:
    try:
        return _parsed(text)
    except ValueError:
        return NOT_JSON


def _same(text: str, expected: Any) -> bool:
    return _equal(_parsed_if_json(text), expected)


def _equal(received: Any, expected: Any) -> bool:
    """Return whether the received value equals the expected one. The members of our own objects may be in any order."""
    if isinstance(expected, dict):
        pairs = dict(received.pairs) if isinstance(received, _Members) else {}
        once = isinstance(received, _Members) and len(pairs) == len(received.pairs)
        return once and pairs.keys() == expected.keys() and all(_equal(pairs[name], expected[name]) for name in pairs)
    if isinstance(expected, list) and isinstance(received, list):
        return len(received) == len(expected) and all(map(_equal, received, expected))
    if type(expected) is int:
        return bool(received == ("number", str(expected)))
    return type(received) is type(expected) and bool(received == expected)


def _no_constant(constant: str) -> None:
    raise ValueError(constant)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _joined(value: bytes) -> str:
    """Return a value as the data of an event: each line break arrives as LF."""
    return _LINE_BREAK.sub("\n", value.decode())


def _escaped(text: str) -> str:
    """Return JSON text as all formats but `value` send it: U+0085, U+2028 and U+2029 are escaped."""
    return re.sub("[\x85\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
