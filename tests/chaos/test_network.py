"""The faulty network itself: each fault does what its name says. Otherwise tests that use it prove nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from tests.chaos.network import HOST, Conditions, Network

SHORT_S = 0.2


def echo(connection: socket.socket, _: object) -> None:
    with suppress(OSError):
        while data := connection.recv(65_536):
            connection.sendall(data)


@pytest.fixture
def network() -> Iterator[Network]:
    """A network in front of a server that echoes everything."""
    server = StreamServer((HOST, 0), echo)
    server.start()
    with closing(Network(server.server_port)) as network:
        yield network
    server.stop()


@pytest.fixture
def connection(network: Network) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, network.port), 30) as connection:
        yield connection


def exchange(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return receive(connection, len(text))


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := connection.recv(size - len(received))):
        received += data
    return received


def test_forwards_everything(network, connection):
    """All bytes arrive unchanged, whatever the size of the slices."""
    text = bytes(range(256)) * 4000
    network.conditions = Conditions(slice_bytes=1009)
    sending = gevent.spawn(connection.sendall, text)

    assert text == receive(connection, len(text))
    sending.get()


@pytest.mark.parametrize("conditions", [Conditions(latency_s=SHORT_S / 2), Conditions(bytes_per_s=8 / SHORT_S)])
def test_slow_conditions_delay_data(network, connection, conditions):
    """A round trip takes as long as the latency or the rate requires."""
    network.conditions = conditions
    began = time.monotonic()

    assert b"1234" == exchange(connection, b"1234")
    assert time.monotonic() - began >= SHORT_S


def test_a_half_open_connection_continues_after_healing(network, connection):
    """Nothing passes, not even the end of a closed connection. After healing, everything arrives."""
    assert b"before" == exchange(connection, b"before")
    network.stall()
    connection.sendall(b"during")
    connection.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.shutdown(socket.SHUT_WR)
    with pytest.raises(TimeoutError):
        connection.recv(1)

    network.heal()

    connection.settimeout(30)
    assert b"during" == receive(connection, 6)
    assert b"" == connection.recv(1)


def test_cut_closes_connections(network, connection):
    exchange(connection, b"before")

    network.cut()

    assert b"" == connection.recv(1)
    with socket.create_connection((HOST, network.port), 30) as again:
        assert b"after" == exchange(again, b"after")


def test_reset_sends_one_rst(network, connection):
    exchange(connection, b"before")

    network.reset()
    network.reset()

    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_refuse_resets_new_connections(network):
    """New connections are reset until the network is healed."""
    network.conditions = Conditions(refuses=True)
    with pytest.raises(OSError), socket.create_connection((HOST, network.port), 30) as refused:  # noqa: PT011
        exchange(refused, b"hello")

    network.heal()

    with socket.create_connection((HOST, network.port), 30) as connection:
        assert b"hello" == exchange(connection, b"hello")


def test_closes_connections_without_a_target():
    """If nothing listens on the target port, a connection is closed."""
    with closing(Network(1)) as network, socket.create_connection((HOST, network.port), 30) as connection:
        assert b"" == connection.recv(1)


def test_forgets_open_connections(network, connection):
    """Nothing arrives over an open connection, which ends when its client writes to it. New connections work."""
    assert b"before" == exchange(connection, b"before")

    network.forget()

    assert b"" == exchange(connection, b"after")
    with socket.create_connection((HOST, network.port), 30) as other:
        assert b"after" == exchange(other, b"after")
