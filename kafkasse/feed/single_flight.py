"""Many ask the same of Kafka at once: one asks, the others wait for what it finds. Knows no Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from kafkasse.errors import Unavailable

T = TypeVar("T")


class SingleFlight:
    """Lets one in after the other, but not to fail one after the other.

    When Kafka is away each question takes its whole timeout. Whoever was already waiting when one failed is told so, too,
    or the hundredth would hear of it after a hundred timeouts.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._failure: Unavailable | None = None
        self._failed_at = 0.0

    def run(self, do: Callable[[], T]) -> T:
        """What `do()` returns, called while nobody else is inside.

        Raises:
            Unavailable: `do` raised it, here or for somebody else while this one was waiting.
        """
        arrived = time.monotonic()
        with self._lock:
            if self._failure is not None and self._failed_at >= arrived:
                raise type(self._failure)(self._failure.detail)
            try:
                return do()
            except Unavailable as error:
                self._failure, self._failed_at = error, time.monotonic()
                raise
