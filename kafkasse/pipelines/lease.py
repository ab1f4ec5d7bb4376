"""The lease of a run. If a rebuild replaces the checkpoint of the run, possibly from another machine, the run ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError
from kafkasse.pipelines import checkpoint as checkpoints
from kafkasse.pipelines.files import Files

INTERVAL_S = 5.0
STOP_TIMEOUT_S = 10.0
MARKER = "kafkasse-running"  # in the checkpoint; its content changes every INTERVAL_S

logger = logging.getLogger("kafkasse.pipeline")


@contextmanager
def held(spark: SparkSession, query: StreamingQuery, checkpoint: str) -> Iterator[None]:
    """Renew the lease until the block ends. If another checkpoint has replaced this one, stop the query.

    Raises:
        CommandError: another checkpoint has replaced this one.
    """
    lease = _Lease(Files(spark), query, checkpoint)
    thread = Thread(target=lease.run, name="lease", daemon=True)
    thread.start()
    try:
        yield
    except Exception as error:
        if lease.is_lost:
            raise CommandError(
                "a rebuild has replaced this run of the pipeline; start the new version of the pipeline"
            ) from error
        raise
    finally:
        lease.ended.set()
        thread.join(STOP_TIMEOUT_S)


class _Lease:
    """Renews the lease in a thread.

    Attributes:
        is_lost: another checkpoint has replaced this one.
        ended: set by the caller when the run ends.
    """

    def __init__(self, files: Files, query: StreamingQuery, checkpoint: str) -> None:
        self.is_lost = False
        self.ended = Event()
        self._files = files
        self._query = query
        self._checkpoint = checkpoint

    def run(self) -> None:
        marker = f"{self._checkpoint}/{MARKER}"
        try:
            while not (self.ended.is_set() or self.is_lost):
                self._renew(marker)
                self.ended.wait(INTERVAL_S)
            self._query.stop()
            self._files.delete(marker)
        except Exception as error:  # noqa: BLE001 - the session may have ended
            logger.debug("the lease of %s was not released: %s", self._checkpoint, type(error).__name__)

    def _renew(self, marker: str) -> None:
        try:
            self._files.write(marker, str(time.time_ns()))
            first = checkpoints.first_of(self._checkpoint)
            self.is_lost = checkpoints.current(self._files, first) != self._checkpoint
        except Exception as error:  # noqa: BLE001 - the file system may be unavailable for a while
            logger.warning("the checkpoint %s cannot be accessed: %s", self._checkpoint, type(error).__name__)
