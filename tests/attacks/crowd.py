"""Many clients at once, each a raw socket and a greenlet. They count events instead of parsing them, to save CPU time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import gevent
import pytest

from tests.attacks.kit import connect, request
from tests.attacks.sizes import SIZES
from tests.support.waiting import POLL_S

EVENT = b'"_kafka":{'  # once in each event of the format `kafkasse`
READ_BYTES = 1 << 18


class Visitor:
    """One client of a crowd.

    Attributes:
        status: of the response; 0 until it has arrived.
        events: the number of events so far.
        received: the number of bytes so far.
        head: the first bytes of the response, up to the first event ID.
        opened_after_s: the time from the request to the first event ID.
        ended: the server has closed the connection.
    """

    def __init__(self, port: int, path: str, fields: Iterable[str], receive_buffer: int) -> None:
        self.status = self.events = self.received = 0
        self.head = b""
        self.opened_after_s = 0.0
        self.ended = False
        self._tail = b""
        self._began = time.monotonic()
        self.socket = connect(port, receive_buffer)
        self.socket.sendall(request(path, *fields))

    def read(self, max_bytes: int = READ_BYTES) -> bool:
        """Read once. Return whether the stream continues."""
        try:
            data = self.socket.recv(max_bytes)
        except OSError:
            data = b""
        if not data:
            self.ended = True
            return False
        if not self.opened_after_s:
            self.head += data
            self.status = int(self.head.split(b" ", 2)[1]) if b"\r\n" in self.head else 0
            if b"\nid: " in self.head:
                self.opened_after_s = time.monotonic() - self._began
        text = self._tail + data
        self.events += text.count(EVENT)
        self.received += len(data)
        self._tail = text[-len(EVENT) + 1 :]  # too short for an event, so no event is counted twice
        return True

    def read_all(self) -> None:
        while self.read():
            pass


class Crowd:
    """Clients that connect at the same time. Use it in a `with` block.

    Args:
        port: the server's port.
        paths: the path of each client's request.
        fields: header fields of all requests.
        reads: whether the clients read at once; otherwise they never read unless read() is called.
        receive_buffer: the size of each socket's receive buffer; the system chooses it if 0.
        distinct: each client has its own address in X-Forwarded-For.
    """

    def __init__(
        self,
        port: int,
        paths: Iterable[str],
        *fields: str,
        reads: bool = True,
        receive_buffer: int = 0,
        distinct: bool = False,
    ) -> None:
        self.clients: list[Visitor] = []
        self._reading: list[gevent.Greenlet] = []
        opening = [
            gevent.spawn(Visitor, port, path, (*fields, *([_address(n)] if distinct else [])), receive_buffer)
            for n, path in enumerate(paths)
        ]
        for greenlet in gevent.joinall(opening):
            self.clients.append(greenlet.get())
        if reads:
            self._reading = [gevent.spawn(client.read_all) for client in self.clients]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        gevent.killall(self._reading)
        for client in self.clients:
            client.socket.close()

    def wait(self, condition: Callable[[Visitor], object]) -> None:
        """Wait until the condition is true for all clients."""
        with gevent.Timeout(SIZES.wait_s, False):
            while not all(map(condition, self.clients)):
                gevent.sleep(POLL_S)
            return
        waiting = [(client.status, client.events) for client in self.clients if not condition(client)]
        pytest.fail(f"{len(waiting)} clients still wait; the status and the events of the first: {waiting[:10]}")

    def statuses(self) -> dict[int, int]:
        """Return how many clients got each status."""
        return Counter(client.status for client in self.clients)

    def events(self) -> dict[int, int]:
        """Return how many clients have received each number of events."""
        return Counter(client.events for client in self.clients)


def _address(n: int) -> str:
    return f"X-Forwarded-For: 10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"
