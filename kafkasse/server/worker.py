"""gunicorn's gevent worker, which leaves well: at SIGTERM its streams end politely instead of being cut.

It also answers in JSON what gunicorn refuses before any app sees it: requests too large, or not HTTP. And it bounds what
gunicorn leaves open, all of which one client could hold up everybody else with: headers of 6.5 MB, bodies without end that
nobody reads, requests by the thousand on one connection, and answers that are never taken.
"""

from __future__ import annotations

import gc
import json
import time
from datetime import datetime
from typing import Any

import gevent
from gunicorn import http, util
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.ggevent import GeventWorker

from kafkasse.errors import BadRequest, HeaderTooLarge, KafkasseError, RequestTooLarge

HEADER_BYTES_MAX = 131_072  # of a whole request's header: an id of 64 KiB, and as much for cookies and the rest
BODY_REST_BYTES_MAX = 65_536  # of a request's body that no app has read
CUT_BEFORE_S = 0.5  # gunicorn kills the worker, so that what is still open ends as it can
STOP_LOOK_S = 0.05  # how often a worker that stops looks whether all streams have ended
GARBAGE_OBJECTS_MAX = 20_000  # that may be made, and not freed, before cycles among them are looked for
_ADVICE = "Name fewer topics, or have ids written in the compact form (the setting compact_ids)."


class _Request(http.Request):  # type: ignore[misc]
    """A request whose header is bounded as a whole.

    gunicorn bounds each field and their number, and looks through all that has come for each 8 KiB more. Up to its bound
    that takes six seconds, and as long as there is more to read nobody else is served.
    """

    def parse(self, unreader: Any) -> Any:
        self.max_buffer_headers = HEADER_BYTES_MAX
        return super().parse(unreader)


class _Parser(http.RequestParser):  # type: ignore[misc]
    """Requests of one connection, which ends where a body goes on and on: gunicorn would read it to its end, alone."""

    mesg_class = _Request

    def finish_body(self, deadline: float | None = None, max_bytes: int | None = BODY_REST_BYTES_MAX) -> bool:
        return bool(super().finish_body(deadline, max_bytes))


class Worker(GeventWorker):  # type: ignore[misc]
    """See the module. Chosen by gunicorn.conf.py.

    Attributes:
        write_timeout_s: within it a client must take each piece of an answer, 10 MB perhaps in an app of somebody's own.
            Streams have a deadline of their own.
    """

    write_timeout_s = 120.0
    _cut_at = 0.0

    def load_wsgi(self) -> None:
        """Load the app, and let its streams write past werkzeug's and gunicorn's iterators."""
        super().load_wsgi()
        self.wsgi: Any = self._direct(self.wsgi)
        http.RequestParser = _Parser  # what gunicorn's get_parser() makes; it has no setting for it
        # Records come by the thousand and none is part of a cycle: by default a twentieth of the time went into looking.
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS_MAX)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Answer one request, then let others have their turn: the next of this connection may be here already."""
        sock.settimeout(self.write_timeout_s)
        try:
            super().handle_request(listener_name, req, sock, addr)
        except TimeoutError:
            raise StopIteration from None  # gunicorn closes the connection
        gevent.sleep(0)

    def run(self) -> None:
        """Serve until told to stop, then until all streams have ended: gunicorn knows only of those with a greenlet."""
        from kafkasse.web import stream  # not at the top: gunicorn imports this module before it patches

        super().run()
        self._end_streams()
        while stream.open_streams() and time.monotonic() < self._cut_at:
            self.notify()
            gevent.sleep(STOP_LOOK_S)
        stream.cut()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """SIGTERM: end what is open, then stop."""
        self._end_streams()
        super().handle_exit(sig, frame)

    def notify(self) -> None:
        """Called every second. After max_requests gunicorn stops a worker without a signal; its streams end as well."""
        super().notify()
        if not self.alive:
            self._end_streams()

    def _direct(self, app: Any) -> Any:
        """`app`, whose streams write to their sockets themselves where nothing has wrapped them on the way out."""
        from kafkasse.web.stream import Stream

        is_logged = self.log.access_log_enabled or self.cfg.statsd_host

        def directly(environ: dict[str, Any], start_response: Any) -> Any:
            began = datetime.now()
            body = app(environ, start_response)
            if not (isinstance(body, Stream) and body.can_serve and environ["SERVER_PROTOCOL"] == "HTTP/1.1"):
                return body
            response = start_response.__self__
            response.force_close()

            def ended() -> None:
                self.log.access(response, response.req, environ, datetime.now() - began)

            body.serve(lambda data: _begun(response, data), ended if is_logged else None)
            raise StopIteration  # gunicorn's word for a connection that is over: the socket is the stream's now

        return directly

    def _end_streams(self) -> None:
        from kafkasse.web import stream  # not at the top: gunicorn imports this module before it patches

        if not stream.stopping():
            self._cut_at = time.monotonic() + self.cfg.graceful_timeout - CUT_BEFORE_S
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


class _Kept(list[bytes]):
    """In place of a socket: keeps what is sent."""

    sendall = list.append


def _begun(response: Any, data: bytes) -> bytes:
    """What gunicorn would send of a response that begins with `data`: its header, and a chunk."""
    response.sock = kept = _Kept()
    response.write(data)
    return b"".join(kept)


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
        f"X-Content-Type-Options: nosniff\r\nContent-Length: {len(body.encode())}\r\n\r\n{body}"
    ).encode()
