"""The attacker's tools: a socket, raw bytes, and a parser for the answers. Imports nothing from kafkasse.

A case is an entry of README.md: the bytes that are sent and the answers that are required.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jsonschema import Draft202012Validator

from tests.support.waiting import TIMEOUT_S

HOST = "127.0.0.1"
CLOSED = "closed"  # the connection is closed without an answer
STREAMS = {"text/event-stream": " stream", "application/x-ndjson": " lines", "application/json": " lines"}
STARTED = {"text/event-stream": b"\nid: [{", "application/x-ndjson": b"\r\n\n", "application/json": b"\r\n\n"}
PROBLEM = Draft202012Validator(json.loads((Path(__file__).parents[2] / "schemas/problem.schema.json").read_text()))
SECRETS = (b"Traceback", b"File ", b".py", b"127.0.0.1")  # parts of tracebacks, and the address of Kafka


class Case(NamedTuple):
    """One hostile exchange.

    Attributes:
        name: what the request tries.
        request: all bytes that are sent.
        answers: all answers in order: "200 stream", "404 TopicNotAvailableError", "closed". If a page of another origin
            may read the stream, the answer names the origin: "200 stream for https://a.example".
    """

    name: str
    request: bytes
    answers: tuple[str, ...]


def connect(port: int, receive_buffer: int = 0) -> socket.socket:
    """Connect to the server. With `receive_buffer`, the system buffers about this many bytes for us."""
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(TIMEOUT_S)
    connection.connect((HOST, port))
    return connection


def request(path: str | bytes = "/", *fields: str | bytes, method: str = "GET", body: bytes = b"") -> bytes:
    """Return a request that is well-formed except for the given parts."""
    lines = [b" ".join((method.encode(), to_bytes(path), b"HTTP/1.1")), b"Host: x", *map(to_bytes, fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answers(port: int, request: bytes) -> tuple[str, ...]:
    """Send exactly these bytes. Return all answers until the server closes, or until a stream has started."""
    with connect(port) as connection:
        with suppress(OSError):  # the server may close before it has read everything
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return tuple(_answers(connection, request.startswith(b"HEAD "))) or (CLOSED,)


def receive(connection: socket.socket) -> bytes:
    """Return the next bytes, or b"" at the end. If the server closes before it has read everything, it sends an RST."""
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def _answers(connection: socket.socket, without_bodies: bool) -> Iterator[str]:
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            if not (chunk := receive(connection)):
                assert not received, f"an incomplete answer: {received!r}"
                return
            received += chunk
        head, _, received = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
        code, origin = status.split()[1], fields.get("access-control-allow-origin")
        media_type = fields.get("content-type", "").partition(";")[0]
        answer = code + STREAMS.get(media_type, "") if code == "200" else code
        size = 0 if without_bodies else int(fields.get("content-length", 0))
        while len(received) < size:
            received += receive(connection)
        body, received = received[:size], received[size:]
        if media_type in STREAMS or media_type == "application/problem+json":
            assert "nosniff" == fields["x-content-type-options"]
        if code == "405":
            assert fields["allow"]
        if media_type == "application/problem+json" and body:
            answer = f"{code} {_name(body, int(code))}"
        yield answer + (f" for {origin}" if origin else "")
        if media_type in STREAMS and not without_bodies:
            while STARTED[media_type] not in b"\r\n" + received:
                chunk = receive(connection)
                assert chunk, f"a stream that did not start: {received!r}"
                received += chunk
            return


def _name(body: bytes, status: int) -> str:
    """Return the name of a problem. The body must match the schema, and not contain source code or Kafka's address."""
    for secret in SECRETS:
        assert secret not in body
    problem = json.loads(body)
    PROBLEM.validate(problem)
    assert status == problem["status"]
    return str(problem["name"])


def to_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
