"""The wire formats: how an event becomes bytes, as Server-Sent Events or as lines of JSON.

A wire format does not know records or topics; it frames the payloads that a format of formats.py returns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from kafkasse.errors import URN, KafkasseError
from kafkasse.log import Gap
from kafkasse.records.frame.formats import Payload
from kafkasse.records.frame.json_text import TakeTurn, dumps, is_json, members

_SNAPSHOT_END = {"snapshot": "complete"}
_RESERVED_EVENTS = (
    "message",
    "delete",
    "base64",
    "gap",
    "error",
    "position",
)  # the values of `event` in lines of kafkasse itself


class Wire(Protocol):
    """A wire format. A frame consists of an event's name, its body and its ID. The ID is the position after the event."""

    content_type: str
    opening: bytes  # the first bytes of every response
    heartbeat: bytes  # bytes that a client ignores

    def body(self, payload: Payload, take_turn: TakeTurn) -> bytes:
        """Return the part of a frame between event name and ID. Call `take_turn` after each piece of a large value."""

    def frame(self, event: str, position_id: str, body: bytes) -> bytes:
        """Return the frame of an event.

        Args:
            event: the event name.
            position_id: the ID, or "" for none. The client then keeps its last event ID.
            body: the event's data, from body().
        """

    def with_id(self, frame: bytes, position_id: str) -> bytes:
        """Add an ID to a frame that has none."""

    def split(self, frames: bytes) -> list[tuple[str, bytes]]:
        """Split concatenated frames into the event name and body of each."""

    def position(self, position_id: str) -> bytes:
        """Return an ID without a record, for the start of a stream and for a position that moved without an event."""

    def snapshot_end(self, position_id: str) -> bytes:
        """Return the position after the last row of a snapshot, which says that the snapshot is complete."""

    def retry(self, retry_ms: int) -> bytes:
        """Return the field that makes the client wait `retry_ms` milliseconds before it reconnects."""

    def report(self, event: str, data: Mapping[str, Any], position_id: str) -> bytes:
        """Return the frame of an event about the stream itself, such as `gap`. `position_id` may be "", as in frame()."""


class ServerSentEvents:
    """Server-Sent Events, as the HTML standard defines them.

    The ID is the last field of every event. Some clients store an ID as soon as they read it. If the ID came first and the
    connection broke within the event, they would never receive that event.

    Args:
        position_events: send an ID without a record as an event named `position`. Many clients, Firefox among them, ignore
            an ID without data. False: send the ID alone, for clients that cannot handle an event with an unknown name.
    """

    content_type = "text/event-stream; charset=utf-8"
    opening = b":ok\n\n"
    heartbeat = b":heartbeat\n\n"

    def __init__(self, position_events: bool = True) -> None:
        self._position, self._snapshot_end = (
            b"event: position\ndata: " + data + b"\nid: %s\n\n" if position_events else b"id: %s\n\n"
            for data in (b"{}", dumps(_SNAPSHOT_END))
        )

    def body(self, payload: Payload, take_turn: TakeTurn) -> bytes:
        return b"data: %s\n" % _replace_line_breaks(payload.data, b"\ndata: ")

    def frame(self, event: str, position_id: str, body: bytes) -> bytes:
        if not position_id:
            return b"event: %s\n%s\n" % (event.encode(), body)
        return b"event: %s\n%sid: %s\n\n" % (event.encode(), body, position_id.encode())

    def with_id(self, frame: bytes, position_id: str) -> bytes:
        return b"%sid: %s\n\n" % (frame[:-1], position_id.encode())

    def split(self, frames: bytes) -> list[tuple[str, bytes]]:
        events = []
        for frame in frames.split(b"\n\n")[:-1]:  # a frame contains no empty line
            event, body = frame.split(b"\n", 1)
            body = body.partition(b"\nid: ")[0]  # the lines of a body start with "data: "
            events.append((event.removeprefix(b"event: ").decode(), body + b"\n"))
        return events

    def position(self, position_id: str) -> bytes:
        return self._position % position_id.encode()

    def snapshot_end(self, position_id: str) -> bytes:
        return self._snapshot_end % position_id.encode()

    def retry(self, retry_ms: int) -> bytes:
        return b"retry: %d\n\n" % retry_ms

    def report(self, event: str, data: Mapping[str, Any], position_id: str) -> bytes:
        return self.frame(event, position_id, b"data: %s\n" % dumps(data))


class JsonLines:
    """Newline-delimited JSON: one line for each record, an empty line as heartbeat, and no IDs.

    A line has no separate field for the event name, so all events except messages have a member `event`. If the value of a
    message has a member `event` with one of these names, it is wrapped: `{"event":"message","data":…}`.
    """

    content_type = "application/x-ndjson; charset=utf-8"
    opening = b"\n"  # sends the response headers at once, instead of with the first record
    heartbeat = b"\n"

    def body(self, payload: Payload, take_turn: TakeTurn) -> bytes:
        match payload:
            case ("base64", data):
                line = dumps({"event": "base64", "data": data.decode()})
            case ("delete", data):
                line = b'{"event":"delete",' + data[1:]
            case (_, data) if not is_json(data, take_turn):
                line = dumps(data.decode())
            case (_, data):
                line = _replace_line_breaks(data, b" ")
                if _has_reserved_event(data, take_turn):
                    line = b'{"event":"message","data":%b}' % line
        return line + b"\n"

    def frame(self, event: str, position_id: str, body: bytes) -> bytes:
        return body

    def with_id(self, frame: bytes, position_id: str) -> bytes:
        return frame

    def split(self, frames: bytes) -> list[tuple[str, bytes]]:
        return [("message", line) for line in frames.splitlines(keepends=True)]

    def position(self, position_id: str) -> bytes:
        return b""

    def snapshot_end(self, position_id: str) -> bytes:
        return self.report("position", _SNAPSHOT_END, position_id)

    def retry(self, retry_ms: int) -> bytes:
        return b""

    def report(self, event: str, data: Mapping[str, Any], position_id: str) -> bytes:
        return dumps({"event": event, **data}) + b"\n"


class _WithEvent(msgspec.Struct):
    event: Any = UNSET


_BACKSLASH = ord("\\")  # a number: for bytes, `in` takes ten times as long
_decode_event = msgspec.json.Decoder(_WithEvent).decode


def _has_reserved_event(data: bytes, take_turn: TakeTurn) -> bool:
    """Return whether valid JSON is an object whose member `event`, however escaped, is one of _RESERVED_EVENTS.

    An object with several such members has one if any of them is.
    """
    has_escapes = _BACKSLASH in data
    if not (has_escapes or data.find(b'"event"') >= 0) or not data.lstrip().startswith(b"{"):
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        event = _decode_event(data).event
        if event is UNSET:  # most values
            return False
        if not has_escapes and data.count(b'"event"') == 1:
            return event in _RESERVED_EVENTS
    return any(name == "event" and _is_reserved(text) for name, text in members(data, take_turn))


def _is_reserved(value: bytes) -> bool:
    return value.startswith(b'"') and json.loads(value.decode()) in _RESERVED_EVENTS


def _replace_line_breaks(data: bytes, by: bytes) -> bytes:
    """Replace each CR LF, CR and LF. A regular expression takes 100 ms for 1 MB of line breaks."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", by)


def gap(wire: Wire, gap: Gap, position_id: str) -> bytes:
    """Return the event that reports lost records to a client."""
    return wire.report("gap", gap_members(gap), position_id)


def gap_members(gap: Gap) -> dict[str, Any]:
    """Return a gap in the form in which clients receive it."""
    topic, partition = gap.partition
    return {"topic": topic, "partition": partition, "from": gap.start, "to": gap.end, "reason": gap.reason}


def error(wire: Wire, error: KafkasseError, position_id: str, types: str = URN, request_id: str = "") -> bytes:
    """Return the event that reports an error, the last event of its stream. KafkasseError.problem() describes `types`."""
    named = {"request_id": request_id} if request_id else {}
    return wire.report("error", error.problem(types) | named, position_id)
