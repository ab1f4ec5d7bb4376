"""Runs slow calls one at a time, and shares a failure with all callers that waited. Does not depend on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from kafkasse.errors import Unavailable

T = TypeVar("T")


class SingleFlight:
    """Runs one call at a time, and shares its failure with the callers that were waiting.

    While Kafka is unavailable, each call takes its whole timeout. If the failure were not shared, the hundredth caller would
    fail after a hundred timeouts. A success is not shared: the next caller finds its result in a cache.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._failure: Unavailable | None = None
        self._failed_at = 0.0

    def run(self, call: Callable[[], T]) -> T:
        """Return `call()`, which runs while no other call does.

        Raises:
            Unavailable: raised by this call, or by another call while this one was waiting.
        """
        arrived_at = time.monotonic()
        with self._lock:
            if self._failure is not None and self._failed_at >= arrived_at:
                raise type(self._failure)(self._failure.detail)
            try:
                return call()
            except Unavailable as error:
                self._failure, self._failed_at = error, time.monotonic()
                raise
