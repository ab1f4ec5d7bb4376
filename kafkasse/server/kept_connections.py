"""Connections whose client has received a response and has not sent its next request. They need no greenlet.

This module does not depend on gunicorn or HTTP.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
from gevent import get_hub

_READABLE = 1  # libev's constant


class KeptConnections:
    """Waits for the next request on each connection.

    Args:
        timeout_s: how long. Then the connection is closed.
        may_serve: whether another request may be served now. Its argument is the number of requests whose greenlets have not
            started.
    """

    def __init__(self, timeout_s: float, may_serve: Callable[[int], bool]) -> None:
        self._timeout_s = timeout_s
        self._may_serve = may_serve
        self._watchers: dict[socket.socket, tuple[Any, Any]] = {}
        self._ready: deque[tuple[socket.socket, Callable[[Any], object]]] = deque()
        self._not_started = 0

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._watchers) + len(self._ready) + self._not_started

    def add(self, client: socket.socket, serve: Callable[[Any], object]) -> None:
        """Wait for a request, then call `serve` in a new greenlet with a socket of gevent."""
        loop = get_hub().loop
        readable, timer = self._watchers[client] = loop.io(client.fileno(), _READABLE), loop.timer(self._timeout_s)
        readable.start(self._on_readable, client, serve)
        timer.start(self._close, client)

    def _close(self, client: socket.socket) -> None:
        self._stop_watching(client)
        client.close()

    def _stop_watching(self, client: socket.socket) -> None:
        for watcher in self._watchers.pop(client):
            watcher.close()

    def _on_readable(self, client: socket.socket, serve: Callable[[Any], object]) -> None:
        self._stop_watching(client)
        self._ready.append((client, serve))
        self.serve_waiting()

    def serve_waiting(self) -> None:
        """Serve as many requests as may be served. Call this when another one may.

        Ten thousand clients may send requests at once, and each greenlet takes 15 KiB.
        """
        while self._ready and self._may_serve(self._not_started):
            self._not_started += 1
            gevent.spawn(self._serve, *self._ready.popleft())

    def _serve(self, client: socket.socket, serve: Callable[[Any], object]) -> None:
        self._not_started -= 1
        serve(gevent.socket.socket(client.family, client.type, client.proto, client.detach()))

    def close_idle(self) -> None:
        """Close the connections on which no request has arrived."""
        for client in list(self._watchers):
            try:
                client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._close(client)
            except OSError:
                continue  # the connection is broken, so its watcher is called
