"""A TCP proxy between one client and the server. It records each exchange, and can end a connection within an event."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote

from gevent import socket

from tests.chaos.network import Network, end

MAX_READ_BYTES = 65_536
EVENT = re.compile(rb"event: message\n(?:.+\n)+\n")

REJECTION = b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Pair = tuple[socket.socket, socket.socket]
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
        match = re.search(rb"(?i)last-?event-?id(?:: |=)([^ &\r]+)", bytes(self.request))
        return unquote(match[1].decode()) if match else None

    @property
    def parameters(self) -> str:
        """The query of the request."""
        return bytes(self.request).split(b" ", 2)[1].decode().partition("?")[2]

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return int(self.response[9:12] or 0)

    @property
    def first_id(self) -> str | None:
        """The first event ID that the server sent."""
        match = re.search(rb"^id: (.+)$", bytes(self.response), re.MULTILINE)
        return match[1].decode() if match else None


def _is_complete(response: bytes) -> bool:
    head, _, body = response.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: (\d+)", head, re.MULTILINE)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


class Proxy(Network):
    """A network between a client and the server.

    Attributes:
        cut_point: where to end the connection within the next event that the client receives; None after that.
        rejects: the status of the response to new requests, such as 503 from a reverse proxy whose server is down; None
            if they reach the server.
        buffers: the proxy passes on a response only when it is complete, or when the server has closed the connection.
    """

    def __init__(self, target_port: int, stream: str, buffers: bool = False) -> None:
        super().__init__(target_port)
        self.buffers = buffers
        self.exchanges: list[Exchange] = []
        self.cut_point: CutPoint | None = None
        self.rejects: bytes | None = None
        self._stream = stream.encode()
        self._last: dict[Pair, Exchange] = {}  # of each connection; a browser may send several requests in turn

    def _connect(self, near: socket.socket) -> None:
        if (status := self.rejects) is None:
            return super()._connect(near)
        with near, suppress(OSError):
            near.recv(MAX_READ_BYTES)
            near.sendall(REJECTION % status)

    def _forward(self, source: socket.socket, sink: socket.socket, pair: Pair) -> None:
        with suppress(OSError):
            for data in self._received(source, pair):
                is_cut = False
                if source is pair[0]:
                    self._record(data, pair)
                else:
                    data, is_cut = self._truncate(data)
                    self._last[pair].response += data
                sink.sendall(data)
                if is_cut:
                    break
        for sock in (sink,) if source is pair[0] else pair:
            end(sock)

    def _received(self, source: socket.socket, pair: Pair) -> Iterator[bytes]:
        response = b""
        while data := source.recv(MAX_READ_BYTES):
            if not self.buffers or source is pair[0]:
                yield data
            elif _is_complete(response := response + data):
                yield response
                response = b""
        if response:
            yield response

    def _record(self, data: bytes, pair: Pair) -> None:
        if data.startswith(b"GET "):
            self._last[pair] = Exchange()
            if data.startswith(b"GET " + self._stream):
                self.exchanges.append(self._last[pair])
        self._last[pair].request += data

    def _truncate(self, data: bytes) -> tuple[bytes, bool]:
        """Return the part of `data` that the client receives, and whether the connection ends after it."""
        event = EVENT.search(data) if self.cut_point else None
        if event is None or self.cut_point is None:
            return data, False
        cut_point, self.cut_point = self.cut_point, None
        return data[: event.start() + cut_point(event[0].splitlines(keepends=True))], True
