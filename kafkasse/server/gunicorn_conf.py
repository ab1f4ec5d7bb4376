"""gunicorn's settings for kafkasse: `gunicorn -c python:kafkasse.server.gunicorn_conf shop:app`.

`kafkasse serve` uses them directly, and the Procfile uses them through gunicorn.conf.py. gevent patches the standard library
here, before any module imports ssl, socket or kafka. kafka-python hangs if a module imports it before that. Only gunicorn
should import this module.
"""

from gevent import monkey

monkey.patch_all()

import logging  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")


def number(variable: str, default: int, lowest: int, highest: int) -> int:
    """Return the number in an environment variable, or end the process with a one-line error message."""
    text = os.environ.get(variable) or str(default)
    if text.isascii() and text.isdigit() and len(text) < 10 and lowest <= int(text) <= highest:
        return int(text)
    raise SystemExit(
        f"{variable} must be a whole number from {lowest} to {highest}, not {text[:60]!r}. Example: {variable}={default}"
    )


def choice(variable: str, values: tuple[str, ...], default: str) -> str:
    """Return the word in an environment variable, or end the process with a one-line error message."""
    text = (os.environ.get(variable) or default).lower()
    if text in values:
        return text
    raise SystemExit(f"{variable} must be one of {', '.join(values)}, not {text[:60]!r}. Example: {variable}={default}")


def address(variable: str, default: str) -> str:
    """Return the address in a variable. End the process if the address has no port: gunicorn would choose port 8000."""
    text = os.environ.get(variable) or default
    _, colon, port = text.rpartition(":")
    if not text or text.startswith(("unix:", "fd://")) or (colon and port.isdecimal()):
        return text
    raise SystemExit(
        f"{variable} must be an address with a port, not {text[:60]!r}. Example: {variable}=127.0.0.1:9090"
    )


bind = [address("KAFKASSE_BIND", f"0.0.0.0:{number('PORT', 6917, 0, 65_535)}")]
if operations_bind := address("KAFKASSE_OPERATIONS_BIND", ""):  # a second address, for /-/metrics and /-/streams
    bind.append(operations_bind)
# gunicorn itself reads WEB_CONCURRENCY before this module, and fails with a traceback if it is not a number.
workers = number("WEB_CONCURRENCY", 1, 1, 1_000)
worker_class = "kafkasse.server.worker.Worker"
# The number of requests that a worker handles at the same time. Open streams count only against max_streams.
worker_connections = 10_000
backlog = 4096  # connections that wait for a worker; most systems allow no more (net.core.somaxconn)
timeout = 60  # seconds; gunicorn restarts a worker whose event loop is blocked for longer. Streams may last forever.
graceful_timeout = 10  # seconds; streams end within two seconds of SIGTERM
keepalive = 5
limit_request_field_size = 66_560  # above max_last_event_id_bytes, because that setting's error message is clearer
limit_request_line = 8_190
http_parser = "python"  # with another parser, the limits would differ from those in tests/attacks/README.md
forwarder_headers = ""  # by default, a proxy on this machine may forward a client's SCRIPT_NAME, which changes the path
control_socket_disable = True  # gunicorn would open a socket in the home directory, which may not exist on a PaaS
accesslog = os.environ.get("KAFKASSE_ACCESS_LOG") or None
access_log_format = '%(h)s %(l)s %(u)s %(t)s "%(r)s" %(s)s %(b)s "%(f)s" "%(a)s" %({x-request-id}o)s'
loglevel = choice("KAFKASSE_LOG_LEVEL", LOG_LEVELS, "info")
choice("KAFKASSE_LOG_FORMAT", LOG_FORMATS, "text")  # read by the logger
logger_class = "kafkasse.server.logger.Logger"

# gunicorn configures only its own log. kafka-python logs a hundred lines per second while a broker is down, so its log lines
# appear only at the level debug. Use that level to find out why a broker cannot be reached.
logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] [%(process)d] [%(levelname)s] %(name)s: %(message)s")
logging.getLogger("kafka").propagate = loglevel == "debug"
logging.getLogger("kafkasse").setLevel(loglevel.upper())  # a line for each stream that ends, at the level info


def on_starting(server: Any) -> None:
    """Create the directory for the metrics and sockets of the workers, and check the configuration at each SIGHUP.

    gunicorn calls this in the master.
    """
    from kafkasse.errors import ConfigurationError
    from kafkasse.process import runtime
    from kafkasse.server import gunicorn_internals, reload

    if server.cfg.preload_app:
        raise SystemExit(
            "Remove gunicorn's option --preload. With it, SIGHUP would not apply a changed configuration, and"
            " /-/metrics would report only one worker."
        )
    if operations_bind and operations_bind not in server.cfg.bind:
        raise SystemExit(
            "gunicorn's option --bind overrides KAFKASSE_OPERATIONS_BIND. Set KAFKASSE_BIND instead of --bind."
        )
    try:
        runtime.start()
    except (ConfigurationError, OSError) as error:
        raise SystemExit(str(error)) from None
    reload.install(server)
    gunicorn_internals.handle_signal(server, "int", partial(_interrupt, server))
    gunicorn_internals.handle_signal(server, "usr2", partial(_start_second_master, server))
    gunicorn_internals.keep_workers(server)
    gunicorn_internals.halt_if_no_worker_starts(server)
    gunicorn_internals.restart_as_module(server)


def _interrupt(server: Any, stop: Callable[[], None]) -> None:
    """Stop at Ctrl-C as gunicorn does. on_exit() then sets the exit code of all commands."""
    server.kafkasse_interrupted = True
    stop()


def _start_second_master(server: Any, start: Callable[[], None]) -> None:
    """Start a second master at SIGUSR2. If that is impossible, the workers continue: gunicorn would stop them all."""
    try:
        start()
    except OSError as error:  # such as a working directory that was removed
        server.log.error("The second gunicorn cannot be started: %s", error)
        if os.getpid() != server.pid:  # in the process that would have become the second master
            os._exit(1)


def pre_fork(server: Any, worker: Any) -> None:
    """Recreate the directory of the metrics if it was removed, because the worker could not start without it."""
    from kafkasse.process import runtime

    runtime.restore()


def child_exit(server: Any, worker: Any) -> None:
    """Remove the gauges and the socket of a worker that has exited or was killed. Count it if it has failed."""
    from kafkasse.process import runtime

    runtime.worker_exited(worker.pid, getattr(worker, "failure", ""))


def on_exit(server: Any) -> None:
    """Remove the directory for the metrics and sockets of the workers. After Ctrl-C, set the exit code."""
    from kafkasse.process import runtime

    runtime.stop()
    if hasattr(server, "kafkasse_interrupted"):
        raise SystemExit(128 + signal.SIGINT)
