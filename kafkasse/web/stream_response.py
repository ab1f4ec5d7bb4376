"""The Flask response to a request for a stream. Hooks and extensions of the host app may treat it as any other response."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from flask import Response
from werkzeug.datastructures import Headers

from kafkasse.process.open_streams import PARK_KEY
from kafkasse.web.long_poll import LongPoll
from kafkasse.web.stream import StreamBody

# With Content-Encoding, Flask-Compress does not buffer the body. get_wsgi_response() removes the header.
UNCOMPRESSED = {"Content-Encoding": "identity"}
if TYPE_CHECKING:
    _Base = Response
else:
    _Base = object


class _StreamResponse(_Base):
    """Overrides methods of the host app's response class."""

    _has_werkzeugs_headers: bool

    def call_on_close(self, func: Callable[[], Any]) -> Callable[[], Any]:
        """Call a function when the stream has ended. The server closes the stream, but not the response."""
        if not isinstance(self.response, StreamBody):
            return super().call_on_close(func)
        self.response.call_on_end(func)
        return func

    def make_sequence(self) -> None:
        """Reject a hook that reads the body, for example with get_data(). It would wait forever.

        Raises:
            RuntimeError: always, if there is a stream.
        """
        if not isinstance(self.response, StreamBody):
            super().make_sequence()
            return
        raise RuntimeError("A stream has no end, so its body cannot be read. Check `response.is_streamed` first.")

    def freeze(self, *args: Any, **options: Any) -> None:
        """Reject a hook that reads the body, as make_sequence() does."""
        self.make_sequence()
        super().freeze(*args, **options)

    def get_wsgi_headers(self, environ: Any) -> Headers:
        # For a stream, werkzeug would only copy them, which takes a twentieth of the time to open it.
        return self.headers if self._has_werkzeugs_headers and self.is_streamed else super().get_wsgi_headers(environ)

    def get_wsgi_response(self, environ: Any) -> tuple[Iterable[bytes], str, list[tuple[str, str]]]:
        body, status, headers = super().get_wsgi_response(environ)
        return body, status, [header for header in headers if header not in UNCOMPRESSED.items()]


class PollResponse(_Base):
    """The response to a long poll that waits. A hook that needs more than the headers makes it wait in its greenlet."""

    _poll: LongPoll | None = None  # until the response is complete
    _is_parked = False
    _prepare: Callable[[Any], object]  # called with the response before a greenlet waits for it

    def start(self, poll: LongPoll, prepare: Callable[[Any], object]) -> None:
        """Let the response wait for this poll. It has the headers of status 200."""
        self._poll, self._prepare = poll, prepare
        super().call_on_close(poll.opened.close)

    def call_on_close(self, func: Callable[[], Any]) -> Callable[[], Any]:
        if self._poll is None:
            return super().call_on_close(func)
        self._poll.opened.call_on_close(func)
        return func

    def _complete(self) -> None:
        if self._is_parked:  # a function that is called when the response has ended
            return
        poll, self._poll = self._poll, None
        if poll is not None:
            self._prepare(self)
            answer = poll.answer()
            for name in answer.replaced:
                self.headers.pop(name, None)
            self.headers.update(answer.headers)
            self.status, self.response = answer.status, list(answer.body)

    def __call__(self, environ: Any, start_response: Any) -> Any:
        """Return the poll if no middleware needs the status or the headers."""
        poll = self._poll
        if poll is None or start_response != environ.get(PARK_KEY):
            self._complete()
            return super().__call__(environ, start_response)
        poll.headers, poll.start_response = self.headers.to_wsgi_list(), start_response
        poll.prepare = partial(self._prepare, self)
        self._is_parked = True
        environ[PARK_KEY] = poll
        return poll


def _of_complete(name: str) -> Any:
    """Return an attribute of PollResponse that a response has only when it is complete."""

    def get(response: PollResponse) -> Any:
        response._complete()
        return parent.__get__(response) if (parent := _parent(response)) else response.__dict__[name]

    def set(response: PollResponse, value: Any) -> None:
        response._complete()
        if parent := _parent(response):
            parent.__set__(response, value)
        else:
            response.__dict__[name] = value

    def _parent(response: PollResponse) -> Any:
        return getattr(super(PollResponse, type(response)), name, None)

    return property(get, set)


for _name in ("response", "status", "status_code"):
    setattr(PollResponse, _name, _of_complete(_name))


@cache
def stream_response_class(base: type[Response]) -> type[Response]:
    """Return the class of the responses of streams in an app whose response class is `base`.

    It is a subclass of `base`, because Flask converts responses that are not instances of the app's class.
    """
    has_werkzeugs_headers = base.get_wsgi_headers is Response.get_wsgi_headers
    return type("StreamResponse", (_StreamResponse, base), {"_has_werkzeugs_headers": has_werkzeugs_headers})


def has_werkzeugs_response(base: type[Response]) -> bool:
    """Return whether a response class has Werkzeug's functions for the server. Others may need the whole response."""
    names = ("__call__", "get_wsgi_headers", "get_wsgi_response", "get_app_iter")
    return all(getattr(base, name) is getattr(Response, name) for name in names)


@cache
def poll_response_class(base: type[Response]) -> Any:
    """Return the class of the responses to long polls that wait. See stream_response_class()."""
    return type("PollResponse", (PollResponse, base), {})
