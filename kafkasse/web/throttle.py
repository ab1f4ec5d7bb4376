"""Slows down clients whose requests are rejected again and again. Does not depend on Flask.

Some popular clients ignore `retry:` and repeat a rejected request in a loop, hundreds of times per second. Only the response
to a rejected request is delayed, so a client whose requests succeed is never slowed down, even if it shares its address with
such a client.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import gevent

from kafkasse.errors import TooManyRejections

BURST = 20  # rejections of one address that are answered at once
MAX_DELAY_S = 5.0  # requests whose rejection would be delayed for longer get status 429 at once
MAX_ADDRESSES = 10_000  # the address whose last rejection is the oldest is forgotten first
MAX_DELAYED = 1_000  # responses that wait at the same time; above this, nothing is delayed


class RejectionThrottle:
    """Counts the rejected requests of each client address in a token bucket, which admits `per_s` of them; 0: all."""

    def __init__(
        self, per_s: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = gevent.sleep
    ) -> None:
        self._per_s = per_s
        self._clock = clock
        self._sleep = sleep
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address: (tokens, time of that count)
        self._delayed = 0

    def delay(self, address: str, may_wait: bool = True) -> None:
        """Wait until a rejection of a request from `address` may be sent.

        Args:
            may_wait: whether a request that waits occupies no thread of the server.

        Raises:
            TooManyRejections: the delay would be longer than MAX_DELAY_S, or the request must not wait.
        """
        if not self._per_s:
            return
        now = self._clock()
        tokens, counted_at = self._buckets.pop(address, (BURST, now))
        tokens = min(BURST, tokens + (now - counted_at) * self._per_s)
        delay_s = max(0.0, (1 - tokens) / self._per_s)
        is_allowed = delay_s <= (MAX_DELAY_S if may_wait else 0.0)
        self._buckets[address] = (tokens - is_allowed, now)  # pop() and this line move the address to the end
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        if not is_allowed:
            retry_after_s = int(MAX_DELAY_S)
            raise TooManyRejections(
                f"Too many of your requests were rejected. Correct them, and retry after {retry_after_s} s at the earliest.",
                retry_after_s=retry_after_s,
            )
        if delay_s and self._delayed < MAX_DELAYED:
            self._delayed += 1
            try:
                self._sleep(delay_s)
            finally:
                self._delayed -= 1
