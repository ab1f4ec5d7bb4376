"""The ID of a request: accepted or generated."""

from __future__ import annotations

import pytest

from kafkasse.process.telemetry.request_id import request_id

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HTTP_X_REQUEST_ID": "req-1.a_B"}, "req-1.a_B"),
        ({"HTTP_X_REQUEST_ID": "a" * 64}, "a" * 64),
        ({"HTTP_TRACEPARENT": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}, TRACE_ID),
        ({"HTTP_X_REQUEST_ID": "mine", "HTTP_TRACEPARENT": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}, "mine"),
    ],
)
def test_accepts_the_id_of_a_proxy_or_client(environ, expected):
    """X-Request-ID wins over traceparent."""
    assert expected == request_id(environ)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("HTTP_X_REQUEST_ID", ""),
        ("HTTP_X_REQUEST_ID", "a" * 65),
        ("HTTP_X_REQUEST_ID", "a\r\nSet-Cookie: b"),
        ("HTTP_X_REQUEST_ID", "a\n"),
        ("HTTP_X_REQUEST_ID", 'a" level="error'),
        ("HTTP_X_REQUEST_ID", "-rf"),
        ("HTTP_TRACEPARENT", f"ff-{TRACE_ID}-00f067aa0ba902b7-01"),
        ("HTTP_TRACEPARENT", f"00-{'0' * 32}-00f067aa0ba902b7-01"),
        ("HTTP_TRACEPARENT", f"00-{TRACE_ID}-{'0' * 16}-01"),
        ("HTTP_TRACEPARENT", f"00-{TRACE_ID.upper()}-00f067aa0ba902b7-01"),
    ],
)
def test_replaces_an_id_that_is_not_safe(header, value):
    """The ID appears in a response header and in logs. The generated one stays the same during the request."""
    environ = {header: value}

    generated = request_id(environ)

    assert (16, True) == (len(generated), generated.isalnum())
    assert generated == request_id(environ) != request_id({header: value})
