"""An HTTP client that reads a stream from a real socket and keeps all bytes that it has received."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from kafkasse.log import Partition
from kafkasse.records.position import Place, parse
from kafkasse_client.sse import Event, Parser
from tests.support.sse import without_positions
from tests.support.waiting import TIMEOUT_S

READ_TIMEOUT_S = TIMEOUT_S


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One request, and the part of its response that has been read so far.

    Args:
        receive_buffer: the size of the socket's receive buffer in bytes; the system chooses it if omitted.
        headers: header fields of the request, with underscores in place of hyphens.

    Attributes:
        status, headers: of the response. The names of the header fields are in lower case.
        body: all bytes so far, without the chunk headers.
    """

    def __init__(
        self, port: int, path: str, method: str = "GET", receive_buffer: int | None = None, **headers: str
    ) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=READ_TIMEOUT_S)
        self._connection.connect()
        self.socket = self._connection.sock
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        fields = {name.replace("_", "-"): text for name, text in headers.items()}
        self._connection.request(method, path, headers=fields)
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): text for name, text in self._response.getheaders()}
        self.body = bytearray()
        self._parser = Parser()
        self._events: list[Event] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def last_id(self) -> str:
        """The last event ID, with which a browser would reconnect."""
        return self._parser.last_event_id

    @property
    def position(self) -> dict[Partition, Place]:
        """The last event ID, parsed."""
        return dict(parse(self.last_id).starts)

    def events(self, count: int) -> list[Event]:
        """Return the next `count` events, without position events."""
        self.read_until(lambda: len(self._events) >= count)
        events, self._events = self._events[:count], self._events[count:]
        return events

    def ready(self) -> Client:
        """Read until the first event ID. The client misses no record that is written from then on."""
        self.read_until(lambda: bool(self.last_id))
        return self

    def read_until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition is true."""
        while not condition():
            assert self._read(), f"the stream ended after {self.body!r}"

    def read_until_text(self, text: bytes, times: int = 1) -> None:
        """Read until the body contains `text` this many times."""
        self.read_until(lambda: self.body.count(text) >= times)

    def rest(self) -> list[Event]:
        """Return all events up to the end of the stream, without position events."""
        while self._read():
            pass
        events, self._events = self._events, []
        return events

    def rest_until_cut(self) -> list[Event]:
        """Return all events up to the end of the stream, or to where the connection broke."""
        with suppress(HTTPException, OSError):
            self.rest()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close the connection."""
        self._response.close()  # http.client hands over the socket if the server closes the connection after the response
        self._connection.close()

    def _read(self) -> bytes:
        return self._received(self._response.read1(1 << 20))

    def _received(self, chunk: bytes) -> bytes:
        self.body += chunk
        self._events += without_positions(self._parser.receive(chunk))
        return chunk


def fetch(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send a request whose response is not a stream, and return the response."""
    with Client(port, path, method, None, **headers) as client:
        client.rest()
        return Answer(client.status, client.headers, bytes(client.body))


def value(n: int) -> bytes:
    """Return the value of a record with the member `n`."""
    return b'{"n":%d}' % n


def numbers(events: list[Event]) -> list[Any]:
    """Return the member `n` of each event. Tests use it to tell records apart."""
    return [json.loads(event.data)["n"] for event in events]
