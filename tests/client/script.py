"""A server that sends each connection the next response of a script, and repeats the last one."""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress

import gevent
import pytest
from gevent.server import StreamServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
START = b"retry: 1\n\nevent: position\ndata: {}\nid: 0\n\n"
LAST_CHUNK = b"0\r\n\r\n"
MAX_REQUEST_BYTES = 65_536
MAX_OPEN_S = 60


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def message(number: int) -> bytes:
    return b'event: message\ndata: {"n":%d}\nid: %d\n\n' % (number, number)


def failure(status: int) -> bytes:
    return b'event: error\ndata: {"status":%d,"detail":"no: %d"}\n\n' % (status, status)


class Raw:
    """These bytes. Then the connection stays open, is reset, breaks, or ends, as `then` says."""

    def __init__(self, text: bytes, then: str = "ends") -> None:
        self._text, self._then = text, then

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(self._text)
        if self._then == "stays":
            connection.settimeout(MAX_OPEN_S)
            connection.recv(1)  # until the client leaves
        elif self._then == "is reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self._then == "breaks":
            # A reset would discard what the client has not read; without the last chunk, a FIN is a break too.
            connection.shutdown(socket.SHUT_WR)


class Sends(Raw):
    """A stream."""

    def __init__(self, text: bytes, then: str = "stays") -> None:
        super().__init__(HEAD + (chunk(text) if text else b"") + LAST_CHUNK * (then == "ends"), then)


class Answers(Raw):
    """A response with a status and an error object."""

    def __init__(self, status: int, detail: str = "", **headers: str) -> None:
        body = json.dumps({"status": status, "detail": detail or f"no: {status}"}).encode()
        fields = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), **headers}
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
        super().__init__(f"HTTP/1.1 {status} X\r\n{''.join(lines)}\r\n".encode() + body)


class ScriptedServer:
    """Runs a script.

    Attributes:
        lines: the first line of each request.
        requests: the headers of each request, with names in lower case.
    """

    def __init__(self, script: Sequence[Raw], tls: ssl.SSLContext | None = None) -> None:
        self.lines: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.connections: list[socket.socket] = []
        self._script, self._tls = list(script), tls
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}/t"

    def close(self) -> None:
        self._server.stop(timeout=1)

    def _serve(self, connection: socket.socket, _: object) -> None:
        with suppress(OSError), connection:
            if self._tls:  # a client that does not trust the certificate ends the handshake
                connection = self._tls.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := connection.recv(MAX_REQUEST_BYTES)):
                    return
                head += more
            line, *lines = head.decode().split("\r\n")
            fields = (header.partition(":") for header in lines)
            self.lines.append(line)
            self.requests.append({name.lower(): value.strip() for name, _, value in fields})
            self.connections.append(connection)
            response = self._script.pop(0) if len(self._script) > 1 else self._script[0]
            response(connection)
            gevent.sleep(0)


def sent_ids(server: ScriptedServer) -> list[str | None]:
    return [request.get("last-event-id") for request in server.requests]


Serve = Callable[..., ScriptedServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Returns a function that starts a server with a script."""
    with ExitStack() as servers:
        yield lambda *script, **tls: servers.enter_context(closing(ScriptedServer(script, **tls)))
