"""Events as text for people."""

from __future__ import annotations

import re

from kafkasse.commands.pretty import pretty
from kafkasse_client.sse import Event

KAFKA = '"_kafka":{"topic":"countries","partition":0,"offset":12,"timestamp":1790000000000,"key":"FR"}'


def test_shows_where_the_record_is_and_its_value():
    """The metadata of kafkasse's format becomes the first line. Numbers keep their digits."""
    event = Event(
        "message", '{"name":"France","area":25.00,"id":9007199254740993,"tags":["a",null],' + KAFKA + "}", "x"
    )

    assert pretty(event, color=False).splitlines() == [
        "2026-09-21T14:13:20.000+00:00  countries/0@12  key=FR",
        "{",
        '  "name": "France",',
        '  "area": 25.00,',
        '  "id": 9007199254740993,',
        '  "tags": [',
        '    "a",',
        "    null",
        "  ]",
        "}",
    ]


def test_marks_a_deleted_key():
    """A tombstone has no value, so it is one line."""
    assert pretty(Event("delete", "{" + KAFKA + "}", "x"), color=False).endswith("countries/0@12  key=FR  delete")


def test_shows_the_type_and_the_id_of_other_events():
    """An event that is not in kafkasse's format is shown with its type and ID, and text that is not JSON as it is."""
    assert "update  7\nhello\nworld" == pretty(Event("update", "hello\nworld", "7"), color=False)


def test_colors_change_nothing_but_the_colors():
    event = Event("message", '{"a":[{},[],true,-1.5e3,"x: \\"y\\""],' + KAFKA + "}", "x")

    colored = pretty(event, color=True)

    assert pretty(event, color=False) == re.sub("\x1b\\[[0-9]*m", "", colored)
    assert "\x1b[36m-1.5e3\x1b[0m" in colored


def test_a_record_cannot_control_the_terminal():
    """Escape sequences in names, values, keys, types and IDs are replaced."""
    hostile = ["\x1b[2J", "\x9b2J", "\x07", "\u202e"]
    for text in hostile:
        for event in (
            Event("message", f'{{"{text}":"{text}"}}', text),
            Event(text, text, "1"),
            Event("message", f'{{"_kafka":{{"offset":1,"topic":"{text}","key":"{text}"}}}}', "1"),
        ):
            assert not set(text) & set("\x1b\x9b\x07\u202e") & set(pretty(event, color=False))


def test_deep_nesting_is_shown_unchanged():
    """A value that is too deep for Python's stack is not an error."""
    data = "[" * 100_000

    assert data in pretty(Event("message", data, ""), color=False)
    assert "[" * 900 in pretty(Event("message", "[" * 900 + "]" * 900, ""), color=False).replace("\n", "").replace(
        " ", ""
    )
