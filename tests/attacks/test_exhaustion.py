"""Clients that are slow, many, or endless: they are cut off within a bound, and whoever behaves notices nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import gevent
import pytest

from tests.attacks.conftest import Unharmed, clients
from tests.attacks.kit import HOST, answers, connect, receive, request
from tests.support.client import Client, ask
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually

STREAMS_MAX = 20
PER_CLIENT_MAX = 3
IDLE = 300  # connections at once that say nothing
PIPELINED = 3000
ENDLESS = 1_000_000_000_000  # bytes that a body says it has
PIECE = b"x" * 1_000_000
LARGE_RECORDS, LARGE_RECORD_BYTES = 400, 100_000
GROWTH_BYTES_MAX = 20_000_000  # half of what is sent, so that a server that buffers all of it fails
PIECES_MAX = 64  # before somebody must have closed; what sockets hold is far less


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    return cluster.create("exhausted")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """One that waits a second for a request, and half a second for an answer to be taken."""
    return serve(
        "--keep-alive 1 --worker-class tests.attacks.impatient.Worker",
        max_streams=STREAMS_MAX,
        max_streams_per_client=PER_CLIENT_MAX,
        trusted_proxies=1,
        heartbeat_s=0.2,
        write_timeout_s=30,
        max_ring_bytes=1_000_000,
    )


@pytest.fixture
def many() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def refused(port: int) -> int:
    """How many requests the server has answered with 400."""
    lines = ask(port, "/-/metrics").body.decode().splitlines()
    return sum(int(line.split()[-1]) for line in lines if 'requests_refused_total{status="400"}' in line)


# Slow ones.


@pytest.mark.parametrize(
    "text",
    [
        request("/exhausted", "X: " + "a" * 500),
        request("/exhausted", "Content-Length: 500", method="POST") + b"x" * 500,
    ],
    ids=["a header", "a body"],
)
def test_a_byte_at_a_time(server: Server, unharmed: Unharmed, text: bytes) -> None:
    """Who sends its request a byte at a time is cut off before it is whole."""
    with connect(server.port) as connection, pytest.raises(OSError, match=r"pipe|reset"):
        _trickle(connection, text)


def _trickle(connection: socket.socket, text: bytes) -> None:
    for at in range(len(text)):
        connection.sendall(text[at : at + 1])
        gevent.sleep(0.01)


def test_connections_that_say_nothing(server: Server, unharmed: Unharmed, many: ExitStack) -> None:
    """Hundreds of them hold up nobody, and all are closed."""
    silent = [many.enter_context(connect(server.port)) for _ in range(IDLE)]

    unharmed.serves()

    assert [b""] * IDLE == [receive(each) for each in silent]


def test_a_reader_of_a_byte_at_a_time(server: Server, unharmed: Unharmed, cluster: Cluster, many: ExitStack) -> None:
    """It costs the others nothing and memory little, and what it gets is right."""
    values = (b'{"n":%d,"x":"%b"}' % (n, b"x" * LARGE_RECORD_BYTES) for n in range(LARGE_RECORDS))
    slow = many.enter_context(Client(server.port, "/exhausted", receive_buffer=4096)).ready()
    fast = many.enter_context(Client(server.port, "/exhausted")).ready()
    before = server.memory_bytes()
    dripping = gevent.spawn(_drip, slow.socket)

    sending = gevent.spawn(cluster.send, "exhausted", *values)

    assert list(range(LARGE_RECORDS)) == [json.loads(event.data)["n"] for event in fast.events(LARGE_RECORDS)]
    assert server.memory_bytes() < before + GROWTH_BYTES_MAX
    sending.get()
    dripping.kill()
    slow.close()


def _drip(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1):
            gevent.sleep(0.01)


def test_answers_that_nobody_takes(server: Server, unharmed: Unharmed, many: ExitStack) -> None:
    """Who asks for pages and does not read them is closed, and what it asked besides is never answered."""
    connection = many.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((HOST, server.port))
    connection.settimeout(0.2)
    with suppress(OSError):
        for _ in range(1000):
            connection.sendall(request("/about") * 100)

    eventually(lambda: not clients(server))


def test_a_client_that_talks_on(server: Server, unharmed: Unharmed) -> None:
    """A client that sends more than its request, and goes, is missed with the next heartbeats."""
    with connect(server.port) as connection:
        connection.sendall(request("/exhausted") + b"more")
        while b"\nid: " not in receive(connection):
            pass

    eventually(lambda: ask(server.port, "/-/health").json["streams"] == 0)


# Endless ones.


def test_a_header_that_never_ends(server: Server, unharmed: Unharmed) -> None:
    """It is refused after 128 KiB, without waiting for more."""
    with connect(server.port) as connection:
        with suppress(OSError):
            connection.sendall(b"GET /exhausted HTTP/1.1\r\n" + b"X: " + b"a" * 200_000)
        assert b"HTTP/1.1 431 " in receive(connection)


@pytest.mark.parametrize("path", ["/exhausted", "/unknown", "/-/health"])
def test_a_body_that_never_ends(server: Server, unharmed: Unharmed, path: str) -> None:
    """It is not read for long: the connection is closed."""
    with connect(server.port) as connection:
        connection.sendall(request(path, f"Content-Length: {ENDLESS}", method="POST"))
        with pytest.raises(OSError, match=r"pipe|reset"):
            _pour(connection)


def _pour(connection: socket.socket) -> None:
    for _ in range(PIECES_MAX):
        connection.sendall(PIECE)


def test_requests_by_the_thousand(server: Server, unharmed: Unharmed) -> None:
    """On one connection they are answered in turn with everybody else's."""
    before = refused(server.port)
    with connect(server.port) as connection:
        sending = gevent.spawn(connection.sendall, request("/,") * PIPELINED)
        receive(connection)

        answered = refused(server.port) - before

        assert 0 < answered < PIPELINED
        sending.kill()


# Many.


def test_as_many_streams_as_there_may_be(server: Server, unharmed: Unharmed, many: ExitStack) -> None:
    """The next gets 503 and a time to come back, from any address; those that are there go on."""
    inside = [many.enter_context(_from(server, f"10.0.0.{n}")) for n in range(STREAMS_MAX)]

    late = ask(server.port, "/exhausted", X_Forwarded_For="10.9.9.9")

    assert (503, "ServerFullError") == (late.status, late.json["name"])
    assert int(late.headers["retry-after"]) > 0
    for each in inside:
        each.until_said(b":heartbeat", each.body.count(b":heartbeat") + 1)


@pytest.mark.parametrize("spoofed", ["10.1.1.1", "10.2.2.2, 10.1.1.1", "garbage, ::1, 10.1.1.1", "10.1.1.1,,\t,"])
def test_more_streams_than_one_client_may_have(
    server: Server, unharmed: Unharmed, many: ExitStack, spoofed: str
) -> None:
    """It gets 429 whatever it writes before the address that our proxy wrote; another client is served."""
    eventually(lambda: ask(server.port, "/-/health").json["streams"] == 0)  # those of the case before
    for n in range(PER_CLIENT_MAX):
        many.enter_context(_from(server, f"10.7.7.{n}, 10.1.1.1"))

    refusal = ask(server.port, "/exhausted", X_Forwarded_For=spoofed)

    assert (429, "TooManyStreamsError") == (refusal.status, refusal.json["name"])
    assert int(refusal.headers["retry-after"]) > 0
    many.enter_context(_from(server, "10.3.3.3"))


def _from(server: Server, address: str) -> Client:
    return Client(server.port, "/exhausted", X_Forwarded_For=address).ready()


def test_streams_and_refusals_by_the_hundred(server: Server, unharmed: Unharmed) -> None:
    """Five hundred that come and go leave nothing behind."""
    for n in range(250):
        assert ("200 stream", "404 TopicNotAvailableError") == (
            *answers(server.port, request("/exhausted", f"X-Forwarded-For: 10.4.{n}.1")),
            *answers(server.port, request(f"/unknown-{n}")),
        )
