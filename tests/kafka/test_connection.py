"""One connection to a broker that answers in pieces, too much, or when nobody has asked."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket

from kafkasse.kafka.client import Broker
from kafkasse.kafka.connection import INITIAL_BUFFER_BYTES, Connection
from tests.support.waiting import eventually

TIMEOUT_S = 2.0
VERSION = 13
LARGE = INITIAL_BUFFER_BYTES * 5


class Line:
    """A connection, the broker's end of it, and what the connection has told."""

    def __init__(self) -> None:
        ours, self.broker = socket.socketpair()
        self.connection = Connection(ours, Broker(0, "b", 1), VERSION, "test", TIMEOUT_S)
        self.answers: list[bytes] = []
        self.errors: list[Exception] = []
        self.connection.start_reading(lambda data: self.answers.append(bytes(data)), self.errors.append)

    def ask(self, request: bytes = b"?") -> int:
        """The correlation id under which the broker has got it."""
        self.connection.send(VERSION, request)
        (size,) = struct.unpack(">i", self.broker.recv(4))
        return int(struct.unpack_from(">i", self.broker.recv(size), 4)[0])


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.connection.close()
    made.broker.close()


def answer(correlation_id: int, size: int = 0) -> bytes:
    body = struct.pack(">i", correlation_id) + b"x" * size
    return struct.pack(">i", len(body)) + body


def test_answers_in_pieces(line: Line) -> None:
    """However it is cut, an answer is told once, when it is whole."""
    for cut in range(1, 12):
        data = answer(line.ask(), 4)
        for piece in (data[:cut], data[cut:]):
            line.broker.sendall(piece)
            gevent.sleep(0.001)
        eventually(lambda cut=cut: len(line.answers) == cut)
        assert [] == line.errors
        assert data[4:] == line.answers[-1]


@pytest.mark.parametrize("size", [0, INITIAL_BUFFER_BYTES - 8, INITIAL_BUFFER_BYTES - 7, LARGE])
def test_answers_of_any_size(line: Line, size: int) -> None:
    """The buffer grows with them, and goes on to serve the smaller ones that follow."""
    for each in (size, 0):
        data = answer(line.ask(), each)
        gevent.spawn(line.broker.sendall, data)
        eventually(lambda: line.answers or line.errors)
        assert data[4:] == line.answers.pop()


def test_requests_that_the_broker_takes_slowly(line: Line) -> None:
    """A request that no socket takes at once arrives whole, whatever the broker says meanwhile."""
    asking = gevent.spawn(line.connection.send, VERSION, b"x" * 3_000_000)
    gevent.sleep(0.01)
    data = answer(1)
    line.broker.sendall(data[:2])
    gevent.sleep(0.01)
    received = 0
    while received < 3_000_000:
        received += len(line.broker.recv(1 << 20))
    asking.get()
    line.broker.sendall(data[2:])

    eventually(lambda: line.answers)
    assert [] == line.errors


@pytest.mark.parametrize(
    "said",
    [
        lambda asked: answer(asked + 1),
        lambda asked: answer(asked) + b"x",
        lambda asked: answer(asked)[:3] + b"\x03",
        lambda asked: b"\x7f\xff\xff\xff" + answer(asked),
    ],
    ids=["another's", "more than an answer", "too short", "too long"],
)
def test_garbage(line: Line, said) -> None:
    """It is told once, and nothing is heard from then on."""
    data = said(line.ask())
    line.broker.sendall(data)

    eventually(lambda: line.errors)
    line.broker.sendall(data)
    gevent.sleep(0.02)
    assert ([], 1) == (line.answers, len(line.errors))


@pytest.mark.parametrize("end", [lambda line: line.broker.close(), lambda line: line.broker.sendall(answer(0))])
def test_a_broker_that_was_not_asked(line: Line, end) -> None:
    """One that hangs up, or speaks, is noticed although nothing is awaited."""
    line.broker.sendall(answer(line.ask()))
    eventually(lambda: line.answers and line.answers.pop())
    end(line)

    eventually(lambda: line.errors)
    assert [] == line.answers
