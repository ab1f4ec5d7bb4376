"""A thread with an event loop, for servers without one: gunicorn's sync and gthread workers, waitress, and others.

Feeds and logs run in one event loop. Under gevent, that is the loop of the whole process. Other servers have threads, which
call LoopThread.run(). A process has at most one such thread; it starts at the first call, after gunicorn has forked.
Functions that block need another thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Lock, Thread, get_ident
from typing import Any, TypeVar

import gevent

Result = TypeVar("Result")

# This sleep keeps the loop alive: gevent ends a loop that has nothing to wait for.
KEEP_ALIVE_S = 3600.0


class LoopThread:
    """Runs functions in greenlets of one thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pid = 0
        self._ident = 0
        self._loop: Any = None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return get_ident() == self._ident and os.getpid() == self._pid

    def run(self, call: Callable[[], Result]) -> Result:
        """Return what `call` returns, or raise what it raises. Another thread waits meanwhile."""
        self._start()
        future: Future[Result] = Future()

        def complete() -> None:
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                future.set_exception(error)

        self._loop.run_callback_threadsafe(gevent.spawn, complete)
        return future.result()

    def _start(self) -> None:
        with self._lock:
            if self._pid != os.getpid():  # the first call, or the first one after a fork
                started = Event()
                Thread(target=self._serve, args=(started,), name="kafkasse", daemon=True).start()
                started.wait()

    def _serve(self, started: Event) -> None:
        self._pid, self._ident, self._loop = os.getpid(), get_ident(), gevent.get_hub().loop
        started.set()
        while True:
            gevent.sleep(KEEP_ALIVE_S)


loop_thread = LoopThread()
