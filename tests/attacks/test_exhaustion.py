"""Slow, numerous or endless clients: the server closes them within a limit, and other clients are not affected."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import gevent
import pytest

from tests.attacks.conftest import clients
from tests.attacks.kit import HOST, connect, receive, request
from tests.server.conftest import metric
from tests.support.client import fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until

IDLE = 300  # simultaneous idle connections
PIPELINED = 3000
ENDLESS = 1_000_000_000_000  # the Content-Length of an endless body
PIECE = b"x" * 1_000_000
MAX_PIECES = 64  # the server must close before; sockets buffer far less


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    return cluster.create("exhausted")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    """A server that waits one second for a request and half a second until a response is read."""
    return serve("--keep-alive 1 --worker-class tests.attacks.metered.Impatient", heartbeat_s=0.2, write_timeout_s=30)


# Slow clients.


@pytest.mark.parametrize(
    "text",
    [
        request("/exhausted", "X: " + "a" * 500),
        request("/exhausted", "Content-Length: 500", method="POST") + b"x" * 500,
    ],
    ids=["a header", "a body"],
)
def test_closes_clients_that_send_byte_by_byte(server, unharmed, text):
    """The connection is closed before the request is complete."""
    with connect(server.port) as connection, pytest.raises(OSError, match=r"pipe|reset"):
        _trickle(connection, text)


def _trickle(connection: socket.socket, text: bytes) -> None:
    for at in range(len(text)):
        connection.sendall(text[at : at + 1])
        gevent.sleep(0.01)


def test_closes_idle_connections(server, unharmed, opened):
    """Hundreds of idle connections are closed and delay no other client."""
    silent = [opened.enter_context(connect(server.port)) for _ in range(IDLE)]

    unharmed.serves()

    assert [b""] * IDLE == [receive(connection) for connection in silent]


def test_closes_clients_that_do_not_read_responses(server, unharmed, opened):
    """A client that requests files without reading them is closed. Its other requests are not answered."""
    connection = opened.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((HOST, server.port))
    connection.settimeout(0.2)
    with suppress(OSError):
        for _ in range(1000):
            connection.sendall(request("/-/console/console.css") * 100)

    wait_until(lambda: not clients(server))


def test_notices_that_a_talking_client_left(server, unharmed):
    """When a client sends extra bytes and leaves, the server notices at the next heartbeats."""
    with connect(server.port) as connection:
        connection.sendall(request("/exhausted") + b"more")
        while b"\nid: " not in receive(connection):
            pass

    wait_until(lambda: fetch(server.port, "/-/health").json["streams"] == 0)


# Endless requests.


def test_rejects_an_endless_header(server, unharmed):
    """The server answers 431 after 128 KiB and does not wait for more."""
    with connect(server.port) as connection:
        with suppress(OSError):
            connection.sendall(b"GET /exhausted HTTP/1.1\r\n" + b"X: " + b"a" * 200_000)
        assert b"HTTP/1.1 431 " in receive(connection)


@pytest.mark.parametrize("path", ["/exhausted", "/unknown", "/-/health"])
def test_closes_after_an_endless_body(server, unharmed, path):
    """The server soon stops reading and closes the connection."""
    with connect(server.port) as connection:
        connection.sendall(request(path, f"Content-Length: {ENDLESS}", method="POST"))
        with pytest.raises(OSError, match=r"pipe|reset"):
            _pour(connection)


def _pour(connection: socket.socket) -> None:
    for _ in range(MAX_PIECES):
        connection.sendall(PIECE)


def test_pipelined_requests_take_turns(server, unharmed):
    before = metric(server, "requests_rejected_total")
    with connect(server.port) as connection:
        sending = gevent.spawn(connection.sendall, request("/,") * PIPELINED)
        receive(connection)

        answered = metric(server, "requests_rejected_total") - before

        assert 0 < answered < PIPELINED
        sending.kill()
