"""A client and its stream, which writes the body of the response to a socket, as in our worker."""

from __future__ import annotations

import logging
import socket

import gevent
from gevent import socket as gevent_socket
from gevent.event import Event

from kafkasse.config import Config
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import StreamRegistry
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import of_topics
from kafkasse.route import Route
from kafkasse.web.compression import IDENTITY, Coding
from kafkasse.web.stream import StreamBody

TIMEOUT_S = 120  # only a hang takes so long
OPEN = Route("topics", "/{topics}", None)


def chunked(data: bytes) -> bytes:
    """Start a response as the server would, without a header."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """Return the body received so far, and whether it is complete."""
    body = b""
    while data:
        size, data = data.split(b"\r\n", 1)
        if size == b"0":
            assert data == b"\r\n"
            return body, True
        body, data = body + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return body, False


class Peer:
    """A client of the topic `t`, which reads only when the test does.

    Args:
        buffer_bytes: the size of the sockets' buffers; the system chooses it if omitted.

    Attributes:
        left: set when the stream has ended.
        greenlet: serves the stream until it is parked.
    """

    def __init__(
        self, feeds: Feeds, log: MemoryLog, encoder: Encoder, coding: Coding = IDENTITY, buffer_bytes: int | None = None
    ) -> None:
        server_end, self.socket = gevent_socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        for end in (server_end, self.socket) if buffer_bytes else ():
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.coding = coding
        self.left = left = Event()
        reader = feeds.open(OpenRequest(OPEN, of_topics(["t"]), log.describe(["t"]), encoder))
        settings = Config(write_timeout_s=20, heartbeat_s=60).web
        end = (server_end, lambda stream, end: left.set(), logging.getLogger())
        self.stream = StreamBody(reader, settings, StreamRegistry(), *end, coding=coding)
        self.greenlet = gevent.spawn(self.stream.serve, chunked)
        self.received = b""

    def has_ended(self) -> bool:
        return self.left.wait(TIMEOUT_S)

    def read(self) -> bytes:
        data = self.socket.recv(65536)
        self.received += data
        return data

    def read_all(self) -> None:
        while self.read():
            pass

    @property
    def body(self) -> tuple[bytes, bool]:
        return unchunked(self.received)
