"""Ends the streams whose API key was revoked, or whose visitor logged out. The clients reconnect and get 401."""

from __future__ import annotations

import os
from weakref import WeakKeyDictionary

import gevent

from kafkasse.access import Guards, Visitor
from kafkasse.process import control, runtime
from kafkasse.process.open_streams import EndReason, OpenStream, streams

CHECK_INTERVAL_S = 1.0


def end_streams(visitor: str) -> int:
    """End all streams of a visitor in all workers of this gunicorn, also those that are still opening.

    Also invalidate the visitor's earlier tickets in these workers. Under another server, or with a worker other than
    kafkasse's, end only the streams of this process.

    Call this when the response that ends the visitor's session has been sent: `response.call_on_close(lambda:
    kafkasse.end_streams(name))`. The clients receive their last event ID, and reconnect; then the guards of the route decide
    again. A client that still has the old cookie would be accepted.

    Args:
        visitor: the name of the visitor, as in `Visitor.name`.

    Returns:
        How many streams were open.

    Raises:
        ValueError: the name is empty or too long.
        TimeoutError: a worker did not answer within five seconds. The streams of the others have ended.
    """
    if visitor in (None, ""):
        raise ValueError("Only the streams of visitors with a name can be ended.")
    visitor = str(visitor)
    others = [path for path in runtime.worker_sockets() if runtime.worker_pid(path) != os.getpid()]
    ended_here = streams.end_visitor(visitor)
    ended, silent = control.end_visitor(others, visitor)
    if silent:
        pids = ", ".join(str(runtime.worker_pid(path)) for path in silent)
        raise TimeoutError(f"These workers did not answer, so streams of the visitor may be open: {pids}.")
    return ended_here + ended


class Revocations:
    """Checks the open streams whenever the list of API keys changes.

    A greenlet does this as long as there are streams with API keys.
    """

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._visitors: WeakKeyDictionary[OpenStream, Visitor] = WeakKeyDictionary()
        self._is_running = False

    def add(self, stream: OpenStream, visitor: Visitor) -> None:
        """Watch the key of a stream's visitor, if it has one."""
        if not visitor.key_hash:
            return
        version = self._guards.version
        self._visitors[stream] = visitor
        if not self._is_running:
            self._is_running = True
            gevent.spawn(self._run, version)
        if not self._guards.is_current(visitor):  # the key was revoked while the stream opened
            stream.end(EndReason.ACCESS_REVOKED)

    def _run(self, version: int) -> None:
        try:
            while self._visitors:
                gevent.sleep(CHECK_INTERVAL_S)
                if self._guards.version != version:
                    version = self._guards.version
                    self._end_revoked()
        finally:
            self._is_running = False

    def _end_revoked(self) -> None:
        for stream, visitor in list(self._visitors.items()):
            if not self._guards.is_current(visitor):
                stream.end(EndReason.ACCESS_REVOKED)
