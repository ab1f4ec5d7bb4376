"""Formats untrusted text on one line, so that it can neither imitate lines of the log nor control a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

MAX_CHARS = 300
_WORD = re.compile(r"[!#-<>-\[\]-~]+")  # visible ASCII characters without quotes, equals signs and backslashes


def one_line(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return the first `max_chars` characters of `text`, with line breaks and other control characters escaped."""
    shown = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    if shown.isprintable():
        return shown
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)


class Fields(dict[str, Any]):
    """The argument of a log message that consists of named values. As JSON, each of them is a member of the log line.

    Empty texts are left out.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value != ""})

    def __str__(self) -> str:
        return " ".join(f"{name}={_value(value)}" for name, value in self.items())


def _value(value: Any) -> str:
    """Return a value as text, in quotes if it contains spaces, quotes or equals signs, so that it cannot imitate a field."""
    text = one_line(str(value))
    return text if _WORD.fullmatch(text) else json.dumps(text)
