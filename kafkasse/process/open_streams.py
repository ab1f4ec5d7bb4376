"""The open streams of a process: their status for operators, and how the process or an operator ends them."""

from __future__ import annotations

import os
import random
import time
from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum
from itertools import count
from math import inf
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from gevent import spawn, spawn_later

OPENED_KEY = "kafkasse.opened"  # a list with a weak reference to the stream of the request, if there is one
# Set by our worker: true if the request arrived at the address for operators.
OPERATIONS_KEY = "kafkasse.operations"
# Our worker sets this to the start_response() of a request whose socket a long poll may take over. If no middleware has
# replaced that function, the value becomes the poll, which is also the body.
PARK_KEY = "kafkasse.park"
DRAIN_S = 1.0
MAX_ENDED_VISITORS = 10_000  # more than can log out while a stream opens or a ticket is valid
_numbers = count(1)


class EndReason(Enum):
    """Why a stream ended, as it appears in logs and metrics."""

    COMPLETE = "complete"  # a finite read
    CLIENT_LEFT = "client_left"
    WRITE_TIMEOUT = "write_timeout"  # the client accepted no bytes
    MAX_AGE = "max_age"
    ACCESS_EXPIRED = "access_expired"  # the visitor must be identified again
    ACCESS_REVOKED = "access_revoked"
    SERVER_STOPPING = "server_stopping"
    OPERATOR = "operator"  # an operator ended it
    RECONNECT = "reconnect"  # the client must reconnect for another reason, such as a recreated topic
    ERROR = "error"


class StreamInfo(NamedTuple):
    """The properties of a stream that are known when it opens."""

    id: str  # among the streams of all workers of a machine: the process ID and a number
    request_id: str
    route: str
    client: str  # its address
    visitor: str  # the name of the visitor; "" if it is unknown
    opened_at: float  # in seconds since the epoch
    requested_at: float  # when the request arrived, as in time.monotonic(); opening may take seconds

    @classmethod
    def new(
        cls,
        request_id: str = "",
        route: str = "",
        client: str = "",
        visitor: str = "",
        requested_at: float | None = None,
    ) -> StreamInfo:
        """Return the description of a stream that opens now."""
        requested_at = time.monotonic() if requested_at is None else requested_at
        return cls(f"{os.getpid()}-{next(_numbers)}", request_id, route, client, visitor, time.time(), requested_at)

    def status(
        self, state: str, events: int, size: int, lag: int | None = None, silent_s: int | None = None
    ) -> dict[str, Any]:
        """Return the current status of the stream for operators."""
        known = self._asdict()
        del known["requested_at"]  # a monotonic time means nothing to operators
        age_s = round(time.time() - self.opened_at, 1)
        sent = {"events": events, "bytes": size}
        return {**known, "age_s": age_s, "state": state, **sent, "lag_records": lag, "kafka_silent_s": silent_s}


class StreamEnd(NamedTuple):
    """How a stream ended."""

    reason: EndReason
    error: str  # the class of the error that ended it, or ""
    events: int  # the number of records that were sent to the client
    bytes: int  # that were sent to the client


class OpenStream(Protocol):
    """The methods of a stream that the registry calls; see kafkasse/web/stream.py."""

    @property
    def info(self) -> StreamInfo: ...
    def status(self) -> dict[str, Any]: ...
    def end(self, reason: EndReason = EndReason.RECONNECT) -> None: ...
    def close(self) -> None: ...


class StreamRegistry:
    """The open streams of a process. While it is `stopping`, it opens no more."""

    def __init__(self) -> None:
        self.stopping = False
        self._open: WeakSet[OpenStream] = WeakSet()
        self._visitors_ended_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def add(self, stream: OpenStream) -> None:
        """Add an open stream. It ends at once if the process stops, or if end_visitor() was called while it opened."""
        self._open.add(stream)
        if self.stopping:
            stream.end(EndReason.SERVER_STOPPING)
        elif self.has_ended(stream.info.visitor, stream.info.requested_at):
            stream.end(EndReason.ACCESS_REVOKED)

    def has_ended(self, visitor: str, since: float) -> bool:
        """Return whether end_visitor() was called for the visitor at or after `since`, a time of time.monotonic()."""
        return since <= self._visitors_ended_at.get(visitor, -inf)

    def discard(self, stream: OpenStream) -> None:
        """Remove a stream that has ended."""
        self._open.discard(stream)

    def drain(self, within_s: float = DRAIN_S) -> None:
        """Open no more streams, and end each open stream at a random time within `within_s` seconds.

        Each stream sends its last event ID and a reconnection time, so that its client resumes at another process. The times
        are random so that the clients do not reconnect all at once.
        """
        self.stopping = True
        for stream in list(self._open):
            spawn_later(random.uniform(0, within_s), stream.end, EndReason.SERVER_STOPPING)  # noqa: S311 - not for secrets

    def statuses(self) -> Iterator[dict[str, Any]]:
        """Yield a description of each open stream. The caller may switch greenlets meanwhile."""
        for stream in list(self._open):
            yield stream.status()

    def end(self, stream_id: str) -> bool:
        """End the stream with this ID. Return whether there is one."""
        for stream in list(self._open):
            if stream.info.id == stream_id:
                stream.end(EndReason.OPERATOR)
                return True
        return False

    def end_visitor(self, visitor: str) -> int:
        """End all streams of a visitor, also those that are still opening. Return how many are open."""
        self._visitors_ended_at.pop(visitor, None)
        self._visitors_ended_at[visitor] = time.monotonic()
        if len(self._visitors_ended_at) > MAX_ENDED_VISITORS:
            self._visitors_ended_at.popitem(last=False)
        ended = [stream for stream in list(self._open) if stream.info.visitor == visitor]
        for stream in ended:
            stream.end(EndReason.ACCESS_REVOKED)
        return len(ended)

    def close_all(self) -> None:
        """Close the streams that are still open, because the process exits."""
        for stream in list(self._open):
            stream.close()


streams = StreamRegistry()  # of this process


def drain(within_s: float = DRAIN_S) -> None:
    """End all streams of this process, and open no more. Call this when the process is about to stop.

    Each stream ends at a random time within `within_s` seconds. It sends its last event ID and a reconnection time, so that
    its client resumes at another process. This function returns at once. A signal handler may call it. kafkasse's gunicorn
    worker does the same by itself. It is final: later streams of this process end at once, also those of other apps.
    """
    spawn(streams.drain, within_s)  # a signal may have interrupted code that changes the set of streams
