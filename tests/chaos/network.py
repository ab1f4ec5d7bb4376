"""A TCP proxy that simulates network faults. A test changes the conditions by setting an attribute.

The proxy runs in greenlets of the test process and does not interpret the bytes. Toxiproxy does the same, but would require
Go on every machine that runs the tests.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from math import inf
from typing import NamedTuple

import gevent
from gevent import socket
from gevent.event import Event

HOST = "127.0.0.1"
BACKLOG = 1000
RETRANSMISSION_S = 0.2  # Linux's minimum
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends an RST instead of a FIN


class Conditions(NamedTuple):
    """The conditions of a connection in each direction.

    Attributes:
        latency_s: the delay of each slice in seconds.
        loss: the share of slices that are lost. TCP sends them again after RETRANSMISSION_S, and later slices wait.
    """

    latency_s: float = 0.0
    bytes_per_s: float = inf
    slice_bytes: int = 65_536
    loss: float = 0.0
    refuses: bool = False


NORMAL = Conditions()


class Network:
    """Forwards connections to `port` of 127.0.0.1 to `target_port`, in both directions.

    Attributes:
        port: where to connect; the system chooses it.
        target_port: the target of the next connection.
    """

    def __init__(self, target_port: int) -> None:
        self.conditions = NORMAL
        self.target_port = target_port
        self._flowing = Event()
        self._flowing.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._forgotten: set[tuple[socket.socket, socket.socket]] = set()
        self._losses = random.Random(1)  # noqa: S311 - the same losses in each run
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._accepting = gevent.spawn(self._accept)

    def stall(self) -> None:
        """Simulate half-open connections: neither data nor the end of a connection passes. New connections hang too."""
        self._flowing.clear()

    def forget(self) -> None:
        """Drop the data of all open connections, as a NAT router does after a long silence. New connections work.

        A connection ends when its client writes to it.
        """
        self._forgotten |= self._pairs

    def refuse(self) -> None:
        """Reset all connections, and every new one."""
        self.conditions = Conditions(refuses=True)
        self.reset()

    def heal(self) -> None:
        """Restore normal conditions. Stalled connections continue where they stopped."""
        self.conditions = NORMAL
        self._flowing.set()

    def cut(self) -> None:
        """Close all connections as if the other side had closed them, at whatever byte they are."""
        for near, far in list(self._pairs):
            end(near)
            end(far)

    def reset(self) -> None:
        """Reset all connections (RST)."""
        while self._pairs:  # close each socket only once, even if its forwarding greenlets end meanwhile
            for sock in self._pairs.pop():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                sock.close()

    def close(self) -> None:
        self._accepting.kill()
        self._listener.close()
        self.reset()
        self.heal()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            gevent.spawn(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        self._flowing.wait()
        if self.conditions.refuses:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            near.close()
            return
        try:
            far = socket.create_connection((HOST, self.target_port))
        except OSError:
            near.close()
            return
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pair = near, far
        self._pairs.add(pair)
        gevent.joinall([gevent.spawn(self._forward, near, far, pair), gevent.spawn(self._forward, far, near, pair)])
        self._pairs.discard(pair)
        self._forgotten.discard(pair)
        near.close()
        far.close()

    def _forward(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        try:
            while data := source.recv(self.conditions.slice_bytes):
                if pair in self._forgotten:
                    if source is pair[0]:
                        raise ConnectionResetError
                    continue
                gevent.sleep(self.conditions.latency_s + len(data) / self.conditions.bytes_per_s)
                while self._losses.random() < self.conditions.loss:
                    gevent.sleep(RETRANSMISSION_S)
                self._flowing.wait()
                sink.sendall(data)
            self._flowing.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is closed, so close the other
            end(source)
            end(sink)


def end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
