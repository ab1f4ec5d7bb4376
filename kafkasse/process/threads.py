"""Threads for calls that would block the event loop. They start with the first call: threads do not survive a fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gevent.threadpool import ThreadPool
from gevent.util import wrap_errors

Result = TypeVar("Result")


class Threads:
    """At most `limit` threads. Further calls wait."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pool: ThreadPool | None = None

    def run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Return what `call` returns in a thread, or raise what it raises. Other greenlets run meanwhile."""
        if self._pool is None:
            self._pool = ThreadPool(self._limit)
        call = wrap_errors(Exception, call)  # gevent would print the traceback of an error in a thread
        outcome: Result | Exception = self._pool.apply(call, arguments)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.kill()
