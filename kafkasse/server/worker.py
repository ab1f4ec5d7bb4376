"""gunicorn's gevent worker, adapted to streams. gunicorn.conf.py selects it.

- At SIGTERM, the worker first closes its listener, because a browser retries a refused connection but not a 503. Then its
  streams end with a last event ID instead of being cut off.
- A stream may take over its client's socket, so that an idle client needs no greenlet.
- Requests that gunicorn rejects before an app receives them (too large, or invalid HTTP) get our JSON error body and CORS
  headers.
- One client cannot block all others: the worker limits the size of all headers together (gunicorn allows 6.5 MB), the size
  of bodies that the app does not read, and the time to accept a response, and it yields between pipelined requests.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging.config
import mmap
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import gevent
from gevent import monkey

from kafkasse import __version__
from kafkasse.errors import (
    ID_TOO_LONG_ADVICE,
    BadRequest,
    ConfigurationError,
    HeaderTooLarge,
    KafkasseError,
    RequestTooLarge,
)
from kafkasse.process import control, runtime
from kafkasse.process.event_loop import take_turn
from kafkasse.process.log_line import one_line
from kafkasse.process.open_streams import OPENED_KEY, OPERATIONS_KEY, PARK_KEY, streams
from kafkasse.process.stream_services import reject_without_app, stream_services
from kafkasse.process.telemetry.request_id import HEADER, new_id
from kafkasse.server.gunicorn_internals import (
    MAX_HEADER_BYTES,
    GeventWorker,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
    SharedListener,
    can_give_away,
    has_access_log,
    keep_settings,
    limit_requests,
    mask_access_log,
    name_of_listener,
    send_error,
    start_of_response,
)
from kafkasse.server.kept_connections import KeptConnections
from kafkasse.server.reload import MAX_REASON_BYTES, reason_of
from kafkasse.server.short_collections import ShortCollections
from kafkasse.server.wrapped_body import WrappedBody
from kafkasse.web.headers import DEFAULT_HEADERS
from kafkasse.web.wsgi_server import max_client_descriptor, raise_descriptor_limit

# After the listener is closed, streams still open for this long, so that no connection that was just accepted gets a 503.
OPEN_AFTER_STOP_S = 0.2
# Close the remaining streams this long before gunicorn kills the worker, so that their hooks still run.
CLOSE_BEFORE_KILL_S = 0.5
STOP_CHECK_INTERVAL_S = 0.05
RETRY_LOAD_S = 5.0
# While this many new connections wait for their turn, the worker accepts no more. In the kernel, a waiting connection takes
# no memory of the worker; accepted, it takes 15 KiB. A lower limit would give new connections too few turns while many
# clients catch up.
MAX_WAITING_CONNECTIONS = 200
REST_OF_HEADER_TIMEOUT_S = 1.0
RECV_BYTES = 65_536
_ORIGIN = re.compile(rb"\r\norigin:[ \t]*([^\r\n]*)", re.IGNORECASE)


class _Stopped(Exception):
    """Ends gunicorn's loop."""


class Worker(GeventWorker):  # type: ignore[misc]
    """The gevent worker with the changes that the top of this module lists.

    Attributes:
        write_timeout_s: how long a client may take to accept each part of a response; a host app may send parts of 10 MB.
            Streams use the setting of the same name instead.
    """

    write_timeout_s = 120.0
    _close_streams_at = 0.0
    _is_quitting = False
    _waiting_connections = 0
    _operations_name: Any = None  # the address of the listener for operators, as getsockname() returns it

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Prepare a worker. gunicorn calls this in its master."""
        super().__init__(*args, **settings)
        if not runtime.has_started():
            self._start_runtime()
        mask_access_log(self.log)
        self._has_ended = mmap.mmap(-1, 1)  # shared with the master
        self._collections = ShortCollections(streams)
        self._listeners: list[SharedListener] = []
        self._kept = KeptConnections(self.cfg.keepalive, self._may_start)
        self._runner: Any = None  # the greenlet that is in gunicorn's loop
        self._control: Any = None
        self._reported_wrappers: set[tuple[str, bool]] = set()

    def _start_runtime(self) -> None:
        """Create the private directory, which end_streams() needs, if gunicorn.conf.py has not done so."""
        try:
            if self.cfg.uid != os.geteuid():
                raise ConfigurationError("With the option --user, the workers cannot use the directory of the master.")
            runtime.start(with_metrics=False)
        except (ConfigurationError, OSError) as error:
            self.log.warning("kafkasse.end_streams() ends only the streams of its own worker. %s", error)
        else:
            atexit.register(_stop_runtime, os.getpid())

    @classmethod
    def setup(cls) -> None:
        """Prepare gunicorn's master. With --preload, the master loads the app.

        The master waits for signals on a queue that it created before this call, so gevent's loop does not run. If gevent
        handled SIGCHLD there, the master would not replace workers that die, and would not end if the app cannot be loaded.
        """
        if not monkey.is_module_patched("signal"):  # if it is, the settings have already patched the queue, too
            monkey.patch_all(os=False, signal=False)
        raise_descriptor_limit()

    @property
    def failure(self) -> str:
        """Why this process has ended, as a label of `workers_failed`, or "" after a normal stop. For the master."""
        if self._has_ended[0]:
            return ""
        return "timeout" if self.aborted else "died"

    def init_process(self) -> None:
        """Initialize the process. It shares the master's memory until either process writes to it."""
        gc.freeze()  # otherwise, the garbage collector would write to all objects of the master
        atexit.register(_close_log_handlers)  # registered first, so it runs last: exit functions of the app can log
        keep_settings(self.cfg)
        self.log.info("kafkasse %s", __version__)  # after an upgrade and SIGHUP, the master still has the old version
        super().init_process()

    def patch(self) -> None:
        """Find the listener for operators, after gevent has patched all listeners."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Patching more than once")  # setup() has left out two modules
            super().patch()
        if address := os.environ.get(runtime.OPERATIONS_BIND):
            self._operations_name = name_of_listener(self, address)
            if self._operations_name is None:
                self.log.error(
                    "This server does not listen at %s, so operators cannot use it.", runtime.OPERATIONS_BIND
                )

    def load_wsgi(self) -> None:
        """Load the app, and let its streams take over their sockets."""
        try:
            super().load_wsgi()
        except (Exception, SystemExit) as error:
            if self.age <= self.cfg.workers and not runtime.worker_sockets():  # no worker has loaded the app yet
                raise
            # For example, the file of a guard has become invalid. With another exit code, gunicorn would end the server.
            self.log.error(
                "This worker cannot load the app. The next worker tries again in %g s. %s",
                RETRY_LOAD_S,
                one_line(reason_of(error), MAX_REASON_BYTES),
            )
            time.sleep(RETRY_LOAD_S)
            raise SystemExit(1) from None
        self.wsgi: Any = self._with_streams(self.wsgi)
        limit_requests()

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """Serve a new connection when it is its turn.

        Otherwise, if ten thousand clients connect at once, each callback of the event loop would wait until the requests of
        thousands of clients are parsed. A lookup in Kafka, which needs several callbacks, would exceed kafka_timeout_s.
        """
        self._waiting_connections += 1
        try:
            take_turn()
        finally:
            self._waiting_connections -= 1
        self._kept.serve_waiting()
        super().handle(listener, client, addr)

    def _may_start(self, not_started: int) -> bool:
        """Return whether another connection may wait for its turn. The greenlets of `not_started` ones have not started."""
        return self._waiting_connections + not_started < MAX_WAITING_CONNECTIONS

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """Handle one request, then yield to other greenlets, because the next request may have been pipelined."""
        take_turn()  # the requests of a hundred connections may arrive at once
        sock.settimeout(self.write_timeout_s)
        req.is_for_operators = self._is_for_operators(listener_name)
        req.accepted_by, req.peer = listener_name, addr
        try:
            super().handle_request(listener_name, req, sock, addr)
        except TimeoutError:
            raise StopIteration from None  # gunicorn closes the connection
        gevent.sleep(0)

    def _is_for_operators(self, listener_name: Any) -> bool:
        return self._operations_name is not None and bool(listener_name == self._operations_name)

    def server_class(self, listener: Any, spawn: Any, ssl_context: Any = None, **_: Any) -> SharedListener:
        """Create the server of a listener. gunicorn's run() calls this; it gives no access to servers of its own class."""
        ssl_args = {"ssl_context": ssl_context} if ssl_context else {}
        # A flood of clients must not lock out the operators.
        is_for_operators = self._is_for_operators(listener.getsockname())
        server = SharedListener(
            listener,
            self.handle,
            (lambda _: True) if is_for_operators else self._may_start,
            sys.maxsize if is_for_operators else max_client_descriptor(),
            spawn=spawn,
            **ssl_args,
        )
        if self.cfg.workers > 1:
            server.max_accept = 1  # leave connections to the other workers
        self._listeners.append(server)
        return server

    def run(self) -> None:
        """Serve until stopped, then wait until all requests and streams have ended.

        gunicorn looks only once a second whether it should stop, and does not wait for streams without a greenlet.
        """
        if (folder := runtime.folder()) is not None:
            self._serve_control(folder)
        self._collections.start()
        self._runner = gevent.getcurrent()
        if (self.age - 1) % self.cfg.workers == 0:  # one worker after each start or reload, as all log the same
            gevent.spawn(_reach_kafka)
        with suppress(_Stopped):
            super().run()
        self._runner = None
        self._begin_stop()
        while self._is_busy() and time.monotonic() < self._close_streams_at:
            self.notify()
            gevent.sleep(STOP_CHECK_INTERVAL_S)
        streams.close_all()
        if folder is not None and self._control is not None:
            self._control.close()
            runtime.socket_path(folder, os.getpid()).unlink(missing_ok=True)
        # The master may send SIGTERM again. While Python ends, the signal would kill this process, and the master would
        # log an error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._has_ended[0] = 1

    def _is_busy(self) -> bool:
        return len(streams) + len(self._kept) > 0 or any(len(listener.pool) for listener in self._listeners)

    def _serve_control(self, folder: Path) -> None:
        try:
            self._control = control.serve(runtime.socket_path(folder, os.getpid()), streams)
            addresses = ", ".join(_address(listener.getsockname()) for listener in self.sockets)
            runtime.set_name(f"process {self.ppid} at {addresses}")
        except OSError as error:  # for example because the path is too long for a Unix socket
            self.log.warning(
                "Neither operators nor kafkasse.end_streams() in other workers can end streams of this worker: %s.%s",
                error,
                f" Set {runtime.BASE_VARIABLE} to a shorter path." if "too long" in str(error) else "",
            )

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle SIGTERM: accept no more connections, end the open streams, then stop."""
        self._begin_stop()
        super().handle_exit(sig, frame)

    def handle_quit(self, sig: int, frame: Any) -> None:
        """Handle SIGINT from a terminal and SIGQUIT from gunicorn, once: a second exit would fail, and print a traceback."""
        if not self._is_quitting:
            self._is_quitting = True
            self._has_ended[0] = 1
            super().handle_quit(sig, frame)

    def notify(self) -> None:
        """End the streams if gunicorn stops this worker without a signal, as after max_requests. Called every second."""
        super().notify()
        if not self.alive:
            self._begin_stop()

    def _begin_stop(self) -> None:
        if not self._close_streams_at:
            self._close_streams_at = time.monotonic() + self.cfg.graceful_timeout - CLOSE_BEFORE_KILL_S
            # In a new greenlet, because the signal may have interrupted the code that accepts a connection.
            gevent.spawn(self._close_listeners)
            gevent.spawn_later(OPEN_AFTER_STOP_S, self._drain)

    def _drain(self) -> None:
        streams.drain()
        self._kept.close_idle()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        gevent.get_hub().loop.run_callback(self._wake)

    def _wake(self) -> None:
        if self._runner is not None:  # it sleeps, because the hub calls this
            self._runner.throw(_Stopped)

    def _with_streams(self, app: Any) -> Any:
        """Wrap `app` so that its streams serve themselves, unless middleware changes their bodies."""
        is_logged = has_access_log(self.log, self.cfg) or self.cfg.statsd_host

        def wrapped(environ: dict[str, Any], start_response: Any) -> Any:
            began_at = datetime.now()
            response = start_response.__self__
            environ[OPERATIONS_KEY] = response.req.is_for_operators
            opened: list[Any] = environ.setdefault(OPENED_KEY, [])
            if can_give_away(response, environ):
                environ[PARK_KEY] = start_response
            body = app(environ, start_response)
            # The poll keeps the environ for the access log. With the key, the environ would keep the poll.
            if body is environ.pop(PARK_KEY, None):
                log_access = partial(self._log_poll, response, environ, began_at) if is_logged else None
                self._park(body, response, log_access)
                raise StopIteration  # makes gunicorn release the connection: the poll owns the socket now
            if response.status is None:  # the app is a generator, which calls start_response() later
                body = WrappedBody(body)
            if getattr(response, "status_code", None) == HTTPStatus.SERVICE_UNAVAILABLE or streams.stopping:
                response.force_close()  # the idle connection would take a descriptor, or end with this worker
            stream = opened[0]() if opened else None
            if stream is None or not stream.can_serve or environ["SERVER_PROTOCOL"] != "HTTP/1.1":
                return body
            # Hundreds of streams may have waited for the same response from Kafka. Until a stream has sent its first bytes,
            # its request takes 10 KiB, so the stream continues before new connections.
            take_turn(urgent=True)
            if body is not stream:
                body = body if isinstance(body, WrappedBody) else WrappedBody(body)
                self._report_wrapper(body, is_changed := not stream.has_returned(body.first))
                if is_changed:
                    return body
                stream.call_on_end(body.end)
            response.force_close()
            if is_logged:
                stream.call_on_end(lambda: self.log.access(response, response.req, environ, datetime.now() - began_at))
            stream.serve(lambda data: start_of_response(response, data))
            raise StopIteration  # makes gunicorn release the connection: the stream owns the socket now

        return wrapped

    def _park(self, poll: Any, response: Any, log_access: Callable[[str, int], object] | None) -> None:
        req, client = response.req, response.sock
        response.start_response("200 OK", poll.headers)
        keep = None if response.should_close() else partial(self._keep, req.accepted_by, req.peer)
        poll.park(client, start_of_response(response, b""), keep, log_access)

    def _log_poll(self, response: Any, environ: Any, began_at: datetime, status: str, sent: int) -> None:
        response.status, response.sent = status, sent
        self.log.access(response, response.req, environ, datetime.now() - began_at)

    def _keep(self, listener_name: Any, addr: Any, client: Any) -> None:
        """Wait for the next request on a connection after a long poll."""
        self._kept.add(client, partial(self._serve_again, listener_name, addr))
        if streams.stopping:
            self._kept.close_idle()

    def _serve_again(self, listener_name: Any, addr: Any, client: Any) -> None:
        (listener,) = (listener for listener in self._listeners if listener.getsockname() == listener_name)
        listener.pool.add(gevent.getcurrent())  # counts towards worker_connections
        self.handle(listener, client, addr)

    def _report_wrapper(self, body: WrappedBody, is_changed: bool) -> None:
        """Log once for each kind of middleware how it affects the streams."""
        if (body.name, is_changed) in self._reported_wrappers:
            return
        self._reported_wrappers.add((body.name, is_changed))
        if is_changed:
            self.log.warning(
                "%s changes the body of streams. Each client therefore takes several times the CPU time and memory. Exclude"
                " the streams from this middleware; see docs/extensions.md.",
                body.name,
            )
        else:
            self.log.info("%s wraps the body of streams. It receives only their first part and their end.", body.name)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Respond in JSON if gunicorn could not parse a request."""
        error = _rejection(exc)
        if error is None:
            super().handle_error(req, client, addr, exc)
            return
        request_id = new_id()
        client_address = str(addr[0]) if isinstance(addr, tuple) else ""
        headers = reject_without_app(request_id, client_address, _origin(client, exc), error, type(exc).__name__)
        try:
            response = _error_response(error, request_id, headers)
            send_error(client, response)
        except OSError:
            self.log.debug("The client left before it received its error response.")


def _close_log_handlers() -> None:
    """Flush and close all log handlers, and empty the list that the logging module has of them.

    The list contains weak references, whose callbacks acquire a lock when the interpreter frees the handlers. gevent has
    patched this lock, and with many versions of gevent (such as 23.9 and 24.10), it fails while the interpreter exits: the
    log would contain the traceback "greenlet is being finalized". A configuration without handlers empties the list;
    logging.shutdown() does not.
    """
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})


def _stop_runtime(master: int) -> None:
    if os.getpid() == master:  # not in the workers, which inherit this exit function
        runtime.stop()


def _reach_kafka() -> None:
    for service in list(stream_services):
        service.reach_kafka()


def _address(name: Any) -> str:
    """Return the name of a socket as users write it: HOST:PORT, or unix:PATH."""
    if not isinstance(name, tuple):
        return f"unix:{os.fsdecode(name)}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rejection(exc: Exception) -> KafkasseError | None:
    if isinstance(exc, LimitRequestLine):
        return RequestTooLarge(
            f"The request line is too long. Send a long event ID in the Last-Event-ID header. {ID_TOO_LONG_ADVICE}"
        )
    if isinstance(exc, LimitRequestHeaders):
        return HeaderTooLarge(f"The request header is too large. {ID_TOO_LONG_ADVICE}")
    if isinstance(exc, ParseException):
        return BadRequest("The request is not valid HTTP.")
    return None


def _origin(client: Any, exc: Exception) -> str | None:
    """Return the origin of a request that gunicorn could not parse, or None if it is missing or repeated."""
    received: bytearray = getattr(exc, "received", bytearray())
    if isinstance(exc, LimitRequestLine | LimitRequestHeaders):
        # The rest of the header may be on its way. It must be read before the connection is closed: otherwise the client
        # receives an RST, which may destroy our response.
        with gevent.Timeout(REST_OF_HEADER_TIMEOUT_S, False), suppress(OSError):
            while b"\r\n\r\n" not in received and len(received) < MAX_HEADER_BYTES:
                if not (data := client.recv(RECV_BYTES)):
                    break
                received += data
    origins = _ORIGIN.findall(received.partition(b"\r\n\r\n")[0])
    return origins[0].decode("latin-1") if len(origins) == 1 else None


def _error_response(error: KafkasseError, request_id: str, cors_headers: Mapping[str, str]) -> str:
    body = json.dumps(error.problem() | {"request_id": request_id}) + "\n"
    headers = {
        "Connection": "close",
        HEADER: request_id,
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        **DEFAULT_HEADERS,
        **cors_headers,
    }
    lines = [f"HTTP/1.1 {error.status} {error.title}", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", body])
