"""A response body that middleware has wrapped, as tracing and error reporting do.

The worker wants to send a stream itself, because a server that iterates over the wrapper needs a greenlet for each client. A
wrapper that returns the first part of the stream unchanged does not change the others. It therefore receives only the first
part and, after the stream, the end of the body and the call of close().
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from gevent import getcurrent


class WrappedBody:
    """The body that a WSGI app returned, after its first part was read.

    Attributes:
        first: the first part; b"" if the body is empty.
        name: the function or class that wraps the body.
    """

    def __init__(self, body: Any) -> None:
        self.name = _name(body)
        self._body = body
        try:
            self._parts = iter(body)
            self.first = next(self._parts, b"")
        except BaseException:
            self.close()
            raise
        # A wrapper may set context variables in its first part and reset them at its end, which needs the same context.
        self._context = getcurrent().gr_context

    def __iter__(self) -> Iterator[bytes]:
        yield self.first
        yield from self._parts

    def close(self) -> None:
        """Close the body. The server calls this if it has iterated over this object."""
        if hasattr(self._body, "close"):
            self._body.close()

    def end(self) -> None:
        """Let the wrapper reach its end, as if the server had sent all other parts, then close it."""
        if self._context is None or self._context is getcurrent().gr_context:
            self._end()
        else:
            self._context.run(self._end)

    def _end(self) -> None:
        try:
            next(self._parts, None)
        finally:
            self.close()


def _name(body: Any) -> str:
    if type(body) is GeneratorType:  # not isinstance(): a proxy pretends to be the object that it wraps
        module = body.gi_frame.f_globals.get("__name__", "") if body.gi_frame else ""
        return f"{module}.{body.__qualname__}"
    return f"{type(body).__module__}.{type(body).__qualname__}"
