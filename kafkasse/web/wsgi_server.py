"""Check whether the WSGI server of this process can serve streams, and how many.

A server with a thread or a process for each request stops responding after a few streams, without any message. Therefore,
this module recognizes such a server: when the app is loaded if possible, otherwise at the first request for a stream. The
message names the command to use instead. This module does not depend on Flask or Kafka.
"""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from gevent import getcurrent
from gevent.monkey import is_module_patched

from kafkasse.errors import ConfigurationError, ServerFull
from kafkasse.process.loop_thread import loop_thread

Result = TypeVar("Result")

ADVICE = (
    "Run the app with `gunicorn --worker-class kafkasse.server.worker.Worker MODULE:APP` instead, or see"
    " docs/wsgi-servers.md."
)
PATCH = "`from gevent import monkey; monkey.patch_all()`"
OUR_WORKER = "kafkasse.server.worker."
GEVENT_WORKERS = (OUR_WORKER, "gunicorn.workers.ggevent.")
FINITE_READS = (
    "It can serve finite reads: chunks, and long polls, each of which occupies a thread or process for up to 8 s."
)
MAX_DESCRIPTORS = 65_536
APACHE_LINE_BYTES = 8190  # the default
# uWSGI's buffer contains the query twice, and all headers.
UWSGI_BUFFER_BYTES, UWSGI_HEADER_BYTES = 4096, 1500
PYWSGI_LINE = 8190, "the limit of gevent.pywsgi"
OTHER_LINE_BYTES = 65_536  # flask run; waitress accepts more
RESERVED = 200  # file descriptors and requests that are not streams: connections to Kafka, files, pages


def is_patched() -> bool:
    """Return whether gevent has patched the modules that kafka-python uses."""
    return bool(is_module_patched("socket") and is_module_patched("selectors"))


def is_test_client(environ: Mapping[str, Any]) -> bool:
    """Return whether a request comes from a test client, which runs in the thread of the app, and not from a server."""
    # Tornado and bjoern do not name themselves, but say that there may be other processes.
    is_shared = environ["wsgi.multithread"] or environ["wsgi.multiprocess"]
    return not (environ.get("SERVER_SOFTWARE") or is_shared or "uwsgi.version" in environ)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to MAX_DESCRIPTORS. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if 0 <= soft < wanted:
        with suppress(ValueError, OSError):  # the system may have a lower limit than the one that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def max_client_descriptor() -> int:
    """Return the first file descriptor that is reserved for connections to Kafka and for files."""
    limit = _descriptor_limit()
    return (limit + _capacity(limit)) // 2


class WsgiServer:
    """The server that runs the app. Create this object when the app is loaded.

    Args:
        max_streams: the configured limit.
        logger: receives a message if the server cannot serve streams, as far as this is known when the app is loaded, or
            if it cannot serve `max_streams` of them.
    """

    def __init__(self, max_streams: int, logger: logging.Logger) -> None:
        self._max_request_line = _max_request_line()
        self._was_patched = is_patched()
        self._problem = _problem_of_process()
        limit, name = _limit()
        self._capacity = _capacity(limit)
        if self._problem:
            logger.error(self._problem)
        elif self._capacity < max_streams:
            logger.warning(
                "The server can have %s open streams instead of max_streams=%s, because %s is %s. Raise it to %s or more.",
                self._capacity,
                max_streams,
                name,
                limit,
                max_streams + RESERVED,
            )

    def check(self, environ: Mapping[str, Any]) -> None:
        """Check whether the server that received this request can serve streams.

        Raises:
            ConfigurationError: it cannot. The message says what to do.
        """
        if not is_test_client(environ) and (problem := self._problem or self._problem_of_request(environ)):
            raise ConfigurationError(problem)

    def runner(self, environ: Mapping[str, Any]) -> Callable[[Callable[[], Result]], Result]:
        """Return the function that runs a finite read in the event loop. Call check_finite() before.

        Under a server with threads or processes instead of gevent, that is another thread.
        """
        return _call if self.has_loop(environ) else loop_thread.run

    def has_loop(self, environ: Mapping[str, Any]) -> bool:
        """Return whether requests run in the event loop, so that one that waits occupies no thread of the server."""
        return is_patched() or is_test_client(environ)

    def max_request_line(self, environ: Mapping[str, Any]) -> tuple[int, str]:
        """Return the longest request line that the server of this request accepts, and the name of the limit."""
        is_pywsgi = environ.get("SERVER_SOFTWARE", "").startswith("gevent/")
        return PYWSGI_LINE if is_pywsgi else self._max_request_line

    def check_finite(self, environ: Mapping[str, Any]) -> None:
        """Check whether the server that received this request can serve finite reads.

        Raises:
            ConfigurationError: gevent has patched the standard library after the app was loaded.
        """
        if not is_test_client(environ) and is_patched() != self._was_patched:
            raise ConfigurationError(self._problem or self._problem_of_request(environ))

    def check_capacity(self, open_streams: int) -> None:
        """Check whether the server can have another stream, in addition to all `open_streams` of the process.

        A server without free descriptors or greenlets would leave new connections waiting, for pages too.

        Raises:
            ServerFull: it cannot.
        """
        if open_streams >= self._capacity:
            raise ServerFull(f"This server has too many streams (at most {self._capacity}). Retry later.")

    def _problem_of_request(self, environ: Mapping[str, Any]) -> str:
        server = environ.get("SERVER_SOFTWARE") or "This server"
        if server.startswith("waitress"):
            return _occupied("waitress")
        if not (is_patched() and self._was_patched):
            finite = FINITE_READS if is_patched() == self._was_patched else "It cannot serve finite reads either."
            return (
                f"{server} cannot serve streams, because gevent had not patched the standard library when the app was"
                f" loaded. {finite} {ADVICE} With `flask run`, or a server that runs gevent, put {PATCH} at the top"
                " of the first module that the server loads."
            )
        if getcurrent().parent is None:  # not a greenlet that the event loop has started
            return _occupied(server)
        return ""


def _call(call: Callable[[], Result]) -> Result:
    return call()


def _capacity(limit: int) -> int:
    return max(limit - RESERVED, limit // 2)


def _descriptor_limit() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _limit() -> tuple[int, str]:
    """Return the number of connections that the server can have, and the name of the limit."""
    limits = [(_descriptor_limit(), "the limit of open files (ulimit -n)")]
    if (cfg := _gunicorn_config()) is not None and not _is_worker(cfg, OUR_WORKER):
        limits.append((cfg.worker_connections, "gunicorn's worker_connections"))
    if (cores := (_uwsgi_options() or {}).get("gevent")) is not None:
        limits.append((int(cores), "uWSGI's option gevent"))
    return min(limits)


def _problem_of_process() -> str:
    if (cfg := _gunicorn_config()) is not None:
        worker = cfg.worker_class_str
        if worker == "gthread" and is_patched():
            return f"gunicorn's gthread worker does not respond after monkey.patch_all(). {ADVICE}"
        if not _is_worker(cfg, GEVENT_WORKERS):
            return _occupied(f"gunicorn's {worker} worker")
        if not is_patched():
            return (
                f"gunicorn's {worker} worker cannot serve streams or finite reads with --preload, because it loads the app"
                f" before gevent patches the standard library. {ADVICE}"
            )
    elif "mod_wsgi" in sys.modules:
        return _occupied("mod_wsgi")
    elif "waitress.runner" in sys.modules:
        return _occupied("waitress")
    elif (options := _uwsgi_options()) is not None and "gevent" not in options:
        return f"{_occupied('uWSGI without gevent')} Or use the options `--gevent 1000 --gevent-early-monkey-patch`."
    return ""


def _is_worker(cfg: Any, names: str | tuple[str, ...]) -> bool:
    """Return whether the name of gunicorn's worker class, or of one of its base classes, starts with one of `names`."""
    from gunicorn.util import load_class  # not at the top: another server may run the app, without gunicorn

    # Not worker_class_str: a settings file in Python may set a class, of which worker_class_str is only the last name.
    classes = load_class(cfg.settings["worker_class"].get()).__mro__
    return any(f"{base.__module__}.{base.__name__}".startswith(names) for base in classes)


def _occupied(server: str) -> str:
    problem = "cannot serve streams or live=sse, because each of them would occupy a process or a thread"
    return f"{server} {problem}. {FINITE_READS} {ADVICE}"


def _max_request_line() -> tuple[int, str]:
    """Return the longest request line that the server accepts, and the name of the limit."""
    if (cfg := _gunicorn_config()) is not None:
        return cfg.limit_request_line or sys.maxsize, "limit_request_line"
    if (options := _uwsgi_options()) is not None:
        buffer = int(options.get("buffer-size", UWSGI_BUFFER_BYTES))
        return max(0, buffer - UWSGI_HEADER_BYTES) // 2, "uWSGI's buffer-size"
    if "mod_wsgi" in sys.modules:
        return APACHE_LINE_BYTES, "Apache's LimitRequestLine"
    return OTHER_LINE_BYTES, "the server's limit"


def _gunicorn_config() -> Any:
    """Return the settings of the gunicorn in the call stack, or None under another server.

    Nothing else is certain: with --preload, gunicorn loads the app before it has a worker.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("gunicorn."):
            cfg = getattr(frame.f_locals.get("self"), "cfg", None)
            if cfg is not None:
                return cfg
        frame = frame.f_back
    return None


def _uwsgi_options() -> dict[str, str] | None:
    """Return uWSGI's options, or None under another server."""
    options = getattr(sys.modules.get("uwsgi"), "opt", None)
    return None if options is None else {_text(name): _text(value) for name, value in options.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
