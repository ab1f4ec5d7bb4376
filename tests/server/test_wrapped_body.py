"""A body that middleware has wrapped: its first part, its end, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import gevent
import pytest

from kafkasse.server.wrapped_body import WrappedBody

variable: ContextVar[str] = ContextVar("variable", default="outside")


class Body:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        yield b"first"
        yield b"second"

    def close(self) -> None:
        self.calls.append("close")


def traced(body: Any, calls: list[str]) -> Iterator[bytes]:
    """Wrap a body as OpenTelemetry does: its context variable is reset in the context in which it was set."""
    token = variable.set("inside")
    try:
        yield from body
    finally:
        body.close()
        variable.reset(token)
        calls.append("reset")


def test_the_wrapper_ends_in_the_context_in_which_it_began():
    """Another greenlet ends it, after the greenlet of the request has finished."""
    body = Body()
    wrapped = gevent.spawn(lambda: WrappedBody(traced(body, body.calls))).get()

    assert b"first" == wrapped.first
    gevent.spawn(wrapped.end).get()

    assert ["close", "reset"] == body.calls
    assert "outside" == variable.get()


def test_a_body_that_fails_is_closed():
    """The server gets the exception instead of a body, so it cannot close the body."""

    class Failing(Body):
        def __iter__(self) -> Iterator[bytes]:
            raise OSError("broken")

    body = Failing()
    with pytest.raises(OSError, match="broken"):
        WrappedBody(body)

    assert ["close"] == body.calls


@pytest.mark.parametrize(("body", "parts"), [(Body(), [b"first", b"second"]), (iter(()), [])], ids=["parts", "empty"])
def test_the_server_can_iterate_over_it(body, parts):
    """close() closes the body. Middleware that is a generator may answer without a body."""
    wrapped = WrappedBody(body)

    assert parts == [part for part in wrapped if part]
    wrapped.close()
    assert ["close"] == getattr(body, "calls", ["close"])


@pytest.mark.parametrize(("body", "name"), [(Body(), "Body"), (traced(Body(), []), "traced")])
def test_names_the_wrapper(body, name):
    """The log contains the name of the class or of the generator function, with its module."""
    assert f"{__name__}.{name}" == WrappedBody(body).name
