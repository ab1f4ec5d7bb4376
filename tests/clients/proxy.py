"""A TCP proxy between one client and the server. It records each exchange, and can end a connection within an event."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

import gevent
from gevent import socket

HOST = "127.0.0.1"
BACKLOG = 100
MAX_READ_BYTES = 65_536
EVENT = re.compile(rb"event: message\n(?:.+\n)+\n")

REJECTION = b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

CutPoint = Callable[[list[bytes]], int]  # from the lines of an event to the number of bytes that the client receives


@dataclass
class Exchange:
    """A request for a stream and its response.

    Attributes:
        request, response: the bytes so far, including the headers.
    """

    request: bytearray = field(default_factory=bytearray)
    response: bytearray = field(default_factory=bytearray)

    @property
    def last_id(self) -> str | None:
        """The last event ID that the client sent, in the header or in the query."""
        found = re.search(rb"(?i)last-?event-?id(?:: |=)([^ &\r]+)", bytes(self.request))
        return unquote(found[1].decode()) if found else None

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return int(self.response[9:12] or 0)

    @property
    def first_id(self) -> str | None:
        """The first event ID that the server sent."""
        found = re.search(rb"^id: (.+)$", bytes(self.response), re.MULTILINE)
        return found[1].decode() if found else None


class Proxy:
    """Forwards connections to `port` of 127.0.0.1 to `target_port`.

    Attributes:
        exchanges: all requests of the client for the stream.
        cut_point: where to end the connection within the next event that the client receives; None after that.
        rejects: the status of the response to new requests, such as 503 from a reverse proxy whose server is down; None
            if they reach the server.
    """

    def __init__(self, target_port: int, stream: str) -> None:
        self.target_port = target_port
        self.exchanges: list[Exchange] = []
        self.cut_point: CutPoint | None = None
        self.rejects: bytes | None = None
        self._stream = stream.encode()
        self._sockets: set[socket.socket] = set()
        self._reservation = self._bound(0)  # keeps the port while no socket listens on it
        self.port: int = self._reservation.getsockname()[1]
        self.listen()

    def listen(self) -> None:
        """Accept connections."""
        self._listener = self._bound(self.port)
        self._listener.listen(BACKLOG)
        self._accepting = gevent.spawn(self._accept, self._listener)

    def refuse(self) -> None:
        """Refuse new connections, as if no server were running."""
        self._accepting.kill()
        self._listener.close()

    def disconnect(self) -> None:
        """Close all connections."""
        for each in list(self._sockets):
            _end(each)

    def close(self) -> None:
        """Close all connections and release the port."""
        self.refuse()
        self._reservation.close()
        self.disconnect()

    @staticmethod
    def _bound(port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((HOST, port))
        return bound

    def _accept(self, listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            gevent.spawn(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        with near, socket.socket() as far:
            try:
                if status := self.rejects:
                    near.recv(MAX_READ_BYTES)
                    near.sendall(REJECTION % status)
                    return
                far.connect((HOST, self.target_port))
            except OSError:
                return
            both = {near, far}
            self._sockets |= both
            requests: list[Exchange] = []  # of this connection; a browser may send several in turn
            gevent.joinall(
                [gevent.spawn(self._send, near, far, requests), gevent.spawn(self._receive, far, near, requests)]
            )
            self._sockets -= both

    def _send(self, near: socket.socket, far: socket.socket, requests: list[Exchange]) -> None:
        with suppress(OSError):
            while data := near.recv(MAX_READ_BYTES):
                if data.startswith(b"GET "):
                    requests.append(Exchange())
                    if data.startswith(b"GET " + self._stream):
                        self.exchanges.append(requests[-1])
                requests[-1].request += data
                far.sendall(data)
        _end(far)

    def _receive(self, far: socket.socket, near: socket.socket, requests: list[Exchange]) -> None:
        with suppress(OSError):
            while data := far.recv(MAX_READ_BYTES):
                data, is_cut = self._truncate(data)
                requests[-1].response += data
                near.sendall(data)
                if is_cut:
                    break
        _end(near)
        _end(far)

    def _truncate(self, data: bytes) -> tuple[bytes, bool]:
        """Return the part of `data` that the client receives, and whether the connection ends after it."""
        event = EVENT.search(data) if self.cut_point else None
        if event is None or self.cut_point is None:
            return data, False
        cut_point, self.cut_point = self.cut_point, None
        return data[: event.start() + cut_point(event[0].splitlines(keepends=True))], True


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
