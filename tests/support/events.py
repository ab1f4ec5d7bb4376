"""Server-Sent Events as the web platform reads them: a second opinion on our frames, from the rules and nothing else.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import re

from kafkasse.sse import Event


def read_events(stream: bytes) -> list[Event]:
    """All events of a whole stream."""
    events: list[Event] = []
    last_id = ""
    text = stream.decode().removeprefix("\ufeff")
    for block in re.split(r"(?:\r\n|\n|\r){2}", text)[:-1]:
        fields = [re.fullmatch(r"([^:]*):? ?(.*)", line, re.DOTALL) for line in re.split(r"\r\n|\n|\r", block)]
        pairs = [field.groups() for field in fields if field]
        ids = [value for name, value in pairs if name == "id" and "\0" not in value]
        data = [value for name, value in pairs if name == "data"]
        kinds = [value for name, value in pairs if name == "event"]
        last_id = ids[-1] if ids else last_id
        if data:
            events.append(Event((kinds or [""])[-1] or "message", "\n".join(data), last_id))
    return events
