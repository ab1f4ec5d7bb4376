"""Receive the progress of the queries of a session from Spark's StreamingQueryListener.

Spark calls the listener in a thread of its own. The events are queued, so that one thread, the one that runs the pipeline,
handles them between two other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Event
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

TERMINATION_TIMEOUT_S = 5.0


class Listener(StreamingQueryListener):
    """Queues the progress of all queries of a session."""

    def __init__(self) -> None:
        super().__init__()
        self._events: SimpleQueue[StreamingQueryProgress] = SimpleQueue()
        self._terminated = Event()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the caller starts the queries itself."""

    def onQueryProgress(self, event: Any) -> None:
        """Queue the progress of a batch, which is committed."""
        self._events.put(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: Any) -> None:
        """Note that the progress of all batches of a query has been queued."""
        self._terminated.set()

    def take(self) -> Iterator[StreamingQueryProgress]:
        """Yield the queued events."""
        try:
            while True:
                yield self._events.get_nowait()
        except Empty:
            return

    def take_last(self) -> Iterator[StreamingQueryProgress]:
        """Yield the remaining events after a query has ended. Spark reports the end of a query after its batches."""
        self._terminated.wait(TERMINATION_TIMEOUT_S)
        yield from self.take()


@contextmanager
def listening(spark: SparkSession) -> Iterator[Listener]:
    """Receive the events of the session until the block ends."""
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)
