"""Receive the progress of the queries of a session from Spark, as JSON.

Spark calls the listener in a thread of its own. The events are queued, so that one thread, the one that runs the pipeline,
handles them between two other tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from kafkasse.pipelines.spark import private_spark

TERMINATION_TIMEOUT_S = 5.0


class Listener:
    """Queues the progress of all queries of a session.

    Spark calls it directly. PySpark's own listener copies each event, attribute by attribute, while the next batch is
    planned and records wait: 50 ms of the JVM's CPU time at each commit, most of it to search all jars for a class.
    """

    class Java:
        """Read by Py4J."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]

    def __init__(self) -> None:
        self._events: SimpleQueue[str] = SimpleQueue()
        self._terminated = Event()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the caller starts the queries itself."""

    def onQueryProgress(self, event: Any) -> None:
        """Queue the progress of a batch, which is committed."""
        self._events.put(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:
        """Note that the progress of all batches of a query has been queued."""
        self._terminated.set()

    def take(self) -> Iterator[dict[str, Any]]:
        """Yield the queued events."""
        try:
            while True:
                yield json.loads(self._events.get_nowait())
        except Empty:
            return

    def take_last(self) -> Iterator[dict[str, Any]]:
        """Yield the remaining events after a query has ended. Spark reports the end of a query after its batches."""
        self._terminated.wait(TERMINATION_TIMEOUT_S)
        yield from self.take()


@contextmanager
def listening(spark: SparkSession) -> Iterator[Listener]:
    """Receive the events of the session until the block ends."""
    listener = Listener()
    with private_spark.listening(spark, listener):
        yield listener
