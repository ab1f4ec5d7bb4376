"""CEL expressions: what they can read, and what happens when they have no result."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kafkasse.records.filter import ExpressionError, compile_expression
from kafkasse.records.filter.expression import ExpressionFailure
from kafkasse.records.frame.json_text import DeserializationError
from tests.filter.records import view_of

ORDER = {
    "amount": 25.5,
    "customer": {"id": 7, "tags": ["new", "vip"]},
    "items": [{"sku": "a"}, {"sku": "b"}],
    "note": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "topic == 'orders' && partition == 2 && offset == 7 && timestamp == 1790000000000",
        "key == 'k1'",
        "headers.type == 'paid'",
        "headers['type'] in ['created', 'paid']",
        "'type' in headers",
        "value.amount > 25",
        'value["customer"].id == 7',
        "'vip' in value.customer.tags",
        "value.items.exists(item, item.sku == 'b')",
        "value.items.all(item, size(item.sku) == 1)",
        "value.items[1].sku == 'b'",
        "has(value.customer.id) && !has(value.customer.name)",
        "value.note == null",
        "value.customer.tags[0].startsWith('n') && value.customer.tags[1].matches(r'^v[a-z]+$')",
        "value.amount > 1000.0 || value.customer.id == 7",
        "value.missing > 1 || true",
        "timestamp('2026-01-01T00:00:00Z') < timestamp('2027-01-01T00:00:00Z')",
        "value.customer.id == 7 ? true : false",
        "// a comment\n value.amount > 1.0",
    ],
)
def test_reads_each_part_of_a_record(text):
    view = view_of(ORDER, b"k1", [("type", b"paid")])

    assert compile_expression(text).matches(view) is True


def test_reads_the_last_of_repeated_headers():
    """If a record repeats a header, an expression reads the last one, as lastHeader() of Kafka's clients does."""
    view = view_of(headers=[("type", b"created"), ("type", b"paid")])

    assert compile_expression("headers.type == 'paid'").matches(view)


def test_parts_without_a_value_are_null():
    view = view_of(None, None, [("h", None)], timestamp=-1)

    assert compile_expression("key == null && value == null && headers.h == null && timestamp == null").matches(view)


def test_bytes_that_are_not_text_differ_from_every_text():
    assert compile_expression("key != 'x'").matches(view_of(key=b"\xff"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value.missing > 1", "a field is missing"),
        ("value.amount > 'a'", "the types of two values do not fit"),
        ("value.amount", "the result is neither true nor false"),
        ("1 / 0 == 1", "it failed with ZeroDivisionError"),
        ("value.items[9].sku == 'a'", "it failed with IndexError"),
    ],
)
def test_says_why_there_is_no_result(text, reason):
    """An expression that fails, or whose result is not a truth value, reports the reason without a part of the record."""
    with pytest.raises(ExpressionFailure, match=f"^{reason}$"):
        compile_expression(text).matches(view_of(ORDER))


def test_a_value_that_is_not_json_cannot_be_read():
    """An expression decodes the value only if it reads the value."""
    view = view_of(b"not JSON", b"k1")

    assert compile_expression("key == 'k1'").matches(view)
    with pytest.raises(DeserializationError):
        compile_expression("value.amount > 1").matches(view)


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("value.amount >> 10", 1, 15, "extraneous input '>'"),
        ("value.amount >\n  10 &&", 2, 8, "mismatched input '<EOF>'"),
        ("valeu.amount > 10", 1, 1, "there is no variable valeu: did you mean value?"),
        ("value.name.startWith('a')", 1, 12, "there is no function startWith(): did you mean startsWith?"),
        (
            "timestamp(value.t).getHours('UTC') == 1",
            *(1, 20, "getHours() does not accept a time zone: the result is in that of the timestamp"),
        ),
        ("key == 'a' & true", 1, 12, "unexpected character '&'"),
        ("value.name.matches('(')", 1, 20, "the pattern is not a valid regular expression"),
    ],
)
def test_an_invalid_expression_has_a_position(text, line, column, reason):
    """An error has the line and the column of the mistake, the reason, and a picture with a caret below the mistake."""
    with pytest.raises(ExpressionError) as raised:
        compile_expression(text)

    error = raised.value
    assert (line, column, reason) == (error.line, error.column, error.reason)
    assert f"{text.splitlines()[line - 1]}\n{' ' * (column - 1)}^" == error.picture


def test_expressions_that_differ_in_spaces_are_equal():
    """Clients that write the same expression with other spaces share a feed."""
    first, second = compile_expression("value.a>1&&key=='a b'"), compile_expression(" value.a > 1\n && key == 'a b'")

    assert (first, hash(first)) == (second, hash(second))
    assert first != compile_expression("value.a>1&&key=='a  b'")


def test_converts_only_the_fields_that_it_reads(monkeypatch):
    """A large value costs nothing if the expression reads a small part of it."""
    given: list[Any] = []
    compiled = compile_expression("value.customer.id == 7 && !has(value.items) && value.note != 'x'")
    monkeypatch.setattr(
        compiled, "_program", type("Program", (), {"execute": lambda self, context: given.append(context)})()
    )

    with pytest.raises(ExpressionFailure):
        compiled.matches(view_of({**ORDER, "items": 1, "more": ["x"] * 10_000}))

    assert [{"value": {"customer": {"id": 7}, "items": 1, "note": None}}] == given


def test_a_field_of_a_value_without_members_is_missing():
    """An expression that reads a member of a list, a text or a number has no result."""
    for value in ([1], "text", 5, None, {"a": [1]}, {"a": "text"}):
        with pytest.raises(ExpressionFailure):
            compile_expression("value.a.b == 1").matches(view_of(value))


@pytest.mark.processes
def test_does_not_import_the_command_line_of_the_library():
    """The command line of the library would take 30 MB of each worker. The app can still import the library."""
    code = (
        "import sys; from kafkasse.records.filter import compile_expression; assert 'cel' not in sys.modules;"
        "compile_expression('key == null'); assert not {'typer', 'prompt_toolkit', 'cel.cli'} & sys.modules.keys();"
        "import cel; assert cel.compile('1 == 1').execute({})"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
