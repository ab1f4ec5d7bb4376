"""The lease of a run. Only one run uses a checkpoint, and the run ends if a rebuild replaces its checkpoint.

The runs can be on different machines. A checkpoint on HDFS or in object storage cannot be locked. Its marker, whose content
changes every INTERVAL_S, shows that a run uses it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines.checkpoints import checkpoint as checkpoints
from kafkasse.pipelines.spark.files import Files
from kafkasse.pipelines.supervisor import DependencyUnavailable, Replaced

INTERVAL_S = 5.0
SILENCE_S = 3 * INTERVAL_S  # a run that has not renewed its lease for this time has ended
POLL_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 10.0
MARKER = "kafkasse-running"  # in the checkpoint; its content changes every INTERVAL_S
LOCK = "kafkasse.lock"  # in a local checkpoint; the system releases the lock when the process ends
PERMANENT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_PROCESS = uuid.uuid4().hex

logger = logging.getLogger("kafkasse.pipeline")


@contextmanager
def exclusive(files: Files, checkpoint: str) -> Iterator[None]:
    """Use a checkpoint until the block ends.

    Raises:
        CommandError: another run uses the checkpoint, or this user may not write it.
        DependencyUnavailable: the file system cannot be written now.
    """
    directory = files.local(checkpoint)
    if directory is None:
        _check_marker(files, checkpoint)
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("a")
    except OSError as error:
        problem = f"cannot write to the checkpoint {directory} ({error.strerror})"
        if error.errno in PERMANENT:
            raise CommandError(f"{problem}; change its permissions, or use another --checkpoint") from error
        raise DependencyUnavailable(problem) from error
    with lock:
        _lock(lock.fileno(), directory)
        yield


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(str(directory)) from error
    except OSError as error:  # for example, an old NFS server
        advice = "make sure that only one run of the pipeline uses it"
        logger.warning("cannot lock the checkpoint %s (%s); %s", directory, error.strerror, advice)


def _check_marker(files: Files, checkpoint: str) -> None:
    """Check that no other process renews the marker. A run that was killed has left its marker."""
    seen = files.read(f"{checkpoint}/{MARKER}")
    deadline_s = time.monotonic() + SILENCE_S
    while seen is not None and not seen.startswith(_PROCESS) and time.monotonic() < deadline_s:
        time.sleep(POLL_INTERVAL_S)
        if files.read(f"{checkpoint}/{MARKER}") not in (seen, None):
            raise _in_use(checkpoint)


def _in_use(checkpoint: str) -> CommandError:
    return CommandError(
        f"another run of the pipeline uses the checkpoint {checkpoint}; stop it first, or use another --checkpoint; if the "
        "query has changed, --rebuild computes the results again while the other run continues"
    )


@contextmanager
def held(files: Files, checkpoint: str, query: StreamingQuery | None = None) -> Iterator[None]:
    """Renew the lease until the block ends. If another checkpoint has replaced that of the query, stop the query.

    Raises:
        Replaced: another checkpoint has replaced that of the query.
    """
    lease = _Lease(files, checkpoint, query)
    thread = Thread(target=lease.run, name="lease", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if lease.replaced_by:
            raise Replaced(lease.replaced_by) from error
        raise
    else:
        if lease.replaced_by:
            raise Replaced(lease.replaced_by)
    finally:
        lease.ended.set()
        thread.join(STOP_TIMEOUT_S)


class _Lease:
    """Renews the lease in a thread.

    Attributes:
        replaced_by: the checkpoint that has replaced this one, or "".
        ended: set by the caller when the run ends.
    """

    def __init__(self, files: Files, checkpoint: str, query: StreamingQuery | None) -> None:
        self.replaced_by = ""
        self.ended = Event()
        self._files = files
        self._checkpoint = checkpoint
        self._query = query

    def run(self) -> None:
        marker = f"{self._checkpoint}/{MARKER}"
        try:
            while not (self.ended.is_set() or self.replaced_by):
                self._renew(marker)
                self.ended.wait(INTERVAL_S)
            if self._query:
                self._query.stop()
            self._files.delete(marker)
        except Exception as error:  # noqa: BLE001 - the session may have ended
            logger.debug("the lease of %s was not released: %s", self._checkpoint, type(error).__name__)

    def _renew(self, marker: str) -> None:
        try:
            self._files.write(marker, f"{_PROCESS} {time.time_ns()}")
            if self._query:
                first = checkpoints.first_of(self._checkpoint)
                current = checkpoints.current(self._files, first)
                self.replaced_by = current if current != self._checkpoint else ""
        except Exception as error:  # noqa: BLE001 - the file system may be unavailable for a while
            logger.warning("the checkpoint %s cannot be accessed: %s", self._checkpoint, type(error).__name__)
