"""gunicorn's gevent worker, which leaves well: at SIGTERM its streams end politely instead of being cut.

It also answers in JSON what gunicorn refuses before any app sees it: requests too large, or not HTTP.
"""

from __future__ import annotations

import json
from typing import Any

from gunicorn import util
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.ggevent import GeventWorker

from kafkasse.errors import BadRequest, HeaderTooLarge, KafkasseError, RequestTooLarge

_ADVICE = "Name fewer topics, or have ids written in the compact form (the setting compact_ids)."


class Worker(GeventWorker):  # type: ignore[misc]
    """See the module. Chosen by gunicorn.conf.py."""

    def load_wsgi(self) -> None:
        """Load the app, and let its streams write past werkzeug's and gunicorn's iterators."""
        super().load_wsgi()
        self.wsgi: Any = _direct(self.wsgi)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: end what is open, then stop."""
        self._end_streams()
        super().handle_exit(sig, frame)

    def notify(self) -> None:
        """Called every second. After max_requests gunicorn stops a worker without a signal; its streams end as well."""
        super().notify()
        if not self.alive:
            self._end_streams()

    def _end_streams(self) -> None:
        from kafkasse.web import stream  # not at the top: gunicorn imports this module before it patches

        if not stream.stopping():
            stream.drain()

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Refuse in JSON what could not be read as a request."""
        error = _refusal(exc)
        if error is None:
            super().handle_error(req, client, addr, exc)
            return
        self.log.warning("refused a request: %s", type(exc).__name__)
        body = json.dumps(error.problem()) + "\n"
        try:
            util.write_nonblock(client, _response(error, body))
        except OSError:
            self.log.debug("the client did not wait for its error")


def _direct(app: Any) -> Any:
    """`app`, whose streams write to their sockets directly where nothing has wrapped them on the way out."""
    from kafkasse.web.stream import Stream

    def directly(environ: dict[str, Any], start_response: Any) -> Any:
        body = app(environ, start_response)
        if isinstance(body, Stream) and environ["SERVER_PROTOCOL"] == "HTTP/1.1":
            body.write_directly()
        return body

    return directly


def _refusal(exc: Exception) -> KafkasseError | None:
    if isinstance(exc, LimitRequestLine):
        return RequestTooLarge(
            f"The request line is too long. Send a long position in the Last-Event-ID header. {_ADVICE}"
        )
    if isinstance(exc, LimitRequestHeaders):
        return HeaderTooLarge(f"The request's header is too large. {_ADVICE}")
    if isinstance(exc, ParseException):
        return BadRequest("This is not a request that HTTP allows.")
    return None


def _response(error: KafkasseError, body: str) -> bytes:
    return (
        f"HTTP/1.1 {error.status} {error.title}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
    ).encode()
