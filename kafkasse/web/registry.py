"""The open streams of a process, and how they end when the process stops."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakSet

from gevent import spawn_later

ENVIRON_KEY = "kafkasse.streams"  # where the worker puts its registry in the WSGI environ
DRAIN_S = 1.0


class OpenStream(Protocol):
    """The methods of a stream that the registry calls; see kafkasse/web/stream.py."""

    def end(self) -> None: ...
    def close(self) -> None: ...


class StreamRegistry:
    """The open streams of a process.

    Our gunicorn worker has one registry and passes it to the app with each request. Under other servers, each blueprint has
    its own registry.

    Attributes:
        stopping: the process is stopping, so it opens no more streams.
    """

    def __init__(self) -> None:
        self.stopping = False
        self._open: WeakSet[OpenStream] = WeakSet()

    @classmethod
    def of(cls, environ: Mapping[str, Any], default: StreamRegistry) -> StreamRegistry:
        """Return the registry of the worker that handles this request, or `default`."""
        registry = environ.get(ENVIRON_KEY, default)
        assert isinstance(registry, cls)  # noqa: S101 - for the type checker
        return registry

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def add(self, stream: OpenStream) -> None:
        """Add an open stream. If the process is stopping, the stream ends at once."""
        self._open.add(stream)
        if self.stopping:
            stream.end()

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
            spawn_later(random.uniform(0, within_s), stream.end)  # noqa: S311 - not for secrets

    def close_all(self) -> None:
        """Close the streams that are still open, because the process exits."""
        for stream in list(self._open):
            stream.close()
