"""A network that can be made ill: TCP connections go through here on their way to a port, and their weather is ours.

It runs on greenlets of the process that uses it, so that a test changes the weather by setting an attribute. It knows bytes
and nothing of what they mean. Toxiproxy would do the same and need Go on every machine that runs the tests.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from math import inf
from typing import NamedTuple

import gevent
from gevent import socket
from gevent.event import Event

HOST = "127.0.0.1"
BACKLOG = 1000
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends RST in partition of FIN


class Weather(NamedTuple):
    """What a connection has to go through, each way.

    Attributes:
        latency_s: seconds that each slice is under way.
        bytes_per_s: no more than these pass in a second.
        slice_bytes: no more than these are passed on at once.
        refuses: who connects is reset at once.
    """

    latency_s: float = 0.0
    bytes_per_s: float = inf
    slice_bytes: int = 65_536
    refuses: bool = False


CLEAR = Weather()


class Network:
    """Passes on what comes to `port` of 127.0.0.1 to `target_port`, and back.

    Attributes:
        port: where to connect, as the system chose it.
        target_port: where the next connection leads.
        weather: from the next slice on.
    """

    def __init__(self, target_port: int) -> None:
        self.weather = CLEAR
        self.target_port = target_port
        self._flowing = Event()
        self._flowing.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = gevent.spawn(self._accept)

    def stall(self) -> None:
        """Half open: no byte and no end of a connection passes, and nobody is told. New connections hang, too."""
        self._flowing.clear()

    def refuse(self) -> None:
        """End all connections with RST, and those that are tried."""
        self.weather = Weather(refuses=True)
        self.reset()

    def heal(self) -> None:
        """Clear weather; connections that stalled go on where they were."""
        self.weather = CLEAR
        self._flowing.set()

    def cut(self) -> None:
        """End all connections as if the other side had closed them, wherever in their bytes they are."""
        for near, far in list(self._pairs):
            _end(near)
            _end(far)

    def reset(self) -> None:
        """End all connections with RST."""
        while self._pairs:  # each is closed here once, whenever those who pass its bytes notice
            for each in self._pairs.pop():
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                each.close()

    def close(self) -> None:
        """End everything, and give the port back."""
        self._accepting.kill()
        self._listener.close()
        self.reset()
        self.heal()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            gevent.spawn(self._join, near)

    def _join(self, near: socket.socket) -> None:
        self._flowing.wait()
        if self.weather.refuses:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            near.close()
            return
        try:
            far = socket.create_connection((HOST, self.target_port))
        except OSError:
            near.close()
            return
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = near, far
        self._pairs.add(pair)
        gevent.joinall([gevent.spawn(self._pass, near, far), gevent.spawn(self._pass, far, near)])
        self._pairs.discard(pair)
        near.close()
        far.close()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(self.weather.slice_bytes):
                gevent.sleep(self.weather.latency_s + len(data) / self.weather.bytes_per_s)
                self._flowing.wait()
                sink.sendall(data)
            self._flowing.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone: so is the other
            _end(source)
            _end(sink)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
