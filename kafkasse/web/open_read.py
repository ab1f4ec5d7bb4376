"""An open finite read: it counts as a stream, operators see it, and it ends when the access of its visitor ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from gevent import Timeout, get_hub, getcurrent, spawn

from kafkasse.access import Visitor
from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.process.open_streams import EndReason, StreamEnd, StreamInfo, StreamRegistry

Result = TypeVar("Result")

MAX_TIMEOUT_S = 3600.0  # longer than any wait
FINITE_READ = "finite_read"  # in place of the state of a reader


class _Ended(BaseException):  # like gevent.Timeout: code that handles errors must not catch it
    """The read was ended while it waited."""


class OpenRead:
    """A finite read, from its request until its response was sent or discarded. Create it in the event loop.

    Args:
        registry: contains the read as long as it is open.
        unauthorized: returns the error with this detail for a visitor whose access has ended.
        on_end: called in the event loop when the read is closed.

    Attributes:
        run: runs a function in the event loop, and returns its result.
        on_close: functions that release() calls; see call_on_close().
    """

    can_serve = False  # our worker sends the response as that of any app

    def __init__(
        self,
        info: StreamInfo,
        visitor: Visitor,
        registry: StreamRegistry,
        unauthorized: Callable[[str], KafkasseError],
        run: Callable[[Callable[[], Any]], Any],
        on_end: Callable[[StreamInfo, StreamEnd], object],
    ) -> None:
        self.info = info
        self._records = self._bytes = 0
        self._on_end = on_end
        self._expires_at = visitor.expires_at
        self._registry = registry
        self._unauthorized = unauthorized
        self.run = run
        self.on_close: tuple[Callable[[], object], ...] = ()
        self._loop = get_hub().loop
        self._on_interrupt: Callable[[], object] | None = None  # ends what waits
        self._timer: Any = None
        self._end_reason: EndReason | None = None
        self._is_closed = False
        registry.add(self)

    def __del__(self) -> None:
        """Close a response that was discarded, for example because middleware replaced it."""
        if not self._is_closed:
            with suppress(Exception):  # the process is exiting
                self._loop.run_callback_threadsafe(spawn, self.release)

    def call_on_close(self, call: Callable[[], object]) -> None:
        """Call a function in the event loop when the read is closed."""
        self.on_close += (call,)

    def count(self, records: int, size: int) -> None:
        """Count records that are sent, and their bytes."""
        self._records += records
        self._bytes += size

    @property
    def has_ended(self) -> bool:
        """Whether the response must end."""
        if self._end_reason is None and self._expires_at <= time.time():
            self._end_reason = EndReason.ACCESS_EXPIRED
        return self._end_reason is not None

    def wait_for(self, read: Callable[[], Result]) -> Result:
        """Return what `read` returns. Raise KafkasseError if `read` does, or if the visitor's access has ended."""
        self._check()
        left_s = self._expires_at - time.time()
        self._on_interrupt = partial(getcurrent().throw, _Ended)
        try:
            with Timeout(left_s if left_s < MAX_TIMEOUT_S else None, _Ended):
                result = read()
        except _Ended:
            self._end_reason = self._end_reason or EndReason.ACCESS_EXPIRED
            raise self._error() from None
        finally:
            self._on_interrupt = None
        self._check()
        return result

    def call_at_end(self, call: Callable[[], object]) -> None:
        """Call a function in the event loop when the access of the visitor ends. It must not wait."""
        self._on_interrupt = call
        if (left_s := self._expires_at - time.time()) < MAX_TIMEOUT_S:
            self._timer = self._loop.timer(max(0.0, left_s))
            self._timer.start(self._interrupt, update=True)
        if self._end_reason is not None:
            call()

    def end(self, reason: EndReason = EndReason.RECONNECT) -> None:
        """End the read soon. Any thread may call this."""
        if reason is not EndReason.SERVER_STOPPING:  # a read that waits notices that itself
            self._end_reason = self._end_reason or reason
            self._loop.run_callback_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._on_interrupt is not None:
            self._on_interrupt()

    def _check(self) -> None:
        if self.has_ended:
            raise self._error()

    def _error(self) -> KafkasseError:
        match self._end_reason:
            case EndReason.ACCESS_EXPIRED:
                return self._unauthorized("Your access has expired.")
            case EndReason.ACCESS_REVOKED:
                return self._unauthorized("Your access has ended.")
        return Unavailable("An operator has ended this request. Retry later.")

    def status(self) -> dict[str, Any]:
        """Return the current status of the read for operators."""
        return self.info.status(FINITE_READ, self._records, self._bytes)

    def close(self) -> None:
        """Release everything. May be called twice, and by any thread that serves requests."""
        if not self._is_closed:
            self.run(self.release)

    def release(self, reason: EndReason = EndReason.COMPLETE) -> None:
        """Release everything, unless this has happened. Call this in the event loop."""
        if not self._is_closed:
            self._is_closed = True
            self._on_interrupt = None
            if self._timer is not None:
                self._timer.close()
            self._registry.discard(self)
            self._on_end(self.info, StreamEnd(self._end_reason or reason, "", self._records, self._bytes))
            calls, self.on_close = self.on_close, ()
            for call in calls:
                call()  # may switch greenlets
