"""Formats text from clients, producers and hooks for the log, on one line, so that it cannot imitate other log lines."""

from __future__ import annotations

MAX_CHARS = 300


def one_line(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return the first `max_chars` characters of `text`, with line breaks and other control characters escaped."""
    shown = text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
