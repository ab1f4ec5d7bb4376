"""A client of a stream over a real socket, which keeps the bytes and reads until something has happened."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from kafkasse.log import Partition
from kafkasse.position import PartitionStart, parse
from kafkasse.sse import Event, Parser
from tests.support.sse import read_events

SILENCE_S_MAX = 30.0  # a hang becomes a failure


class Answer(NamedTuple):
    """A response that has ended."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One request, and its response as far as it has been read.

    Attributes:
        socket: what it reads from, with a buffer of `receive_buffer` bytes where that is given.
        status, headers: of the response; names of header fields in lower case.
        body: all bytes so far, without the chunks' frames.
    """

    def __init__(
        self, port: int, path: str, method: str = "GET", receive_buffer: int | None = None, **headers: str
    ) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=SILENCE_S_MAX)
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
        """What a browser would come back with."""
        return self._parser.last_event_id

    @property
    def position(self) -> dict[Partition, PartitionStart]:
        """What the last id means."""
        return dict(parse(self.last_id).starts)

    def events(self, count: int) -> list[Event]:
        """The next `count` events."""
        self.until(lambda: len(self._events) >= count)
        events, self._events = self._events[:count], self._events[count:]
        return events

    def ready(self) -> Client:
        """Read until the first id has come: from then on nothing is missed."""
        self.until(lambda: bool(self.last_id))
        return self

    def until(self, happened: Callable[[], bool]) -> None:
        """Read until something has happened."""
        while not happened():
            assert self._read(), f"the stream ended after {self.body!r}"

    def until_said(self, text: bytes, times: int = 1) -> None:
        """Read until these bytes have come so often."""
        self.until(lambda: self.body.count(text) >= times)

    def rest(self) -> list[Event]:
        """All events up to the end of the stream."""
        while self._read():
            pass
        events, self._events = self._events, []
        return events

    def all_there_is(self) -> list[Event]:
        """All events up to where the stream ends or was cut."""
        with suppress(HTTPException, OSError):
            self.rest()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Leave."""
        self._response.close()  # which has the socket of a connection that is to be closed
        self._connection.close()

    def _read(self) -> bytes:
        chunk = self._response.read1(1 << 20)
        self.body += chunk
        self._events += self._parser.receive(chunk)
        return chunk


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """A response that ends by itself."""
    with Client(port, path, method, None, **headers) as client:
        client.rest()
        return Answer(client.status, client.headers, bytes(client.body))


def data(events: list[Event]) -> list[Any]:
    """The members `n` of events that hold one, which is how tests tell records apart."""
    return [json.loads(event.data)["n"] for event in events]


def same_for_both(client: Client) -> bool:
    """Whether the browser's rules, read anew, find the events that the parser found in these bytes."""
    body = bytes(client.body)
    return read_events(body) == list(Parser().receive(body))
