"""How `kafkasse load` converts the rows of CSV and JSON lines files to records. No broker is needed."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.commands.load import MAX_LINE_BYTES, BadRow, Lines, csv_rows, json_rows


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("25.00", "25.00"), ("9007199254740993", "9007199254740993"), ("-1e5", "-1e5"), ("0", "0"),
        ("007", '"007"'), ("NA", '"NA"'), ("", '""'), ("1.", '"1."'), (".5", '".5"'), ("+1", '"+1"'), ("NaN", '"NaN"'),
        ("1_000", '"1_000"'), ("٣", '"٣"'), ("true", '"true"'), (" 1", '" 1"'), ("1\n", '"1\\n"'),
    ],
)  # fmt: skip
def test_keeps_the_digits_of_a_number(field: str, expected: str) -> None:
    """A CSV field that is a JSON number keeps its text. Any other field becomes a string."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], [field, "x"]])
    file.seek(0)

    [row] = csv_rows(file, None)

    assert row.value.decode() == f'{{"a":{expected},"b":"x"}}'


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=2, max_size=2), max_size=5))
def test_converts_any_csv_file_without_loss(rows: list[list[str]]) -> None:
    """The JSON contains the text of each CSV field, and the key is the text of the key's column."""
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["a", "b"], *rows])
    lines = Lines(io.BytesIO(file.getvalue().encode()))

    found = list(csv_rows(lines, "a"))

    assert [row.key for row in found] == [row[0].encode() for row in rows]
    assert [
        {name: value if isinstance(value, str) else None for name, value in json.loads(row.value).items()}
        for row in found
    ] == [
        {name: None if _is_number(value) else value for name, value in zip("ab", row, strict=True)} for row in rows
    ]  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        return type(json.loads(text, parse_constant=str)) in (int, float) and text == text.strip()
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ('{"k":"007"}', "k", b"007"), ('{"k":""}', "k", b""), ('{"k":null}', "k", None), ('{"k":1.50}', "k", b"1.50"),
        ('{"k":false}', "k", b"false"), ("[1]", None, None),
    ],
)  # fmt: skip
def test_takes_the_key_from_a_member(text: str, key: str | None, expected: bytes | None) -> None:
    """The key is the member's text. If the member is null, there is no key, which differs from an empty key."""
    [row] = json_rows([text], key)

    assert row == (1, expected, text.encode())


@pytest.mark.parametrize(
    ("rows", "text", "key", "sentence"),
    [
        (csv_rows, b"a,b\n1,2\n1,2,3\n", None, "line 3 has 3 fields where the header has 2"),
        (csv_rows, b"", None, "line 1 must name the columns"),
        (csv_rows, b"a,a\n", None, "line 1 names the column 'a' twice"),
        (csv_rows, b"a,b\n1,2\n", "c", "line 1 has no column 'c', only a, b"),
        (csv_rows, b'a,b\n1,2\n3,"4\n', None, "line 3 is not CSV: unexpected end of data"),
        (csv_rows, b"a,b\n1,\xff\n", None, "line 2 is not UTF-8"),
        (csv_rows, b"a\n" + b"x" * (MAX_LINE_BYTES + 1), None, f"line 2 is longer than {MAX_LINE_BYTES} bytes"),
        (json_rows, b'{"a":1}\n{"a":\n', None, "line 2 is not JSON"),
        (json_rows, b"NaN\n", None, "line 1 is not JSON: NaN is not JSON"),
        (json_rows, b"[" * 100_000, None, "line 1 is not JSON"),
        (json_rows, b'\n{"a":1}\n', "b", "line 2 has no 'b'"),
        (json_rows, b"1\n", "b", "line 1 has no 'b'"),
        (json_rows, b'{"b":[1]}\n', "b", "line 1 has an object or array in 'b'"),
        (json_rows, b'{"b":"\\ud800"}\n', "b", "line 1 is not JSON"),
    ],
)
def test_names_the_invalid_line(rows: Any, text: bytes, key: str | None, sentence: str) -> None:
    """The error contains the line number and the reason."""
    with pytest.raises(BadRow) as error:
        list(rows(Lines(io.BytesIO(text)), key))

    assert sentence in str(error.value)


def test_ignores_a_byte_order_mark() -> None:
    """A byte order mark, which spreadsheets write, is not part of the first column's name."""
    [row] = csv_rows(Lines(io.BytesIO(b"\xef\xbb\xbfa,b\r\n1,2\r\n")), "a")

    assert row == (2, b"1", b'{"a":1,"b":2}')
