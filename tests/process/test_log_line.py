"""Text for the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.process.log_line import MAX_CHARS, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Köln, 'x' \\", "Köln, 'x' \\"),
        ("a\nb\r\n", "a\\nb\\r\\n"),
        ("\x1b[2J\x00\x7f\x85", "\\x1b[2J\\x00\\x7f\\x85"),
        ("\u2028\u202e", "\\u2028\\u202e"),
        ("\ud800", "\\ud800"),
        ("a" * (MAX_CHARS + 1), "a" * (MAX_CHARS - 1) + "…"),
    ],
)
def test_escapes_control_characters_and_shortens(text, shown):
    assert shown == one_line(text)


@given(st.text())
def test_any_text_becomes_one_line(text):
    """No reader of the log, however it splits lines, sees a second line."""
    assert len(one_line(text).splitlines()) <= 1
