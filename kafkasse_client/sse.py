"""A parser for Server-Sent Events that follows the HTML standard.

The caller passes in the bytes of a response as they arrive, in chunks of any size, and receives events. The parser opens no
connection and uses no clock. The caller decides when to reconnect (see core.py).

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_RETRY_DIGITS = 15  # 30,000 years in milliseconds; converting millions of digits would block the caller

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """A line or the data of one event exceeds the parser's limit. Discard the parser: it cannot continue."""


class Event(NamedTuple):
    """An event as a browser would dispatch it.

    Attributes:
        type: the event name; "message" if the stream gives none.
        data: the data lines, joined with LF.
        id: the last event ID at this event, or "" if the stream has not set one.
    """

    type: str
    data: str
    id: str

    def json(self) -> Any:
        """Return the parsed data.

        Raises:
            ValueError: the data is not JSON.
        """
        return json.loads(self.data)


class Parser:
    """Converts the bytes of one response to events.

    Args:
        last_event_id: the Last-Event-ID of the request. As in a browser, it stays in effect until the stream sets another,
            so that an event without an ID does not reset the client's position.
        max_event_bytes: the maximum size of one line, and of the data of one event.

    Attributes:
        last_event_id: the Last-Event-ID to send on reconnect. An `id` field without data updates it, although the parser
            yields no event.
        retry_ms: how many milliseconds to wait before reconnecting; None until the stream sets it.
    """

    def __init__(self, *, last_event_id: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.last_event_id = last_event_id
        self.retry_ms: int | None = None
        self._max_event_bytes = max_event_bytes
        self._id = last_event_id  # becomes last_event_id at the blank line that ends the event
        self._type = ""
        self._data = bytearray()
        self._unfinished = bytearray()
        self._after_cr = False
        self._at_start = True

    def receive(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes.

        Exhaust the iterator before the next call, because the parser reads the chunk while it yields.

        Raises:
            EventTooLarge: raised after all events that precede the event that is too large.
        """
        for line in self._lines(chunk):
            if line:
                self._process_field(line)
            elif event := self._dispatch():
                yield event

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        # A CR ends its line at once, because a stream that uses CR alone would otherwise be one event late. If an LF
        # follows in the next chunk, it belongs to that CR and is dropped.
        text = chunk.removeprefix(b"\n") if self._after_cr else chunk
        self._after_cr = chunk.endswith(b"\r")
        first, *more = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._unfinished += first
        self._check_size(self._unfinished)
        if more:
            *lines, unfinished = self._without_bom(self._unfinished), *more
            self._unfinished = bytearray(unfinished)
            for line in lines:
                self._check_size(line)
                yield line
            self._check_size(self._unfinished)

    def _without_bom(self, line: bytearray) -> bytes:
        at_start, self._at_start = self._at_start, False
        return bytes(line.removeprefix(_BOM) if at_start else line)

    def _check_size(self, buffer: bytes | bytearray) -> None:
        if len(buffer) > self._max_event_bytes:
            raise EventTooLarge(f"the stream contains an event larger than {self._max_event_bytes:,} bytes")

    def _process_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a comment has an empty name
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value + b"\n"
            self._check_size(self._data)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)
        elif name == b"event":
            self._type = _text(value)
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value.lstrip(b"0")[:MAX_RETRY_DIGITS] or b"0")

    def _dispatch(self) -> Event | None:
        self.last_event_id = self._id
        data, self._data = self._data, bytearray()
        event_type, self._type = self._type, ""
        return Event(event_type or "message", _text(data[:-1]), self._id) if data else None


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", errors="replace")
