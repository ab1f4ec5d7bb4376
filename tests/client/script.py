"""A server that sends each connection the next response of a script, and repeats the last one."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from contextlib import suppress

import gevent
from gevent.server import StreamServer

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
START = b"retry: 1\n\nevent: position\ndata: {}\nid: 0\n\n"
MAX_REQUEST_BYTES = 65_536
MAX_OPEN_S = 60


def message(number: int) -> bytes:
    """Return an event."""
    return b'event: message\ndata: {"n":%d}\nid: %d\n\n' % (number, number)


def failure(status: int) -> bytes:
    """Return an `error` event."""
    return b'event: error\ndata: {"status":%d,"detail":"no: %d"}\n\n' % (status, status)


class Sends:
    """A stream that ends with `then`: it stays open, the server ends it, or the connection breaks."""

    def __init__(self, text: bytes, then: str = "stays") -> None:
        self._text = text
        self._then = then

    def __call__(self, connection: socket.socket) -> None:
        chunk = b"%x\r\n%b\r\n" % (len(self._text), self._text) if self._text else b""
        connection.sendall(HEAD + chunk)
        if self._then == "stays":
            connection.settimeout(MAX_OPEN_S)
            connection.recv(1)  # until the client leaves
        elif self._then == "ends":
            connection.sendall(b"0\r\n\r\n")
        else:
            # A reset would discard what the client has not read; without the last chunk, a FIN is a break too.
            connection.shutdown(socket.SHUT_WR)


class Answers:
    """A response with a status and an error object."""

    def __init__(self, status: int, **headers: str) -> None:
        body = json.dumps({"status": status, "detail": f"no: {status}"}).encode()
        fields = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), **headers}
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()]
        self._response = f"HTTP/1.1 {status} X\r\n{''.join(lines)}\r\n".encode() + body

    def __call__(self, connection: socket.socket) -> None:
        connection.sendall(self._response)


class ScriptedServer:
    """Runs a script.

    Attributes:
        url: the URL of the stream.
        requests: the headers of each request, with names in lower case.
    """

    def __init__(self, script: Sequence[Sends | Answers]) -> None:
        self.requests: list[dict[str, str]] = []
        self._script = list(script)
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/t"

    def close(self) -> None:
        self._server.stop(timeout=1)

    def _serve(self, connection: socket.socket, _: object) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := connection.recv(MAX_REQUEST_BYTES)):
                return
            head += more
        lines = head.decode().split("\r\n")[1:]
        self.requests.append(
            {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        )
        response = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        with suppress(OSError), connection:
            response(connection)
            gevent.sleep(0)


def sent_ids(server: ScriptedServer) -> list[str | None]:
    """Return the Last-Event-ID of each request."""
    return [each.get("last-event-id") for each in server.requests]
