"""The one reader of Server-Sent Events in the tests, written from the specification alone.

It imports nothing of kafkasse, so that it can judge what kafkasse sends, and what kafkasse_client.sse parses.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Event(NamedTuple):
    """An event that a browser dispatches. Equal to a kafkasse_client.sse.Event with the same members."""

    type: str
    data: str
    id: str


class Block(NamedTuple):
    """The lines between two empty lines.

    Attributes:
        start: the offset of the first byte in the stream.
        end: the offset after the empty line. A client that has received fewer bytes has received nothing of the block.
        event: the type of the event that a browser dispatches, "" if it dispatches none.
        data: the data of that event, "" if there is none.
        id: the ID in this block, None if there is none.
        retry_ms: the reconnection time in this block, None if there is none.
        names: the field names of all lines in order, "" for a comment.
        last_id: the last event ID after this block, from this block or an earlier one.
    """

    start: int
    end: int
    event: str
    data: str
    id: str | None
    retry_ms: int | None
    names: tuple[str, ...] = ()
    last_id: str = ""


def read_blocks(stream: bytes) -> list[Block]:
    """Return all complete blocks, also those that hold only comments. Like a browser, drop an incomplete last block.

    Raises:
        UnicodeDecodeError: a line is not UTF-8. A browser replaces such bytes, and kafkasse must never send them.
    """
    blocks: list[Block] = []
    lines: list[bytes] = []
    last_id = ""
    start = at = len(_BOM) if stream.startswith(_BOM) else 0
    for line_end in _LINE_END.finditer(stream, at):
        line = stream[at : line_end.start()]
        at = line_end.end()
        if line:
            lines.append(line)
            continue
        blocks.append(_block(start, at, lines, last_id))
        last_id = blocks[-1].last_id
        lines, start = [], at
    return blocks


def read_events(stream: bytes) -> list[Event]:
    """Return the events that a browser dispatches."""
    return [Event(block.event, block.data, block.last_id) for block in read_blocks(stream) if block.event]


def without_positions(events: Iterable[Any]) -> list[Any]:
    """Return the events without position events, which have an ID and no data of their own."""
    return [event for event in events if event.type != "position"]


def numbers_in(frames: bytes) -> list[int]:
    """Return the member `n` of each record in these frames."""
    return [json.loads(event.data)["n"] for event in read_events(frames) if event.type == "message"]


def read_until(chunks: Iterable[bytes | str], end: bytes) -> bytes:
    """Return the body of a response up to and including the chunk that contains `end`, or to its end."""
    body = b""
    for chunk in chunks:
        body += chunk if isinstance(chunk, bytes) else chunk.encode()
        if end in body:
            break
    return body


def _block(start: int, end: int, lines: Sequence[bytes], last_id: str) -> Block:
    event, data, id, retry_ms = "", [], None, None
    names: list[str] = []
    for line in lines:
        name, _, value = line.decode().partition(":")
        value = value.removeprefix(" ")
        names.append(name)
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            retry_ms = int(value)
    dispatched = (event or "message") if data else ""
    text = "\n".join(data)
    return Block(start, end, dispatched, text, id, retry_ms, tuple(names), last_id if id is None else id)
