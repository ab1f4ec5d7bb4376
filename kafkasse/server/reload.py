"""Reload at SIGHUP: gunicorn's master checks the new configuration before it replaces its workers.

gunicorn starts new workers at once. If they cannot load the app, gunicorn stops, and all streams end. Our master therefore
loads the app in a child process first. If that fails, the old workers stay, and one log line gives the reason.

All workers read the file as it was at the last successful reload. A worker that replaces a killed one therefore has the
same configuration as the others, even if the file is being edited.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gevent.monkey import get_original
from gevent.os import fork_gevent

from kafkasse import config_file
from kafkasse.errors import ConfigurationError
from kafkasse.process import runtime
from kafkasse.process.log_line import one_line
from kafkasse.server.gunicorn_internals import check_files, handle_signal

CHECK_TIMEOUT_S = 30  # the app must be loaded within this time
MAX_REASON_BYTES = 4_096  # a pipe takes as many bytes at once
LOADED = "loaded"


def install(arbiter: Any) -> None:
    """Make gunicorn's master check the configuration at SIGHUP. Call this before the master starts its workers."""
    _pin_file()
    handle_signal(arbiter, "hup", partial(_handle_hup, arbiter))


def _handle_hup(arbiter: Any, replace_workers: Callable[[], None]) -> None:
    runtime.set_outdated(not _has_reloaded(arbiter, replace_workers))


def _has_reloaded(arbiter: Any, replace_workers: Callable[[], None]) -> bool:
    """Replace the workers if the app can be loaded with the new configuration. Return whether they were replaced."""
    previous = _pin_file()
    try:
        reason = _problem(arbiter.app)
    except Exception as error:  # noqa: BLE001 - such as a limit of the system; it would end the master
        reason = f"{type(error).__name__}: {error}"
    if reason:
        reason = one_line(reason, MAX_REASON_BYTES)
        arbiter.log.error("The configuration was not reloaded; the running one stays in effect. %s", reason)
        if previous is not None:
            config_file.pin(*previous)
        return False
    try:
        replace_workers()
    except Exception as error:  # noqa: BLE001
        arbiter.log.error("Not all workers could be replaced. Send SIGHUP again. %s: %s", type(error).__name__, error)
        return False
    return True


def _pin_file() -> tuple[Path, bytes | None] | None:
    """Pin the current content of the configuration file. Return the file and its previous content, if it was pinned."""
    if not (name := os.environ.get(config_file.VARIABLE)):
        return None
    path = Path(name)
    try:
        content = path.read_bytes()
    except OSError:
        content = None  # reading the configuration reports the error
    return path, config_file.pin(path, content)


def _problem(app: Any) -> str:
    """Return why the app cannot be loaded, or "" if it can. It is loaded in a child process, as a worker would load it."""
    runtime.restore()
    read_end, write_end = os.pipe()
    # File objects, because gevent defers os.close(): read() would wait forever for a child that was killed.
    with os.fdopen(read_end, "rb", 0) as reading, os.fdopen(write_end, "wb", 0) as writing:
        child = fork_gevent()
        if not child:
            try:
                writing.write(_load(app).encode(errors="replace")[:MAX_REASON_BYTES])
            finally:
                os._exit(0)  # the child must not continue as a second master
        writing.close()
        answer = reading.read(MAX_REASON_BYTES).decode(errors="replace")
    get_original("os", "waitpid")(child, 0)  # gevent's version runs the event loop, which the master does not use
    runtime.worker_exited(child)
    if answer == LOADED:
        return ""
    return answer or f"Loading the app took longer than {CHECK_TIMEOUT_S} s, or ended the process."


def _load(app: Any) -> str:
    """Load the app. Return LOADED, or why the app cannot be loaded."""
    from kafkasse.config import Config  # not at the top: the master would keep 5 MB of modules

    for signal_number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(signal_number, signal.SIG_DFL)
    signal.alarm(CHECK_TIMEOUT_S)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the master logs the reason
    try:
        app.reload()  # gunicorn.conf.py
        check_files(app.cfg)
        Config.load()
        app.wsgi()
    except BaseException as error:  # noqa: BLE001 - SystemExit is a reason, too
        return reason_of(error)
    return LOADED


def reason_of(error: BaseException) -> str:
    """Return why the app cannot be loaded."""
    if isinstance(error, SystemExit) and (cause := error.__cause__ or error.__context__):
        error = cause
    if isinstance(error, ConfigurationError):
        return "; ".join(error.detail.splitlines())
    return f"{type(error).__name__}: {error}"
