"""A connection to a broker that responds in pieces, with too many bytes, or without a request."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator

import gevent
import pytest
from gevent import get_hub, socket

from kafkasse.kafka.client import Broker
from kafkasse.kafka.connection import (
    MAX_BYTES_OF_ALL_PER_TURN,
    MAX_BYTES_PER_TURN,
    SMALL_RESPONSE_BYTES,
    Connection,
)
from tests.support.turns import poll_events
from tests.support.waiting import wait_until

TIMEOUT_S = 2.0
VERSION = 13
LARGE = SMALL_RESPONSE_BYTES * 5


class Link:
    """A connection, the broker's end of it, and the responses and errors that the callbacks received."""

    def __init__(self) -> None:
        socket_of_client, self.broker = socket.socketpair()
        self.connection = Connection(socket_of_client, Broker(0, "b", 1), VERSION, "test", TIMEOUT_S)
        self.responses: list[bytes] = []
        self.errors: list[Exception] = []
        self.connection.start_reading(lambda data: self.responses.append(bytes(data)), self.errors.append)

    def send(self, request: bytes = b"?") -> int:
        """Send a request and return the correlation ID that the broker received."""
        self.connection.send(VERSION, request)
        (size,) = struct.unpack(">i", self.broker.recv(4))
        return int(struct.unpack_from(">i", self.broker.recv(size), 4)[0])


@pytest.fixture
def link() -> Iterator[Link]:
    opened = Link()
    yield opened
    opened.connection.close()
    opened.broker.close()


def response(correlation_id: int, size: int = 0) -> bytes:
    body = struct.pack(">i", correlation_id) + b"x" * size
    return struct.pack(">i", len(body)) + body


def test_assembles_responses_from_pieces(link):
    """A response is delivered once, when it is complete, however it is split."""
    for cut in range(1, 12):
        data = response(link.send(), 4)
        for piece in (data[:cut], data[cut:]):
            link.broker.sendall(piece)
            poll_events()
        wait_until(lambda cut=cut: len(link.responses) == cut)
        assert [] == link.errors
        assert data[4:] == link.responses[-1]


@pytest.mark.parametrize("size", [0, SMALL_RESPONSE_BYTES - 8, SMALL_RESPONSE_BYTES - 7, LARGE])
def test_buffer_grows_with_large_responses(link, size):
    """The larger buffer also serves the smaller responses that follow."""
    for length in (size, 0):
        data = response(link.send(), length)
        gevent.spawn(link.broker.sendall, data)
        wait_until(lambda: link.responses or link.errors)
        assert data[4:] == link.responses.pop()


class FullSocket(socket.socket):
    """A socket whose buffer always has more bytes of a response. It counts the bytes read in each turn of the event loop."""

    def __init__(self, data: bytes) -> None:
        own, self._other = socket.socketpair()
        super().__init__(own.family, own.type, own.proto, own.detach())
        self._other.sendall(b"!")  # readable at every turn
        self._rest = memoryview(data)
        self.read_in_turn: Counter[int] = Counter()

    def recv(self, size: int, *_: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recv_into(self, buffer: memoryview, *_: int) -> int:
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self.read_in_turn[get_hub().loop.iteration] += count
        return count


def test_reads_a_large_response_over_several_turns():
    """Hundreds of connections may have a large response at the same time, so none reads all of it in one turn."""
    data = response(1, 4_000_000)
    full = FullSocket(data)
    connection = Connection(full, Broker(0, "b", 1), VERSION, "test", TIMEOUT_S)
    responses: list[bytes] = []
    connection.start_reading(lambda received: responses.append(bytes(received)), lambda error: None)
    connection.in_flight = 1

    wait_until(lambda: responses)

    assert data[4:] == responses[0]
    assert len(data) == sum(full.read_in_turn.values())
    assert max(full.read_in_turn.values()) < 2 * MAX_BYTES_PER_TURN
    connection.close()


def test_many_connections_together_read_only_so_much_in_one_turn():
    full = [FullSocket(response(1, 400_000)) for _ in range(100)]
    read_in_turn: Counter[int] = Counter()
    responses: list[int] = []
    for sock in full:
        sock.read_in_turn = read_in_turn
        connection = Connection(sock, Broker(0, "b", 1), VERSION, "test", TIMEOUT_S)
        connection.start_reading(
            lambda received, connection=connection: (responses.append(len(received)), connection.suspend()),
            lambda error: None,
        )
        connection.in_flight = 1

    wait_until(lambda: len(responses) == len(full))

    assert max(read_in_turn.values()) < 2 * MAX_BYTES_OF_ALL_PER_TURN
    for sock in full:
        sock.close()


def test_sends_a_large_request_to_a_slow_broker(link):
    """A request that fills the socket's buffer arrives completely, whatever the broker sends meanwhile."""
    sending = gevent.spawn(link.connection.send, VERSION, b"x" * 3_000_000)
    poll_events()
    link.broker.sendall(response(1)[:2])
    poll_events()
    received = 0
    while received < 3_000_000:
        received += len(link.broker.recv(1 << 20))
    sending.get()
    link.broker.sendall(response(1)[2:])

    wait_until(lambda: link.responses)
    assert [] == link.errors


@pytest.mark.parametrize(
    "malformed",
    [
        lambda correlation_id: response(correlation_id + 1),
        lambda correlation_id: response(correlation_id) + b"x",
        lambda correlation_id: response(correlation_id)[:3] + b"\x03",
        lambda correlation_id: b"\x7f\xff\xff\xff" + response(correlation_id),
    ],
    ids=["another request", "trailing bytes", "too short", "too long"],
)
def test_reports_a_malformed_response_once(link, malformed):
    """After the error, the connection reads nothing."""
    data = malformed(link.send())
    link.broker.sendall(data)

    wait_until(lambda: link.errors)
    link.broker.sendall(data)
    poll_events()
    assert ([], 1) == (link.responses, len(link.errors))


@pytest.mark.parametrize(
    "end",
    [lambda link: link.broker.close(), lambda link: link.broker.sendall(response(0))],
    ids=["disconnect", "response"],
)
def test_notices_events_without_a_request(link, end):
    """A disconnect or an unexpected response is reported even if no request is in flight."""
    link.broker.sendall(response(link.send()))
    wait_until(lambda: link.responses and link.responses.pop())
    end(link)

    wait_until(lambda: link.errors)
    assert [] == link.responses
