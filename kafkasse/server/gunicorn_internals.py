"""What kafkasse uses of gunicorn beyond its documented settings and hooks. Its private names are here.

Worker, in worker.py, overrides methods of gunicorn's gevent worker and reads its responses; reload.py uses the app of the
arbiter. NAMES lists these names, and a test checks that the installed version of gunicorn has them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any

import gevent
from gevent.server import StreamServer
from gunicorn import http, sock, util
from gunicorn.errors import HaltServer
from gunicorn.glogging import SafeAtoms
from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine, ParseException
from gunicorn.workers.ggevent import GeventWorker

from kafkasse.process.limited_log import LimitedLog
from kafkasse.process.log_line import one_line

log = logging.getLogger(__name__)

__all__ = ["GeventWorker", "LimitRequestHeaders", "LimitRequestLine", "ParseException"]

MAX_HEADER_BYTES = 131_072  # of a request's whole header: 64 KiB for an event ID, and 64 KiB for all other fields
MAX_UNREAD_BODY_BYTES = 65_536  # of a request body that the app did not read
DISCARD_BYTES = 8_192
RETRY_ACCEPT_S = 0.1  # while there are too few descriptors
_TOKENS = re.compile(
    r"((?:^|[?&])(?:ticket|access_token|id_token|token|jwt|api_?key|authorization)=)[^&\s\"]*|"
    r"(?<![\w-])(?:ey[\w-]{8,}\.[\w.-]+|kafkasse_[\w-]{20,})",
    re.IGNORECASE,
)

# The names by the module or class that has them. Of several names with a | between them, one is enough.
NAMES = {
    "gunicorn.http": "RequestParser Request",
    "gunicorn.http.parser.RequestParser": "mesg_class __next__",
    "gunicorn.http.message.Request": "parse read_into|get_data should_close",
    "gunicorn.http.body.Body": "read",
    "gunicorn.http.errors": "LimitRequestHeaders LimitRequestLine ParseException",
    "gunicorn.http.wsgi.Response": "force_close should_close start_response write",
    "gunicorn.glogging": "SafeAtoms",
    "gunicorn.glogging.Logger": "atoms_wrapper_class access reopen_files",
    "gunicorn.util": "parse_address write_nonblock",
    "gunicorn.config.Config": "address is_ssl logger_class worker_class_str",
    "gunicorn.errors": "HaltServer",
    "gunicorn.arbiter.Arbiter": "START_CTX WORKERS handle_hup handle_int handle_usr2 "
    "kill_workers reap_workers spawn_workers",
    "gunicorn.app.base.Application": "reload wsgi",
    "gunicorn.workers.base.Worker": "init_process load_wsgi handle_exit notify handle_error",
    "gunicorn.workers.ggevent.GeventWorker": "server_class patch handle handle_request handle_quit run",
}


class _Request(http.Request):  # type: ignore[misc]
    """A request with a limit on the size of its whole header.

    gunicorn limits only each field and the number of fields. For every 8 KiB that it receives, it searches all bytes of the
    header again. For the largest header that it allows, this takes six seconds, during which it serves no other client.
    """

    def parse(self, unreader: Any) -> Any:
        self.max_buffer_headers = MAX_HEADER_BYTES
        self._received = bytearray()
        try:
            return super().parse(unreader)
        except ParseException as error:
            error.received = self._received  # handle_error() receives only the exception
            raise
        finally:
            self._received = bytearray()  # a request may stay open for a long time

    def read_into(self, unreader: Any, buf: bytearray, stop: bool = False) -> None:  # gunicorn 24 or newer
        before = len(buf)
        super().read_into(unreader, buf, stop)
        self._received += buf[before:]

    def get_data(self, unreader: Any, buf: Any, stop: bool = False) -> None:  # older versions
        before = buf.tell()
        super().get_data(unreader, buf, stop)
        self._received += buf.getvalue()[before:]


class _Parser(http.RequestParser):  # type: ignore[misc]
    """Parses the requests of one connection. Closes it if the app left a large body unread, which gunicorn would read."""

    mesg_class = _Request

    def __next__(self) -> Any:
        if self.mesg and not self.mesg.should_close() and not getattr(self.mesg.body, "failed", False):
            self._discard(self.mesg.body)
        return super().__next__()

    def _discard(self, body: Any) -> None:
        unread_bytes = 0
        try:
            while data := body.read(DISCARD_BYTES):
                unread_bytes += len(data)
                if unread_bytes >= MAX_UNREAD_BODY_BYTES:
                    raise StopIteration
        except TimeoutError:
            raise StopIteration from None


class _Atoms(SafeAtoms):  # type: ignore[misc]
    """The parts of a line in the access log, on one line. A user name in Authorization may contain line breaks.

    Tokens in URLs are masked. The server rejects all of them except tickets, but a client has sent them.
    """

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return one_line(_TOKENS.sub(r"\1********", value), MAX_HEADER_BYTES) if isinstance(value, str) else value


class SharedListener(StreamServer):  # type: ignore[misc]
    """Accepts connections on a socket that all workers share. close() closes only this worker's copy of the socket.

    Args:
        may_accept: returns whether this worker accepts connections now. Until then, they wait in the kernel. Its argument is
            the number of connections whose greenlets have not started: a busy event loop starts them late.
        max_descriptor: while all descriptors below this one are in use, connections also wait in the kernel.
    """

    _spawn: Any

    def __init__(
        self,
        listener: Any,
        handle: Callable[[Any, Any, Any], None],
        may_accept: Callable[[int], bool],
        max_descriptor: int,
        **settings: Any,
    ) -> None:
        super().__init__(listener, partial(handle, self), **settings)
        self._may_accept = may_accept
        self._max_descriptor = max_descriptor
        self._is_full = False
        self._limited_log = LimitedLog()
        self._not_started = 0
        self._spawn_greenlet, self._spawn = self._spawn, self._spawn_counted  # gevent calls _spawn for each connection

    def _spawn_counted(self, *call: Any) -> None:
        self._spawn_greenlet(self._start_greenlet, *call)
        self._not_started += 1

    def _start_greenlet(self, run: Callable[..., None], *arguments: Any) -> None:
        self._not_started -= 1
        run(*arguments)

    def do_read(self) -> Any:
        """Accept a connection. Returns None if there is none, or if this worker does not accept it now."""
        if not self._may_accept(self._not_started):
            return None
        try:
            if self._is_full:
                os.close(lowest_free := os.dup(self.socket.fileno()))
                if lowest_free >= self._max_descriptor:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            accepted = super().do_read()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._pause(str(error.strerror))
            return None
        if accepted:
            self._is_full = accepted[0].fileno() >= self._max_descriptor
        return accepted

    def _pause(self, reason: str) -> None:
        if self._limited_log.is_due(reason):
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            log.warning("%s. New connections wait. The limit (ulimit -n) is %s.", reason, limit)
        self.stop_accepting()
        self._timer = self.loop.timer(RETRY_ACCEPT_S)
        self._timer.start(self._start_accepting_if_started)

    def getsockname(self) -> Any:
        """Return the address of the socket, even if it is closed: gunicorn calls this in the greenlet of each connection."""
        return self.address


class _SendRecorder(list[bytes]):
    """A substitute for a socket that records the bytes that are sent."""

    sendall = list.append


def limit_requests() -> None:
    """Limit the headers and the unread bodies of all requests of this process. gunicorn has no setting for its parser."""
    http.RequestParser = _Parser  # get_parser() looks up this name


def keep_settings(cfg: Any) -> None:
    """Make each setting an attribute. Otherwise, gunicorn looks up 24 of them by name for each request."""
    vars(cfg).update({name: setting.get() for name, setting in cfg.settings.items()})


def mask_access_log(log: Any) -> None:
    """Mask tokens in the lines of the access log, and keep each of them on one line."""
    log.atoms_wrapper_class = _Atoms


def has_access_log(log: Any, cfg: Any) -> bool:
    """Return whether gunicorn writes an access log. gunicorn before 25.3 has no property for it."""
    configured = cfg.accesslog or cfg.logconfig or cfg.logconfig_dict or cfg.syslog
    return bool(getattr(log, "access_log_enabled", configured))


def name_of_listener(worker: Any, address: str) -> Any:
    """Return the name that the worker's socket for an address has, or None if the worker does not listen there."""
    addresses = list(worker.cfg.address)
    wanted = util.parse_address(address)
    if wanted not in addresses or len(addresses) != len(worker.sockets):
        return None
    name = worker.sockets[addresses.index(wanted)].getsockname()
    # systemd may pass its sockets in another order.
    is_same = wanted[1] in (0, name[1]) and _may_be(wanted[0], name[0]) if isinstance(wanted, tuple) else wanted == name
    return name if is_same else None


def _may_be(host: str, address: str) -> bool:
    """Return whether a host is this IP address, or a name."""
    try:
        return ip_address(host) == ip_address(address)
    except ValueError:
        return True


def start_of_response(response: Any, data: bytes) -> bytes:
    """Return what gunicorn would send for a response that starts with `data`: the header and one chunk."""
    response.sock = recorder = _SendRecorder()
    response.write(data)
    return b"".join(recorder)


def can_give_away(response: Any, environ: Mapping[str, Any]) -> bool:
    """Return whether the socket of a request contains all that belongs to its connection: a parser can start anew there."""
    return (
        environ["SERVER_PROTOCOL"] == "HTTP/1.1"
        and environ["REQUEST_METHOD"] == "GET"
        and environ.get("CONTENT_LENGTH", "0") == "0"
        and "HTTP_TRANSFER_ENCODING" not in environ
        and not isinstance(response.sock, ssl.SSLSocket)
        and response.cfg.proxy_protocol in (False, "off")  # its header is only before the first request
        and not response.req.unreader.buf.getvalue()  # the next request
    )


def send_error(client: Any, response: str) -> None:
    """Send a whole response to a request that gunicorn could not parse. Raise OSError if the client has left."""
    util.write_nonblock(client, response.encode("latin-1"))


def check_files(cfg: Any) -> None:
    """Open the files of the logs and the certificate. Raise an error if a worker could not use them."""
    cfg.logger_class(cfg)
    if cfg.is_ssl and hasattr(sock, "ssl_context"):  # gunicorn 21 or newer
        sock.ssl_context(cfg)


def handle_signal(arbiter: Any, name: str, handle: Callable[[Callable[[], None]], None]) -> None:
    """Make gunicorn's master call `handle` for a signal, such as `hup`, with gunicorn's own handler as its argument."""
    method = f"handle_{name}"
    setattr(arbiter, method, partial(handle, getattr(arbiter, method)))


def keep_workers(arbiter: Any) -> None:
    """Make the master try again, every second, if it cannot start a worker. gunicorn would end the others, too."""
    spawn = arbiter.spawn_workers
    has_started = False

    def spawn_workers() -> None:
        nonlocal has_started
        try:
            spawn()
            has_started = True
        except Exception as error:  # such as a limit of processes
            if not has_started:
                raise
            arbiter.log.error("A worker cannot be started: %s", error)

    arbiter.spawn_workers = spawn_workers


def halt_if_no_worker_starts(arbiter: Any) -> None:
    """Make the master end with a reason in the log when gunicorn gives up, as when its first workers cannot load the app.

    Before version 24, gunicorn reaps its workers in a handler of SIGCHLD. gevent calls the handler in a greenlet, so the
    exception that ends the master would end only this greenlet, and the master would listen without any worker. In all
    versions, a second worker that fails would raise this exception again while the master ends, before it logs the reason.
    """
    reap, main = arbiter.reap_workers, gevent.getcurrent()
    is_halting = False

    def reap_workers() -> None:
        nonlocal is_halting
        try:
            reap()
        except HaltServer as error:
            arbiter.kill_workers(0)  # without a signal: forgets the failed worker, for which gunicorn 23 would wait
            if not is_halting:
                is_halting = True
                if gevent.getcurrent() is main:
                    raise
                gevent.kill(main, error)
            reap_workers()  # those that failed meanwhile; their errors must not interrupt the master, which is ending

    arbiter.reap_workers = reap_workers


def restart_as_module(arbiter: Any) -> None:
    """Make gunicorn start as a module again at SIGUSR2, if it was started as one.

    gunicorn would run the file of that module. Its directory would hide http and other standard modules.
    """
    if str(arbiter.START_CTX["args"][1]).endswith("/__main__.py"):
        arbiter.START_CTX["args"][1:2] = ["-m", "gunicorn"]
