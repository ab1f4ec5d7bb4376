"""Ends the streams whose API key was revoked. The clients reconnect and get 401."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import gevent

from kafkasse.access import Guards, Visitor
from kafkasse.web.registry import EndReason
from kafkasse.web.stream import Stream

CHECK_INTERVAL_S = 1.0


class Revocations:
    """Checks the open streams whenever the list of API keys changes.

    A greenlet does this as long as there are streams with API keys.
    """

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._visitors: WeakKeyDictionary[Stream, Visitor] = WeakKeyDictionary()
        self._is_running = False

    def add(self, stream: Stream, visitor: Visitor) -> None:
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
