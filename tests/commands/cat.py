"""Run `kafkasse cat` against a server. Each test chooses the responses, errors and interruptions of the server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import parse_headers
from typing import NamedTuple
from unittest import mock

import gevent
import pytest

from kafkasse.commands import main

TIMEOUT_S = 60  # for a whole run of the command, so that a hang becomes a failure
RETRY_SOON = b"retry: 1\n\n"  # the default is a second
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


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as servers:

        def start(*responses: Response, tls: ssl.SSLContext | None = None) -> Server:
            return servers.enter_context(contextlib.closing(Server(*responses, tls=tls)))

        yield start


def stream(body: bytes, end: str = "close") -> Response:
    return Response(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\r\n" + body, end)


def chunked(*chunks: bytes, rest: bytes = b"0\r\n\r\n") -> Response:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    headers = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return Response(b"HTTP/1.1 200 OK\r\n" + headers + body + rest)


def rejection(status: str, problem: object, *headers: str) -> Response:
    body = json.dumps(problem)
    head = [f"HTTP/1.1 {status}", "content-type: application/problem+json", f"content-length: {len(body)}", *headers]
    return Response(("\r\n".join(head) + "\r\n\r\n" + body).encode())


def event(number: int) -> bytes:
    return f"event: message\ndata: {number}\nid: {ID % (number + 1)}\n\n".encode()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kafkasse", "cat", *arguments]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return inherited | more


def run_cat(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command until it exits: in this process, which is faster, or with `variables` in a new one."""
    if variables:
        return subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment(**variables)
        )
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with (
        mock.patch("os.environ", environment()),
        mock.patch("signal.signal"),  # the command would change the handlers of this process
        mock.patch("urllib.request._opener", None),  # it remembers the proxies of an earlier environment
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        gevent.Timeout(TIMEOUT_S),
    ):
        code = main(["cat", *arguments])
    out.seek(0)
    return subprocess.CompletedProcess(arguments, code, out.read(), err.getvalue())


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
