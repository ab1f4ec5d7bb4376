"""What a route's format promises a client to read of a record, written from docs/wire.md and from no code of kafkasse.

Where bytes are promised bytes are compared; where only a meaning is, JSON is compared with each number as it was written.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_ATTRIBUTE = re.compile(r"ce_(?!specversion$|data$|datacontenttype$)([a-z0-9]+)")  # those that a producer may set
NOT_JSON = object()
TEXTS_KEPT_MAX = 256  # that were read as JSON: where an event is searched for, it is compared with many records
_JSON_TYPE = re.compile(r"[/+]json\b")


class Written(NamedTuple):
    """A record as a consumer that knows nothing of kafkasse read it.

    `timestamp` is in milliseconds. `topic_id` counts up each time the topic was deleted and made again, `epoch` each
    time the log of this partition was truncated; whoever reads it anew then reads it all, under the new number.
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


class Shown(NamedTuple):
    """How a client must see a record: the event's name, and whether this is its data."""

    event: str
    fits: Callable[[str], bool]


def shown(written: Written, format: str) -> Shown | None:
    """How a record looks as a Server-Sent Event, or None where this format has to skip it."""
    return FORMATS[format](written)


def shown_as_line(written: Written, format: str) -> Shown | None:
    """How it looks in newline-delimited JSON. The name of the event stands inside: all lines are messages."""
    promised = shown(written, format)
    if promised is None:
        return None
    if promised.event == "delete":
        return Shown("message", lambda line: _unwrapped(line, "delete", promised))
    if promised.event == "base64":
        data = base64.b64encode(written.value or b"").decode()
        return Shown("message", lambda line: _same(line, {"event": "base64", "data": data}))
    if format == "value" and not is_json(written.value or b""):
        return Shown("message", lambda line: _same(line, (written.value or b"").decode()))
    return Shown("message", lambda line: promised.fits(line) or _same_but_for_breaks(line, written, format))


def is_json(value: bytes) -> bool:
    """Whether a value is JSON by its standard."""
    try:
        json.loads(value.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _as_kafkasse(written: Written) -> Shown | None:
    value = written.value
    if value is None:
        return Shown("delete", lambda data: _same(data, {"_kafka": _origin(written)}))
    if not is_json(value):
        return None
    text = _joined(value)
    if not isinstance(_meaning(text), _Members):
        return Shown("message", lambda data: data == text)
    if "_kafka" in json.loads(text):
        return Shown("message", lambda data: _spliced_anew(data, text, written))
    head = text.rstrip(" \t\n").removesuffix("}")
    comma = "," if json.loads(text) else ""
    return Shown("message", lambda data: _spliced(data, f'{head}{comma}"_kafka":', written))


def _as_value(written: Written) -> Shown:
    value = written.value
    if value is None:
        return Shown("delete", lambda data: _same(data, _bytes("key", written.key)))
    if not _is_text(value) or (b"\r" in value and not is_json(value)):
        encoded = base64.b64encode(value).decode()
        return Shown("base64", lambda data: data == encoded)
    text = _joined(value)
    return Shown("message", lambda data: data == text)


def _as_envelope(written: Written) -> Shown:
    content, encoding = _content(written.value)
    headers = [{"key": name, **_bytes("value", value)} for name, value in written.headers]
    expected = {**_origin(written), "headers": headers, "value": content}
    if encoding != "json":
        expected["value_encoding"] = encoding
    raw = _joined(written.value) if encoding == "json" and written.value is not None else ""
    event = "delete" if written.value is None else "message"
    return Shown(event, lambda data: _same(data, expected) and raw in data)


def _as_cloudevent(written: Written) -> Shown:
    where = f"{written.topic}/{written.partition}"
    expected: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{where}/{written.offset}",
        "source": f"/kafka/{where}",
        "type": "kafka.record" if written.value is not None else "kafka.tombstone",
    }
    if written.key is not None and _is_text(written.key):
        expected["subject"] = written.key.decode()
    if written.timestamp >= 0:
        moment = datetime.fromtimestamp(written.timestamp / 1000, UTC)
        expected["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {name: value.decode() for name, value in written.headers if value and _is_text(value)}
    expected |= {found[1]: text for name, text in headers.items() if (found := _ATTRIBUTE.fullmatch(name))}
    expected |= _cloud_content(written.value, headers.get("content-type"))
    event = "delete" if written.value is None else "message"
    return Shown(event, lambda data: _same(data, expected))


FORMATS: dict[str, Callable[[Written], Shown | None]] = {
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
    kind = declared or {"json": "application/json", "text": "text/plain"}.get(encoding)
    name = "data_base64" if encoding == "base64" else "data"
    return {**({"datacontenttype": kind} if kind else {}), name: content}


def _content(value: bytes | None) -> tuple[Any, str]:
    """A value inside of JSON, and how it got there: json, text or base64."""
    if value is None or is_json(value):
        return None if value is None else _meaning(value.decode()), "json"
    if _is_text(value):
        return value.decode(), "text"
    return base64.b64encode(value).decode(), "base64"


def _origin(written: Written) -> dict[str, Any]:
    at = {"topic": written.topic, "partition": written.partition, "offset": written.offset}
    when = written.timestamp if written.timestamp >= 0 else None
    return {**at, "timestamp": when, **_bytes("key", written.key)}


def _bytes(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None or _is_text(value):
        return {name: None if value is None else value.decode()}
    return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


def _spliced(data: str, head: str, written: Written) -> bool:
    """The value untouched up to its brace, then `_kafka`, then the brace."""
    return data.startswith(head) and data.endswith("}") and _same(data[len(head) : -1], _origin(written))


def _spliced_anew(data: str, text: str, written: Written) -> bool:
    """The value had a `_kafka` of its own: that one is gone, all other members stand as they did, and ours is the last."""
    kept = [pair for pair in _meaning(text).pairs if pair[0] != "_kafka"]
    arrived = _meaning_of_any(data)
    if not isinstance(arrived, _Members) or not arrived.pairs:
        return False
    *others, (name, ours) = arrived.pairs
    return others == kept and name == "_kafka" and _equal(ours, _origin(written))


def _unwrapped(line: str, event: str, promised: Shown) -> bool:
    start = f'{{"event":"{event}",'
    return line.startswith(start) and promised.fits("{" + line.removeprefix(start))


def _same_but_for_breaks(line: str, written: Written, format: str) -> bool:
    """A line break outside of a string is white space, and in a line it has to be another one."""
    value = written.value or b""
    if b"\n" not in value and b"\r" not in value:
        return False
    spaced = written._replace(value=_LINE_BREAK.sub(" ", value.decode()).encode())
    promised = shown(spaced, format)
    return promised is not None and promised.fits(line)


class _Members:
    """The members of an object in their order, one that is there twice included."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Members) and self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]


def _meaning(text: str) -> Any:
    """JSON with all that its text tells: 25.00 is not 25, and 9007199254740993 is not 9007199254740992."""
    return json.loads(
        text,
        parse_int=lambda digits: ("number", digits),
        parse_float=lambda digits: ("number", digits),
        parse_constant=_no_constant,
        object_pairs_hook=_Members,
    )


@lru_cache(TEXTS_KEPT_MAX)
def _meaning_of_any(text: str) -> Any:
    try:
        return _meaning(text)
    except ValueError:
        return NOT_JSON


def _same(text: str, expected: Any) -> bool:
    return _equal(_meaning_of_any(text), expected)


def _equal(arrived: Any, expected: Any) -> bool:
    """Whether what was read means what was expected; the members of an object of ours may stand in any order."""
    if isinstance(expected, dict):
        found = dict(arrived.pairs) if isinstance(arrived, _Members) else {}
        once = isinstance(arrived, _Members) and len(found) == len(arrived.pairs)
        return once and found.keys() == expected.keys() and all(_equal(found[name], expected[name]) for name in found)
    if isinstance(expected, list) and isinstance(arrived, list):
        return len(arrived) == len(expected) and all(map(_equal, arrived, expected))
    if type(expected) is int:
        return bool(arrived == ("number", str(expected)))
    return type(arrived) is type(expected) and bool(arrived == expected)


def _no_constant(constant: str) -> None:
    raise ValueError(constant)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _joined(value: bytes) -> str:
    """A value as an event's data: each line break in it arrives as LF."""
    return _LINE_BREAK.sub("\n", value.decode())
