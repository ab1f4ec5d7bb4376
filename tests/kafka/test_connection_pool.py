"""The pool keeps some connections for the next cursor, and closes the others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from gevent import socket
from kafka.errors import IncompatibleBrokerVersion

from kafkasse.kafka.client import Broker, Client
from kafkasse.kafka.connection_pool import MAX_IDLE_PER_BROKER, ConnectionPool
from tests.support.waiting import wait_until

BROKER = Broker(0, "b", 1)


class FakeClient:
    """Opens sockets to a broker that supports these Fetch versions."""

    client_id = "test"

    def __init__(self, *versions: int) -> None:
        self.versions = versions
        self.opened: list[socket.socket] = []
        self.brokers: list[socket.socket] = []  # the other ends

    def connect(self, broker: Broker) -> tuple[Any, tuple[int, ...]]:
        ours, theirs = socket.socketpair()
        self.opened.append(ours)
        self.brokers.append(theirs)
        return ours, self.versions


def open_pool(*versions: int) -> tuple[FakeClient, ConnectionPool]:
    client = FakeClient(*(versions or (4, 13)))
    return client, ConnectionPool(cast(Client, client), 1.0)


def test_keeps_a_few_idle_connections():
    """Connections above the limit are closed, and the next cursor takes one of the others."""
    client, pool = open_pool()
    opened = [pool.take(BROKER) for _ in range(MAX_IDLE_PER_BROKER + 2)]
    for connection in opened:
        pool.release(connection)

    assert opened[:MAX_IDLE_PER_BROKER] == list(pool.idle())
    assert [False] * MAX_IDLE_PER_BROKER + [True] * 2 == [connection.closed for connection in client.opened]
    assert pool.take(BROKER) in opened


@pytest.mark.parametrize("is_in_flight", [True, False], ids=["response in flight", "disconnected"])
def test_closes_a_connection_that_the_next_cursor_could_not_use(is_in_flight):
    """The next cursor would receive the response in flight, or its request would fail."""
    client, pool = open_pool()
    connection = pool.take(BROKER)
    connection.start_reading(lambda _: None, lambda _: None)
    if is_in_flight:
        connection.in_flight = 1
    else:
        client.brokers[0].close()
        wait_until(lambda: connection.broken)
    pool.release(connection)

    assert [] == list(pool.idle())
    assert client.opened[0].closed


def test_closes_all_connections_with_the_log():
    """The pool also closes connections that a cursor releases later."""
    client, pool = open_pool()
    first, second = pool.take(BROKER), pool.take(BROKER)
    pool.release(first)
    pool.close()
    pool.release(second)

    assert [] == list(pool.idle())
    assert [True, True] == [connection.closed for connection in client.opened]


def test_rejects_a_broker_that_is_too_old():
    """The error names the versions that the broker supports, and the socket is closed."""
    client, pool = open_pool(0, 3)

    with pytest.raises(IncompatibleBrokerVersion, match="Fetch versions 0 to 3"):
        pool.take(BROKER)

    assert client.opened[0].closed
