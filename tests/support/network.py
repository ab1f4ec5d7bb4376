"""A TCP proxy between a browser and a server, which a test can interrupt."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

HOST = "127.0.0.1"
MAX_READ_BYTES = 65_536


class Network:
    """Forwards connections to `port` of 127.0.0.1. Its threads need no event loop, so a test may block.

    Attributes:
        port: the port to connect to.
        is_down: whether new connections fail.
    """

    def __init__(self, port: int) -> None:
        self._target = HOST, port
        self._connections: list[_Connection] = []
        self.is_down = False
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections. New ones fail until `is_down` is false."""
        self.is_down = True
        for each in self._connections:
            each.close()

    def freeze(self) -> None:
        """Drop what the server sends through the open connections. Close a connection when the browser writes to it, like a
        NAT router that has dropped its entry for the connection. New connections work.
        """
        for each in self._connections:
            each.is_frozen = True

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections, and stop listening."""
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # The listener is closed.
            while True:
                near, _ = self._listener.accept()
                if self.is_down:
                    near.close()
                    continue
                self._connections.append(_Connection(near, socket.create_connection(self._target)))


class _Connection:
    """One connection, with a thread for each direction."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.is_frozen = False
        self._sockets = near, far
        for one, other in [(near, far), (far, near)]:
            threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(MAX_READ_BYTES):
                if not self.is_frozen:
                    other.sendall(data)
                elif one is self._sockets[0]:
                    break
        self.close()
