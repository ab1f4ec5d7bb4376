"""Server-Sent Events from the bytes of a response, read as the web platform reads them.

A parser is given what a socket gave, in pieces of any size, and yields events. It opens no connection, knows no clock
and no Kafka: when to connect again, and with what, is for its caller (see kafkasse/commands/cat.py).

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

EVENT_BYTES_MAX = 16 * 1024 * 1024
RETRY_DIGITS_MAX = 15  # 30,000 years of milliseconds: more digits only cost time to convert

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """A line, or all data of one event, is over the parser's bound. The stream cannot be read on."""


class Event(NamedTuple):
    """What a browser would dispatch.

    `type` is "message" where the stream named none; `data` has its lines joined by LF; `id` is the last id that the
    stream gave up to here, "" where it gave none.
    """

    type: str
    data: str
    id: str


class Parser:
    """Bytes in, events out.

    Args:
        last_event_id: the id that the request went on from. A new connection to the same stream begins with it, as
            browsers do, so that an event without an id does not make the client forget where it was.
        event_bytes_max: most bytes of one line, and of one event's data.

    Attributes:
        last_event_id: what to send as Last-Event-ID next time. A block of an `id` alone moves it and yields no event.
        retry_ms: milliseconds to wait before connecting again, None until the stream says so.
    """

    def __init__(self, *, last_event_id: str = "", event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.last_event_id = last_event_id
        self.retry_ms: int | None = None
        self._event_bytes_max = event_bytes_max
        self._id = last_event_id  # of the block that is being read: it counts from the blank line on
        self._type = ""
        self._data = bytearray()
        self._unfinished = bytearray()
        self._after_cr = False
        self._at_start = True

    def receive(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that `chunk` completes. Exhaust it before the next call: it parses as it yields.

        Raises:
            EventTooLarge: after the events before the one that is too large.
        """
        for line in self._lines(chunk):
            if line:
                self._field(line)
            elif event := self._block_end():
                yield event

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return
        # A CR ends its line at once, or a stream that uses CR would be one event late: the LF that may still follow
        # is dropped when it comes.
        text = chunk.removeprefix(b"\n") if self._after_cr else chunk
        self._after_cr = chunk.endswith(b"\r")
        first, *more = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._unfinished += first
        self._check(self._unfinished)
        if more:
            *lines, unfinished = self._without_bom(self._unfinished), *more
            self._unfinished = bytearray(unfinished)
            for line in lines:
                self._check(line)
                yield line
            self._check(self._unfinished)

    def _without_bom(self, line: bytearray) -> bytes:
        at_start, self._at_start = self._at_start, False
        return bytes(line.removeprefix(_BOM) if at_start else line)

    def _check(self, buffer: bytes | bytearray) -> None:
        if len(buffer) > self._event_bytes_max:
            raise EventTooLarge(f"an event of this stream is larger than {self._event_bytes_max:,} bytes")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")  # a comment is a field without a name
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value + b"\n"
            self._check(self._data)
        elif name == b"id" and b"\0" not in value:
            self._id = _text(value)
        elif name == b"event":
            self._type = _text(value)
        elif name == b"retry" and value.isdigit():
            self.retry_ms = int(value.lstrip(b"0")[:RETRY_DIGITS_MAX] or b"0")

    def _block_end(self) -> Event | None:
        self.last_event_id = self._id
        data, self._data = self._data, bytearray()
        kind, self._type = self._type, ""
        return Event(kind or "message", _text(data[:-1]), self._id) if data else None


def _text(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8", errors="replace")
