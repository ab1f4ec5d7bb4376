"""Run `kafkasse cat` against a server. Each test chooses the responses, errors and interruptions of the server."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.client import parse_headers
from typing import Any, NamedTuple
from unittest import mock

import gevent
import pytest

from tests.commands.run import Done, Run

ID = '[{"topic":"t","partition":0,"offset":%d}]'


class Response(NamedTuple):
    """The bytes that a connection receives, and how it ends: "close", "reset" or "hold" (it stays open)."""

    text: bytes
    end: str = "close"


class StreamRequest(NamedTuple):
    """A request line and the headers, with lower-case names."""

    line: str
    headers: dict[str, str]


class Server:
    """Sends each connection the next response. After the last response, it stops listening."""

    def __init__(self, *responses: Response, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[StreamRequest] = []
        self._responses = responses
        self._tls = tls
        self._held: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/t"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, text: bytes) -> None:
        """Send more bytes to the connection that is held open."""
        self._held[-1].sendall(text)

    def close(self) -> None:
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError), self._listener:
            for response in self._responses:
                connection, _ = self._listener.accept()
                # A client that does not trust the certificate disconnects during the handshake.
                with contextlib.suppress(OSError):
                    self._respond(
                        self._tls.wrap_socket(connection, server_side=True) if self._tls else connection, response
                    )

    def _respond(self, connection: socket.socket, response: Response) -> None:
        with connection.makefile("rb") as lines:
            line = lines.readline().decode("latin-1").rstrip()
            headers = parse_headers(lines).items()
        self.requests.append(StreamRequest(line, {name.lower(): value for name, value in headers}))
        if response.end == "hold":
            self._held.append(connection)
        connection.sendall(response.text)
        if response.end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if response.end != "hold":
            connection.close()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server with these responses."""
    with contextlib.ExitStack() as servers:
        yield lambda *responses, **tls: servers.enter_context(contextlib.closing(Server(*responses, **tls)))


@pytest.fixture
def cat(run: Run) -> Run:
    """Runs `kafkasse cat` in this process. It retries at once."""

    def cat(*words: str, **variables: str) -> Done:
        with sleeping(lambda _: gevent.sleep(0)):
            return run("cat", *words, **variables)

    return cat


def sleeping(effect: Any) -> contextlib.AbstractContextManager[object]:
    """Replace the waits of the client, and not those of other greenlets of the tests."""
    return mock.patch("kafkasse.event_source.time", mock.Mock(wraps=time, sleep=mock.Mock(side_effect=effect)))


def stream(body: bytes = b"", end: str = "close") -> Response:
    return Response(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n" + body, end)


def chunked(*chunks: bytes, rest: bytes = b"0\r\n\r\n") -> Response:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    headers = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return Response(b"HTTP/1.1 200 OK\r\n" + headers + body + rest)


def rejection(status: int, problem: object, *headers: str) -> Response:
    body = json.dumps(problem)
    head = [f"HTTP/1.1 {status} ", "content-type: application/problem+json", f"content-length: {len(body)}", *headers]
    return Response(("\r\n".join(head) + "\r\n\r\n" + body).encode())


def event(number: int) -> bytes:
    return f"event: message\ndata: {number}\nid: {ID % (number + 1)}\n\n".encode()
