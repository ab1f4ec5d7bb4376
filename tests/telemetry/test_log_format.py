"""The lines of the log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from kafkasse.process.log_line import Fields
from kafkasse.process.telemetry.log_format import formatter

HOSTILE = "eve\r\n[2026-01-01] [1] [INFO] forged\x1b[2J\u2028"


def record(message: str, *args: object, **options: object) -> logging.LogRecord:
    return logging.LogRecord("kafkasse", logging.INFO, "file.py", 1, message, args, None, **options)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_text_from_clients_cannot_add_a_line_or_imitate_a_field(log_format):
    """Line breaks and control characters are escaped. A value with spaces, quotes or equals signs is in quotes."""
    line = formatter(log_format).format(record("client: %s", HOSTILE))
    fields = formatter(log_format).format(
        record("A stream ended: %s", Fields(visitor='eve" reason=operator', events=1))
    )

    assert line.isprintable()
    assert "forged" in line
    if log_format == "json":
        assert ('eve" reason=operator', 1) == (json.loads(fields)["visitor"], json.loads(fields)["events"])
    else:
        assert fields.endswith(r'A stream ended: visitor="eve\" reason=operator" events=1')


def failed() -> logging.LogRecord:
    """A record with the traceback of an exception, whose text may be from a client."""
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        return logging.LogRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())


def test_json_contains_the_traceback():
    """A traceback is one member, so the record stays one line."""
    line = formatter("json").format(failed())

    assert line.isprintable()
    assert "ValueError" in json.loads(line)["exception"]
    assert ("error", "failed") == (json.loads(line)["level"], json.loads(line)["message"])


def test_the_text_of_an_exception_cannot_add_a_line():
    """In the text format, the lines of a traceback are indented, so none of them looks like a line of the log."""
    _, *traceback = formatter("text").format(failed()).splitlines()

    assert "forged" in "".join(traceback)
    assert all(line.startswith("  ") and line.isprintable() for line in traceback)
