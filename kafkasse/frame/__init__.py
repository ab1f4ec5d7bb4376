"""From a Kafka record to the bytes of one event on the wire. Pure: no sockets, no broker, no Flask.

    record ─▶ format (what the client reads) ─▶ wire (how it is framed) ─▶ frame

A producer must never be able to forge an event: every line break in a payload is turned into a new `data:` line, and
what SSE cannot carry at all (a CR outside of JSON, bytes that are not UTF-8) travels as base64 and says so.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kafkasse.errors import FilterError, KafkasseError
from kafkasse.log import Partition, Record
from kafkasse.position import IdWriter

SSE_OPENING = b":ok\n\n"
SSE_HEARTBEAT = b":heartbeat\n\n"
JSON_LINES_HEARTBEAT = b"\n"
OUR_EVENTS = ("message", "delete", "base64", "gap", "error")

NUMBER_DIGITS_MAX = 4_300  # Python reads no longer ones, and clients should not fail at what one producer wrote
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (NUMBER_DIGITS_MAX + 1))
_OPENING_BRACE, _CLOSING_BRACE, _SPACE = b"{} "
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_PLAIN_KEY = re.compile(rb"[A-Za-z0-9 ._:/@#+-]*")
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],]')  # the tokens of JSON that matter for finding members
_ATTRIBUTE = re.compile(r"ce_(?!specversion$|data$|datacontenttype$)([a-z0-9]+)")  # those that a producer may set


class TopicRecord(NamedTuple):
    """The record as a deserializer hook gets it."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Payload(NamedTuple):
    """An event without its id: its name, and its data as UTF-8."""

    event: str
    data: bytes


Format = Callable[[str, int, Record], Payload]
Deserializer = Callable[[TopicRecord], Any]
Filterer = Callable[[Any], object]


class Undeserializable(Exception):
    """This value cannot be shown in this format. The record is skipped, logged and counted."""


class Wire:
    """Server-Sent Events."""

    content_type = "text/event-stream; charset=utf-8"
    opening = SSE_OPENING
    heartbeat = SSE_HEARTBEAT

    def body(self, payload: Payload) -> bytes:
        """All of a frame that follows its id."""
        data = payload.data
        if b"\n" in data or b"\r" in data:
            data = _LINE_BREAK.sub(b"\ndata: ", data)
        return b"\ndata: " + data + b"\n\n"

    def frame(self, event: str, position_id: str, body: bytes) -> bytes:
        """One event: its name, its id, and the body from body()."""
        return b"event: %s\nid: %s%s" % (event.encode(), position_id.encode(), body)

    def split(self, frames: bytes) -> list[tuple[str, bytes]]:
        """Undo frame() on frames that were joined: the event name and body of each. No frame holds an empty line."""
        split = []
        for each in frames.split(b"\n\n")[:-1]:
            event, rest = each.split(b"\n", 1)
            body = rest.split(b"\n", 1)[1] if rest.startswith(b"id: ") else rest
            split.append((event[7:].decode(), b"\n" + body + b"\n\n"))
        return split

    def frame_without_id(self, event: str, body: bytes) -> bytes:
        """An event that leaves the client's last id as it is."""
        return b"event: %s%s" % (event.encode(), body)

    def with_id(self, frame: bytes, position_id: str) -> bytes:
        """A frame from frame_without_id(), with an id."""
        event, body = frame.split(b"\n", 1)
        return b"%b\nid: %b\n%b" % (event, position_id.encode(), body)

    def id_alone(self, position_id: str) -> bytes:
        """An id without data: clients keep it and dispatch nothing."""
        return b"id: %s\n\n" % position_id.encode()

    def retry(self, retry_ms: int) -> bytes:
        """How long a client is to wait before it comes back, in milliseconds."""
        return b"retry: %d\n\n" % retry_ms

    def report(self, event: str, data: Mapping[str, Any], position_id: str) -> bytes:
        """An event of our own (`gap`, `error`), with the id to go on from; with "" the client keeps the one that it has."""
        body = self.body(Payload(event, _dumps(data)))
        return self.frame(event, position_id, body) if position_id else self.frame_without_id(event, body)


class JsonLines(Wire):
    """Newline-delimited JSON: a line for each record, an empty line for a heartbeat, no ids.

    A line has no event name beside it, so what is not the plain message says so in a member `event`.
    """

    content_type = "application/x-ndjson; charset=utf-8"
    opening = JSON_LINES_HEARTBEAT  # so that the response's header does not wait for the first record
    heartbeat = JSON_LINES_HEARTBEAT

    def body(self, payload: Payload) -> bytes:
        data = payload.data
        if payload.event == "base64":
            data = _dumps({"event": "base64", "data": data.decode()})
        elif payload.event == "delete":
            data = b'{"event":"delete",' + data[1:]
        elif not _is_json(data):
            data = _dumps(data.decode())
        else:
            line = _LINE_BREAK.sub(b" ", data)
            data = b'{"event":"message","data":%b}' % line if _passes_for_ours(data) else line
        return data + b"\n"

    def frame(self, event: str, position_id: str, body: bytes) -> bytes:
        return body

    def split(self, frames: bytes) -> list[tuple[str, bytes]]:
        return [("message", line) for line in frames.splitlines(keepends=True)]

    def frame_without_id(self, event: str, body: bytes) -> bytes:
        return body

    def with_id(self, frame: bytes, position_id: str) -> bytes:
        return frame

    def id_alone(self, position_id: str) -> bytes:
        return b""

    def retry(self, retry_ms: int) -> bytes:
        return b""

    def report(self, event: str, data: Mapping[str, Any], position_id: str) -> bytes:
        return _dumps({"event": event, **data}) + b"\n"


class Encoder:
    """Turns the records of one selection into payloads: deserialize, filter, format.

    Args:
        format: one of FORMATS.
        wire: how payloads are framed.
        deserializer: makes the message from the record, in place of reading its value as JSON. One that raises, or
            returns None, skips its record.
        filterer: is given the message; the record is sent where it returns something true. One that raises ends the
            stream: it cannot be known what it would have let through.
        on_skipped: told of each record that could not be deserialized.
        sparse_ids: only the last frame of a run carries an id. A client that is cut off within one is sent it again.
    """

    def __init__(
        self,
        format: str = "kafkasse",
        wire: Wire | None = None,
        deserializer: Deserializer | None = None,
        filterer: Filterer | None = None,
        on_skipped: Callable[[str, int, int, str], None] = lambda topic, partition, offset, reason: None,
        sparse_ids: bool = False,
    ) -> None:
        self.wire = wire or Wire()
        self._format = FORMATS[format]
        self._deserializer = deserializer
        self._filterer = filterer
        self._on_skipped = on_skipped
        self._sparse_ids = sparse_ids
        hooks = deserializer is not None or filterer is not None
        self._is_plain = self._format is as_kafkasse and type(self.wire) is Wire and not hooks

    def encode(self, topic: str, partition: int, record: Record) -> tuple[str, bytes] | None:
        """(event name, body) of a record, or None where it is not to be sent.

        Raises:
            FilterError: the filterer raised.
        """
        try:
            payload = self._payload(topic, partition, record)
        except Undeserializable as error:
            self._on_skipped(topic, partition, record.offset, str(error))
            return None
        if payload is None:
            return None
        return payload.event, self.wire.body(payload)

    def encode_run(
        self, partition: Partition, records: Sequence[Record], ids: IdWriter
    ) -> tuple[list[bytes], list[int]]:
        """The frames of a run of records of one partition, and the offset of the record behind each. Moves `ids` on.

        Raises:
            FilterError: the filterer raised.
        """
        around = ids.around(partition)
        if around is None:
            return self._one_by_one(partition, records, ids)
        before, spell, after = around
        in_digits = spell is str
        untold, told = _templates(partition, before, after, in_digits)
        frames: list[bytes] = []
        offsets: list[int] = []
        for record in records:
            offset, value, key, timestamp = record.offset, record.value, record.key, record.timestamp
            timed = timestamp is not None and timestamp >= 0
            if self._is_plain and timed and value and _has_room(value) and (key is None or key.isalnum()):
                # The common case in one piece: all that encode() and frame() would do, but for what they would look for.
                shown = b"null" if key is None else b'"%b"' % key
                if self._sparse_ids:
                    frame = untold % (value[:-1], offset, timestamp, shown)
                else:
                    next_offset = offset + 1 if in_digits else spell(offset + 1).encode()
                    frame = told % (next_offset, value[:-1], offset, timestamp, shown)
            else:
                encoded = self.encode(partition.topic, partition.partition, record)
                if encoded is None:
                    continue
                elif self._sparse_ids:
                    frame = self.wire.frame_without_id(*encoded)
                else:
                    frame = self.wire.frame(encoded[0], f"{before}{spell(offset + 1)}{after}", encoded[1])
            frames.append(frame)
            offsets.append(offset)
        if self._sparse_ids and frames:
            frames[-1] = self.wire.with_id(frames[-1], f"{before}{spell(offsets[-1] + 1)}{after}")
        if records:
            ids.set(partition, records[-1].offset + 1)
        return frames, offsets

    def _one_by_one(
        self, partition: Partition, records: Sequence[Record], ids: IdWriter
    ) -> tuple[list[bytes], list[int]]:
        """Where times stand in the ids. All are encoded before the ids move: if the filter fails, nothing of it was sent."""
        frames: list[bytes] = []
        offsets: list[int] = []
        last_id = ""
        for record, encoded in [(each, self.encode(partition.topic, partition.partition, each)) for each in records]:
            ids.set(partition, record.offset + 1, record.timestamp)
            if encoded is not None:
                last_id, (event, body) = ids.render(), encoded
                untold = self.wire.frame_without_id(event, body)
                frames.append(untold if self._sparse_ids else self.wire.frame(event, last_id, body))
                offsets.append(record.offset)
        if self._sparse_ids and frames:
            frames[-1] = self.wire.with_id(frames[-1], last_id)
        return frames, offsets

    def _payload(self, topic: str, partition: int, record: Record) -> Payload | None:
        if self._deserializer is None and self._filterer is None:
            return self._format(topic, partition, record)
        message = self._message(topic, partition, record)
        if self._filterer is not None and not self._keeps(message):
            return None
        if self._deserializer is None or record.value is None:
            return self._format(topic, partition, record)
        try:
            return Payload("message", _dumps(message))
        except (TypeError, ValueError, RecursionError) as error:
            raise Undeserializable(f"the deserializer's message is not JSON: {error}") from error

    def _message(self, topic: str, partition: int, record: Record) -> Any:
        if record.value is None:
            return {"_kafka": json.loads(_kafka(topic, partition, record))}
        if self._deserializer is None:
            message = _loads(record.value)
        else:
            message = self._deserialized(topic, partition, record, self._deserializer)
        if isinstance(message, dict):
            message = {**message, "_kafka": json.loads(_kafka(topic, partition, record))}
        return message

    def _deserialized(self, topic: str, partition: int, record: Record, deserializer: Deserializer) -> Any:
        given = TopicRecord(
            topic, partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
        )
        try:
            message = deserializer(given)
        except Exception as error:
            raise Undeserializable(f"the deserializer raised {type(error).__name__}: {error}") from error
        if message is None:
            raise Undeserializable("the deserializer returned None")
        return message

    def _keeps(self, message: Any) -> bool:
        if self._filterer is None:
            return True
        try:
            return bool(self._filterer(message))
        except Exception as error:
            raise FilterError("The filter of this stream failed, so the stream cannot go on.") from error


def _templates(partition: Partition, before: str, after: str, in_digits: bool) -> tuple[bytes, bytes]:
    """The frame of a plain record without and with an id, for (next offset,) value less its brace, offset, time and key."""
    kafka = '%b,"_kafka":{{"topic":"{}","partition":{},"offset":%d,"timestamp":%d,"key":%b}}}}\n\n'.format(*partition)
    number = "%d" if in_digits else "%b"
    return (
        f"event: message\ndata: {kafka}".encode(),
        f"event: message\nid: {before}{number}{after}\ndata: {kafka}".encode(),
    )


def gap(wire: Wire, partition: tuple[str, int], first: int, to: int, reason: str, position_id: str) -> bytes:
    """The event that declares records lost to us: offsets `first` up to, but without, `to`."""
    data = {"topic": partition[0], "partition": partition[1], "from": first, "to": to, "reason": reason}
    return wire.report("gap", data, position_id)


def error(wire: Wire, error: KafkasseError, position_id: str) -> bytes:
    """The last event of a stream that cannot go on."""
    return wire.report("error", error.problem(), position_id)


# The formats of a route.


def as_kafkasse(topic: str, partition: int, record: Record) -> Payload:
    """The JSON object of the value with `_kafka` in it, the rest untouched; other JSON values as they are."""
    value = record.value
    if value is None:
        return Payload("delete", b'{"_kafka":' + _kafka(topic, partition, record) + b"}")
    message = _loads(value)
    if type(message) is not dict:
        return Payload("message", value)
    if "_kafka" in message:
        value = _without_member(value, "_kafka")
        del message["_kafka"]
    head = value[: value.rindex(b"}")]
    return Payload(
        "message", head + (b',"_kafka":' if message else b'"_kafka":') + _kafka(topic, partition, record) + b"}"
    )


def as_value(topic: str, partition: int, record: Record) -> Payload:
    """The value untouched; as base64 under the event name `base64` where SSE could not carry it."""
    value = record.value
    if value is None:
        return Payload("delete", _dumps(dict(_key(record))))
    if _is_utf8(value) and (b"\r" not in value or _is_json(value)):
        return Payload("message", value)
    return Payload("base64", base64.b64encode(value))


def as_envelope(topic: str, partition: int, record: Record) -> Payload:
    """topic, partition, offset, timestamp, key, headers and value in an object of their own."""
    fields = [
        _kafka(topic, partition, record)[:-1],
        b'"headers":' + _dumps([{"key": name, **_text("value", value)} for name, value in record.headers]),
        b'"value":' + _embedded(record.value, _encoding(record.value)),
    ]
    if _encoding(record.value) != "json":
        fields.append(b'"value_encoding":"' + _encoding(record.value).encode() + b'"')
    return Payload("message" if record.value is not None else "delete", b",".join(fields) + b"}")


def as_cloudevent(topic: str, partition: int, record: Record) -> Payload:
    """A CloudEvent 1.0 in JSON. Attributes in headers (Kafka's binary binding) win over those made here."""
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{topic}/{partition}/{record.offset}",
        "source": f"/kafka/{topic}/{partition}",
        "type": "kafka.record" if record.value is not None else "kafka.tombstone",
    }
    if record.timestamp is not None and record.timestamp >= 0:
        attributes["time"] = _rfc3339(record.timestamp)
    if record.key is not None and _is_utf8(record.key):
        attributes["subject"] = record.key.decode()
    headers = {name: value.decode() for name, value in record.headers if value and _is_utf8(value)}
    attributes |= {found[1]: value for name, value in headers.items() if (found := _ATTRIBUTE.fullmatch(name))}
    members = [_dumps(attributes)[1:-1], *_content(record.value, headers.get("content-type"))]
    return Payload("message" if record.value is not None else "delete", b"{" + b",".join(members) + b"}")


def _content(value: bytes | None, declared: str | None) -> list[bytes]:
    """The members of a CloudEvent that hold its content, written as its declared type asks for."""
    if value is None:
        return []
    encoding = _encoding(value)
    if encoding == "json" and declared and not re.search(r"[/+]json\b", declared):
        encoding = "text"
    kind = declared or {"json": "application/json", "text": "text/plain"}.get(encoding)
    name = b'"data_base64":' if encoding == "base64" else b'"data":'
    return [*([b'"datacontenttype":' + _dumps(kind)] if kind else []), name + _embedded(value, encoding)]


FORMATS: dict[str, Format] = {
    "kafkasse": as_kafkasse,
    "value": as_value,
    "envelope": as_envelope,
    "cloudevents": as_cloudevent,
}


def _kafka(topic: str, partition: int, record: Record) -> bytes:
    """Where a record comes from. A topic name needs no escaping by Kafka's own rule."""
    key = record.key
    plain = key is not None and _PLAIN_KEY.fullmatch(key)
    shown = b'"key":"%s"' % key if plain else _dumps(dict(_key(record)))[1:-1]
    timestamp = record.timestamp
    when = b"null" if timestamp is None or timestamp < 0 else b"%d" % timestamp
    return b'{"topic":"%s","partition":%d,"offset":%d,"timestamp":%s,%s}' % (
        topic.encode(),
        partition,
        record.offset,
        when,
        shown,
    )


def _key(record: Record) -> Mapping[str, Any]:
    return _text("key", record.key)


def _text(name: str, value: bytes | None) -> dict[str, Any]:
    """Bytes as a JSON member: text where they are text, else base64 and a member that says so."""
    if value is None:
        return {name: None}
    if _is_utf8(value):
        return {name: value.decode()}
    return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}


def _encoding(value: bytes | None) -> str:
    if value is None or _is_json(value):
        return "json"
    return "text" if _is_utf8(value) else "base64"


def _embedded(value: bytes | None, encoding: str) -> bytes:
    if value is None:
        return b"null"
    match encoding:
        case "json":
            return value
        case "text":
            return _dumps(value.decode())
        case _:
            return b'"' + base64.b64encode(value) + b'"'


class _Object(msgspec.Struct):
    """A JSON object of which nothing is read but whether it has a member `_kafka`, however that is spelled."""

    kafka: msgspec.Raw | msgspec.UnsetType = msgspec.field(name="_kafka", default=msgspec.UNSET)


# They check all of a value and build next to nothing of it. Both leave UTF-8 unchecked.
_read_object = msgspec.json.Decoder(_Object).decode
_read_any = msgspec.json.Decoder(msgspec.Raw).decode


def _has_room(value: bytes) -> bool:
    """Whether `value` is a JSON object, on one line, with something in it and no `_kafka`, that ends in its brace."""
    try:
        message = _read_object(value)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return (
        message.kafka is msgspec.UNSET
        and value[-1] == _CLOSING_BRACE
        and value[-2] > _SPACE
        and value[-2] != _OPENING_BRACE
        and b"\n" not in value
        and b"\r" not in value
        and (value.isascii() or _is_utf8(value))
        and not (len(value) > NUMBER_DIGITS_MAX and _may_have_long_number(value))
    )


def _may_have_long_number(value: bytes) -> bool:
    """Whether more digits follow each other, be it in text, than many a client reads. Looks only where they must be."""
    step = NUMBER_DIGITS_MAX
    suspects = (at for at in range(step, len(value), step) if value[at : at + 1].isdigit())
    return any(_LONG_NUMBER.search(value, at - step, at + step) for at in suspects)


def _passes_for_ours(data: bytes) -> bool:
    """Whether valid JSON is an object with a member `event`, however it is spelled, that one of our own lines could have."""
    if not (b'"event"' in data or b"\\" in data) or not data.lstrip().startswith(b"{"):
        return False
    events = [b"{" + member + b"}" for member in _members(data) if _name_of(member) == "event"]
    return any(_loads(event)["event"] in OUR_EVENTS for event in events)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_json(value: bytes) -> bool:
    try:
        _read_any(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        try:
            _loads_slowly(value, error)
        except Undeserializable:
            return False
    return _is_utf8(value) and not (len(value) > NUMBER_DIGITS_MAX and _has_long_number(value))


def _has_long_number(value: bytes) -> bool:
    if not _may_have_long_number(value):
        return False
    try:
        _loads(value)
    except Undeserializable:
        return True
    return False


def _loads(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _loads_slowly(value, error)


def _loads_slowly(value: bytes, reason: Exception) -> Any:
    """Valid JSON that msgspec refuses: lone surrogates, numbers beyond a double."""
    try:
        return json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Undeserializable(f"the value is not JSON: {reason}") from None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _dumps(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def _without_member(value: bytes, name: str) -> bytes:
    """The same object without the member `name`, all other text as it was: a producer's `_kafka` must not pass for ours."""
    return b"{" + b",".join(member for member in _members(value) if _name_of(member) != name) + b"}"


def _members(value: bytes) -> Iterator[bytes]:
    """The text of each member of an object that is known to be JSON. No recursion: it may be deep."""
    depth, start = 0, value.index(b"{") + 1
    for token in _STRUCTURE.finditer(value):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0 or (depth == 1 and token[0] == b","):
            yield value[start : token.start()]
            start = token.end()


def _name_of(member: bytes) -> str:
    found = _STRUCTURE.search(member)
    return str(json.loads(found[0].decode())) if found else ""


def _rfc3339(timestamp_ms: int) -> str:
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59.999Z"
