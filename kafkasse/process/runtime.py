"""The private directory of a running gunicorn: the metrics of its workers, and a socket of each worker for operators.

    <base>/<random name>/     mode 0700; one for each gunicorn master
        lock                  locked by the master as long as it runs
        metrics/              prometheus_client's files
        worker-<pid>.sock     see control.py
        ready                 exists since a worker has reached Kafka
        name                  the process ID and addresses of the server, for operators

gunicorn.conf.py calls start(), worker_exited() and stop() in the master. Without that file, our worker calls start() and
stop() there. A later start() removes the directory of a killed master.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafkasse.errors import ConfigurationError
from kafkasse.process.telemetry.multiprocess import MASTER_GAUGES
from kafkasse.process.telemetry.multiprocess import VARIABLE as METRICS_VARIABLE

BASE_VARIABLE = "KAFKASSE_RUNTIME_DIR"
OPERATIONS_BIND = "KAFKASSE_OPERATIONS_BIND"  # the variable with the address for operators
FOLDER_VARIABLE = "_KAFKASSE_SERVER_DIR"  # set by start() for the workers
READY = "ready"
NAME = "name"
_lock: Any = None  # the open file that start() has locked


def base() -> Path:
    """Return the directory with one directory for each gunicorn of this user."""
    if given := os.environ.get(BASE_VARIABLE):
        return Path(given)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "kafkasse"
    return Path(tempfile.gettempdir()) / f"kafkasse-{os.getuid()}"


def folder() -> Path | None:
    """Return the directory of the gunicorn that this process belongs to, or None if start() was not called."""
    path = os.environ.get(FOLDER_VARIABLE)
    return Path(path) if path else None


def folders() -> list[Path]:
    """Return the directories of all running gunicorns of this user."""
    return [path for path in _folders() if _is_locked(path)]


def has_started() -> bool:
    """Return whether start() was called in this process, or in its master before the fork."""
    return _lock is not None


def start(with_metrics: bool = True) -> None:
    """Create the directory of this gunicorn, and set the variables that the workers inherit.

    If the user has set PROMETHEUS_MULTIPROC_DIR, the metrics are in that directory.

    Args:
        with_metrics: whether the workers share their metrics. If so, the master must call worker_exited().

    Raises:
        ConfigurationError: another user could change the directory, or it or the metrics directory cannot be created.
    """
    inherited = folder()  # after SIGUSR2, this master is a child of the old master
    try:
        path = _create()
    except OSError as error:
        raise ConfigurationError(
            f"The server cannot create its private directory in {base()}: {error.strerror}."
            f" Set {BASE_VARIABLE} to a path that the user of this process can create or write to."
        ) from None
    os.environ[FOLDER_VARIABLE] = str(path)
    given = os.environ.get(METRICS_VARIABLE)
    if with_metrics and (not given or (inherited is not None and Path(given) == inherited / "metrics")):
        os.environ[METRICS_VARIABLE] = str(path / "metrics")
    _complete(path)
    if metrics := os.environ.get(METRICS_VARIABLE):
        with suppress(OSError):
            (Path(metrics) / MASTER_GAUGES).unlink()  # of an earlier master


def _create() -> Path:
    """Create and lock the directory of this gunicorn. Remove those of masters that were killed."""
    _create_base()
    for path in _folders():
        if not _is_locked(path):
            shutil.rmtree(path, ignore_errors=True)
    new = Path(tempfile.mkdtemp(dir=base(), prefix="."))
    _lock_folder(new)
    return new.rename(base() / new.name.removeprefix("."))  # a directory with this name is always locked


def restore() -> None:
    """Create what was removed, for example because it was old. If that is impossible, create another directory."""
    if (path := folder()) is None:
        return
    try:
        _create_base()
        _complete(path)
    except (ConfigurationError, OSError) as error:  # for example, systems remove XDG_RUNTIME_DIR when its user logs out
        os.environ[BASE_VARIABLE] = tempfile.mkdtemp(prefix="kafkasse-")
        logging.getLogger("gunicorn.error").warning(
            "The server uses another private directory. Set %s=%s for kafkasse streams. %s",
            BASE_VARIABLE,
            os.environ[BASE_VARIABLE],
            error,
        )
        start()


def _complete(path: Path) -> None:
    """Create the missing parts of the directory of this gunicorn."""
    path.mkdir(mode=0o700, exist_ok=True)
    if not (path / "lock").exists():
        _lock_folder(path)
    if metrics := os.environ.get(METRICS_VARIABLE):
        try:
            Path(metrics).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The server cannot create the directory of its metrics, {metrics}: {error.strerror}."
                f" Remove {METRICS_VARIABLE}, or set it to a path that the user of this process can create or write to."
            ) from None


def _lock_folder(path: Path) -> None:
    global _lock
    _lock = (path / "lock").open("w")
    fcntl.flock(_lock, fcntl.LOCK_EX)


def worker_exited(pid: int, failure: str = "") -> None:
    """Remove the socket and the gauges of a worker that has exited or was killed. An error must not stop the master.

    Args:
        failure: the `reason` with which `workers_failed` counts this worker; "" after a normal stop.
    """
    if (path := folder()) is not None:
        try:
            from kafkasse.process.telemetry import metrics, multiprocess

            socket_path(path, pid).unlink(missing_ok=True)
            multiprocess.mark_dead(pid, metrics.file_key("workers_failed", reason=failure) if failure else "")
        except Exception as error:  # noqa: BLE001 - a file of the metrics may be damaged, or this version uninstalled
            logging.getLogger("gunicorn.error").warning("The metrics of the process %s are lost: %s", pid, error)


def set_outdated(is_outdated: bool) -> None:
    """Set the metric `outdated_configuration`, in the master. An error must not stop the master."""
    try:
        from kafkasse.process.telemetry import metrics, multiprocess

        multiprocess.set_master_gauge(metrics.file_key("outdated_configuration"), is_outdated)
    except Exception as error:  # noqa: BLE001 - the disk may be full, or this version uninstalled
        logging.getLogger("gunicorn.error").warning("The metric outdated_configuration cannot be written: %s", error)


def set_ready() -> None:
    """Record that this worker has reached Kafka."""
    if (path := folder()) is not None:
        with suppress(OSError):  # some systems remove old files in the temporary directory
            (path / READY).touch()


def is_ready() -> bool:
    """Return whether a worker of this gunicorn has reached Kafka."""
    path = folder()
    return path is not None and (path / READY).exists()


def set_name(name: str) -> None:
    """Record the name of this server for operators. Each worker does so, because a reload may change the addresses."""
    if (path := folder()) is not None:
        (path / NAME).write_text(name)


def name(path: Path) -> str:
    """Return the name of the server with this directory, or the directory if there is no name."""
    try:
        return (path / NAME).read_text() or str(path)
    except OSError:  # some systems remove old files in the temporary directory
        return str(path)


def stop() -> None:
    """Remove the directory."""
    if _lock is not None and (path := folder()) is not None:
        shutil.rmtree(path, ignore_errors=True)


def worker_sockets() -> list[Path]:
    """Return the sockets of the workers of this gunicorn; none under another server."""
    path = folder()
    return sockets(path) if path is not None else []


def worker_pids() -> list[int]:
    """Return the process IDs of the workers of this gunicorn; none under another server."""
    return sorted(map(worker_pid, worker_sockets()))


def sockets(path: Path) -> list[Path]:
    """Return the sockets of all workers of a gunicorn."""
    return sorted(path.glob("worker-*.sock"))


def socket_path(path: Path, pid: int) -> Path:
    """Return the path of the socket of a worker."""
    return path / f"worker-{pid}.sock"


def worker_pid(socket: Path) -> int:
    """Return the process ID of the worker with this socket."""
    return int(socket.stem.removeprefix("worker-"))


def _create_base() -> None:
    path = base()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigurationError(
            f"{path} must be a directory that only the user of this process can write to."
            f" Remove it, or set {BASE_VARIABLE} to the path of such a directory."
        )


def _folders() -> Iterator[Path]:
    with suppress(OSError):
        yield from [path for path in base().iterdir() if not path.name.startswith(".") and (path / "lock").exists()]


def _is_locked(path: Path) -> bool:
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
