"""An event stream as the web platform interprets it, line by line from the specification, and every line accounted for.

Strict: it reports all fields of each block, so that a test can see what a lenient reader would pass over.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Block(NamedTuple):
    """What stands between two empty lines, and what a browser makes of it.

    Attributes:
        names: of its lines in order; a comment's is "", that of a line without a colon the line itself.
        type, data: of the event that is dispatched; data is None where none is.
        id: the last event id from here on.
    """

    names: tuple[str, ...]
    type: str
    data: str | None
    id: str


def interpret(stream: bytes) -> list[Block]:
    """The blocks of a stream. What is not ended by an empty line is dropped, as a browser does.

    Raises:
        UnicodeDecodeError: bytes that are not UTF-8, which a browser would replace and we must never send.
    """
    blocks: list[Block] = []
    names: list[str] = []
    data: list[str] = []
    kind, last_id = "", ""
    *lines, _ = re.split(r"\r\n|\n|\r", stream.decode().removeprefix("\ufeff"))
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            names.append(name)
            if name == "data":
                data.append(value)
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                last_id = value
        else:
            blocks.append(Block(tuple(names), kind or "message", "\n".join(data) if data else None, last_id))
            names, data, kind = [], [], ""
    return blocks
