"""The ill network itself: each weather does what its name says, or faults that are found with it mean nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from tests.chaos.network import HOST, Network, Weather

SHORT_S = 0.2


def echo(connection: socket.socket, _: object) -> None:
    with suppress(OSError):
        while data := connection.recv(65_536):
            connection.sendall(data)


@pytest.fixture
def network() -> Iterator[Network]:
    """The way to a server that says everything back."""
    server = StreamServer((HOST, 0), echo)
    server.start()
    with closing(Network(server.server_port)) as network:
        yield network
    server.stop()


@pytest.fixture
def connection(network: Network) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, network.port), 30) as connection:
        yield connection


def say(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return hear(connection, len(text))


def hear(connection: socket.socket, size: int) -> bytes:
    heard = b""
    while len(heard) < size and (data := connection.recv(size - len(heard))):
        heard += data
    return heard


def test_passes_everything_on(network: Network, connection: socket.socket) -> None:
    """Many bytes come back as they were, in whatever slices they travel."""
    text = bytes(range(256)) * 4000
    network.weather = Weather(slice_bytes=1009)
    sending = gevent.spawn(connection.sendall, text)

    assert text == hear(connection, len(text))
    sending.get()


@pytest.mark.parametrize("weather", [Weather(latency_s=SHORT_S / 2), Weather(bytes_per_s=8 / SHORT_S)])
def test_slow(network: Network, connection: socket.socket, weather: Weather) -> None:
    """Both ways take their time: as long as the latency says, or as the bytes need."""
    network.weather = weather
    began = time.monotonic()

    assert b"1234" == say(connection, b"1234")
    assert time.monotonic() - began >= SHORT_S


def test_half_open(network: Network, connection: socket.socket) -> None:
    """Nothing comes, not even the end of what was closed; healed, it goes on where it was."""
    assert b"before" == say(connection, b"before")
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
    assert b"during" == hear(connection, 6)
    assert b"" == connection.recv(1)


def test_cut(network: Network, connection: socket.socket) -> None:
    """Connections end as if the other side had closed them; new ones are fine."""
    say(connection, b"before")

    network.cut()

    assert b"" == connection.recv(1)
    with socket.create_connection((HOST, network.port), 30) as again:
        assert b"after" == say(again, b"after")


def test_reset(network: Network, connection: socket.socket) -> None:
    """Connections end with RST, once."""
    say(connection, b"before")

    network.reset()
    network.reset()

    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_refuses(network: Network) -> None:
    """Who connects is turned away, until it is healed."""
    network.weather = Weather(refuses=True)
    with pytest.raises(OSError), socket.create_connection((HOST, network.port), 30) as refused:  # noqa: PT011
        say(refused, b"hello")

    network.heal()

    with socket.create_connection((HOST, network.port), 30) as connection:
        assert b"hello" == say(connection, b"hello")


def test_nobody_there() -> None:
    """Where nobody listens behind it, a connection ends."""
    with closing(Network(1)) as network, socket.create_connection((HOST, network.port), 30) as connection:
        assert b"" == connection.recv(1)
