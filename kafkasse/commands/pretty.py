"""Events as text for people: a line with the position of the record, then its value as indented JSON, in color if wanted.

The text of a record cannot control the terminal: characters that are not printable are replaced.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from click import style, unstyle

from kafkasse_client.sse import Event

MAX_HEAD_CHARS = 200


class _Number(str):
    """The digits of a number as the producer wrote them: 25.00 does not become 25.0."""


def pretty(event: Event, color: bool) -> str:
    """Return an event as lines of text."""
    try:
        value = json.loads(event.data, parse_int=_Number, parse_float=_Number)
        record = value.pop("_kafka", {}) if isinstance(value, dict) else {}
        body = "" if value == {} else _render(value, "\n")
    except (ValueError, RecursionError):
        record, body = {}, printable(event.data)
    head = printable(_head(event, record))[:MAX_HEAD_CHARS]
    head = style(head, fg="red") if event.type == "delete" else style(head, dim=True)
    text = f"{head}\n{body}" if body else head
    return text if color else unstyle(text)


def printable(text: str) -> str:
    """Return text without the characters that a terminal could execute. Line breaks and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def _head(event: Event, record: Any) -> str:
    """Return the time, position and key of a record in kafkasse's format; otherwise the type and the ID of the event."""
    if not isinstance(record, dict) or "offset" not in record:
        return f"{event.type}  {event.id}".strip()
    words = [_time(record.get("timestamp")), f"{record.get('topic')}/{record.get('partition')}@{record['offset']}"]
    if record.get("key") is not None:
        words.append(f"key={record['key']}")
    if event.type != "message":
        words.append(event.type)
    return "  ".join(filter(None, words))


def _time(timestamp_ms: Any) -> str:
    try:
        return datetime.fromtimestamp(int(timestamp_ms) / 1000, UTC).isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _render(value: Any, newline: str) -> str:
    deeper = newline + "  "
    if isinstance(value, dict) and value:
        members = [f"{style(_quoted(name), fg='blue')}: {_render(item, deeper)}" for name, item in value.items()]
        return f"{{{deeper}{f',{deeper}'.join(members)}{newline}}}"
    if isinstance(value, list) and value:
        return f"[{deeper}{f',{deeper}'.join(_render(item, deeper) for item in value)}{newline}]"
    if isinstance(value, _Number):
        return style(value, fg="cyan")
    return style(_quoted(value), fg="green" if isinstance(value, str) else "magenta")


def _quoted(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
