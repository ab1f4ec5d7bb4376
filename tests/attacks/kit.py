"""What an attacker has: a socket, any bytes, and eyes for what comes back. Knows nothing of kafkasse's code.

A case is a row: what is sent, and the answers in the very words that docs/attacks.md shows.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

SILENCE_S_MAX = 30.0  # a hang becomes a failure
HOST = "127.0.0.1"
CLOSED = "closed"  # the connection ends, and not a byte was answered
STREAMS = {"text/event-stream": " stream", "application/x-ndjson": " lines", "application/json": " lines"}
BEGUN = {"text/event-stream": b"\nid: [{", "application/x-ndjson": b"\r\n\n", "application/json": b"\r\n\n"}
SECRETS = (b"Traceback", b"File ", b".py", b"127.0.0.1")  # our code, and where Kafka is


class Case(NamedTuple):
    """One hostile exchange.

    Attributes:
        name: what it tries, for people.
        request: all bytes that are sent.
        answers: all that come back, in order: "200 stream", "404 TopicNotAvailableError", "closed". A stream that a page
            of another origin may read says so: "200 stream for https://a.example".
    """

    name: str
    request: bytes
    answers: tuple[str, ...]


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), SILENCE_S_MAX)


def request(path: str | bytes = "/", *fields: str | bytes, method: str = "GET", body: bytes = b"") -> bytes:
    """A request that is well formed but for what it is given."""
    lines = [b" ".join((method.encode(), _bytes(path), b"HTTP/1.1")), b"Host: x", *map(_bytes, fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answers(port: int, request: bytes) -> tuple[str, ...]:
    """Send these very bytes, and no more. Returns what came back until the server closed; a stream need only begin."""
    with connect(port) as connection:
        with suppress(OSError):  # refused before all was sent
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return tuple(_answers(connection, request.startswith(b"HEAD "))) or (CLOSED,)


def receive(connection: socket.socket) -> bytes:
    """What comes next, b"" at the end: that of a server which closes before it has read all is a reset."""
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def _answers(connection: socket.socket, without_bodies: bool) -> Iterator[str]:
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            if not (chunk := receive(connection)):
                assert not received, f"an answer without an end: {received!r}"
                return
            received += chunk
        head, _, received = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
        code, reader = status.split()[1], fields.get("access-control-allow-origin")
        kind = fields.get("content-type", "").partition(";")[0]
        told = code + STREAMS.get(kind, "") if code == "200" else code
        size = 0 if without_bodies else int(fields.get("content-length", 0))
        while len(received) < size:
            received += receive(connection)
        body, received = received[:size], received[size:]
        if kind in STREAMS or kind == "application/problem+json":
            assert "nosniff" == fields["x-content-type-options"]
        if kind == "application/problem+json" and body:
            told = f"{code} {_name(body)}"
        yield told + (f" for {reader}" if reader else "")
        if kind in STREAMS and not without_bodies:
            while BEGUN[kind] not in b"\r\n" + received:
                chunk = receive(connection)
                assert chunk, f"a stream that did not begin: {received!r}"
                received += chunk
            return


def _name(body: bytes) -> str:
    """The name of a problem, which tells a stranger nothing of what is behind it."""
    for secret in SECRETS:
        assert secret not in body
    return str(json.loads(body)["name"])


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
