"""Many greenlets ask Kafka the same question at once: one asks, the others wait for its answer. No knowledge of Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from kafkasse.errors import Unavailable

T = TypeVar("T")


class SingleFlight:
    """Runs one call at a time, and shares its failure with the callers that were waiting.

    While Kafka is away, each question takes its whole timeout. Without sharing, the hundredth caller would fail after a
    hundred timeouts.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._failure: Unavailable | None = None
        self._failed_at = 0.0

    def run(self, question: Callable[[], T]) -> T:
        """Return `question()`, which runs while no other call does.

        Raises:
            Unavailable: raised by this question, or by another one while this one was waiting.
        """
        arrived_at = time.monotonic()
        with self._lock:
            if self._failure is not None and self._failed_at >= arrived_at:
                raise type(self._failure)(self._failure.detail)
            try:
                return question()
            except Unavailable as error:
                self._failure, self._failed_at = error, time.monotonic()
                raise
