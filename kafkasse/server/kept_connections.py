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

CHECK_S = 0.001  # how often to check whether another request may be served
_READABLE = 1  # libev's constant


class KeptConnections:
    """Waits for the next request on each connection.

    Args:
        timeout_s: how long. Then the connection is closed.
        may_serve: whether another request may be served now.
    """

    def __init__(self, timeout_s: float, may_serve: Callable[[], bool]) -> None:
        self._timeout_s = timeout_s
        self._may_serve = may_serve
        self._watchers: dict[socket.socket, tuple[Any, Any]] = {}
        self._ready: deque[Callable[[], object]] = deque()
        self._is_serving = False

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._watchers) + len(self._ready)

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
        self._ready.append(lambda: serve(_with_gevent(client)))
        if not self._is_serving:
            self._is_serving = True
            gevent.spawn(self._serve_ready)

    def _serve_ready(self) -> None:
        """Start few greenlets at a time: ten thousand clients may send requests at once, and each greenlet takes 15 KiB."""
        while self._ready:
            while not self._may_serve():
                gevent.sleep(CHECK_S)
            gevent.spawn(self._ready.popleft())
            gevent.sleep(0)
        self._is_serving = False


def _with_gevent(client: socket.socket) -> Any:
    return gevent.socket.socket(client.family, client.type, client.proto, client.detach())
