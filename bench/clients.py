"""Many HTTP clients in a few processes: raw sockets and epoll, no HTTP library, so that they are not what is measured.

Records are counted by a byte that each holds once; latency is taken from some clients only, because it needs to look
into the text. The generator's own ceiling is a figure of its own (fan_out.ceiling).
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.records import MARK, PROBE
from bench.remote import Remote

PROCESSES = 2
SAMPLED_MAX = 20  # clients of a process whose records' latency is taken
READ_BYTES_MAX = 262_144
OPEN_S_MAX = 60.0
_AT = re.compile(rb'"at": ?(\d+),')
_TAIL_BYTES = 40  # what a read may have cut off of a match


@dataclass(frozen=True, slots=True)
class Place:
    """A stream to open: where, with what request header fields, and the bytes by which it has opened."""

    port: int
    path: str
    opened: bytes
    headers: str = ""

    @property
    def request(self) -> bytes:
        return f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self.headers}\r\n".encode()


@dataclass(slots=True)
class Delivered:
    """What clients have received.

    Attributes:
        records: by all of them.
        complete: how many clients got all that was expected.
        began, ended: when the first and the last came, in monotonic nanoseconds.
        latencies: in nanoseconds, of the sampled clients.
        cpu_s: CPU time that reading took, in all reading processes.
    """

    records: int = 0
    complete: int = 0
    began: int = 0
    ended: int = 0
    latencies: list[int] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / 1e9

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds else 0.0

    def latency_ms(self, share: float) -> float:
        """The latency that `share` of the records did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6 if ordered else float("nan")


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    place: Place
    sampled: bool
    begun: int
    opened: int = 0
    head: bytes = b""
    tail: bytes = b""
    records: int = 0
    probes: int = 0


class Swarm:
    """Clients of one process. Nothing is read between calls: what comes then waits in the sockets."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._stalled: list[socket.socket] = []
        self._buffer = bytearray(READ_BYTES_MAX)
        self._gone = 0
        self._latencies: list[int] | None = None

    def open(self, places: list[Place]) -> list[float]:
        """Open a stream at each place, all at once. Returns the seconds until each was open; one that failed is absent."""
        fresh = [self._connect(place) for place in places]
        self._until(lambda: all(client.opened for client in fresh), OPEN_S_MAX)
        return [(client.opened - client.begun) / 1e9 for client in fresh if client.opened]

    def stall(self, count: int) -> None:
        """Let `count` of the clients read no more, for ever."""
        for client in list(self._clients.values())[:count]:
            self._poll.unregister(client.socket)
            self._stalled.append(self._clients.pop(client.socket.fileno()).socket)

    def probed(self, within_s: float) -> bool:
        """Read for `within_s` seconds or until every client has had a probe. Returns whether all have."""
        return self._until(lambda: all(client.probes for client in self._clients.values()), within_s)

    def receive(self, records: int, within_s: float, timed: bool) -> Delivered:
        """Read until every client has had `records` records, or `within_s` seconds have passed.

        What came while streams were opened counts; what the last call has counted does not.

        Raises:
            RuntimeError: a client has had more than that: it was sent something twice, or the count is wrong.

        `timed` takes the latencies of some, which costs this process time.
        """
        done = Delivered()
        self._latencies = done.latencies if timed else None
        began_cpu_s = time.process_time()
        everyone = list(self._clients.values())
        waiting = {client for client in everyone if client.records < records}
        deadline = time.monotonic() + within_s
        while waiting and self._clients and time.monotonic() < deadline:
            for client, came in self._read():
                if came:
                    done.ended = time.monotonic_ns()
                    done.began = done.began or done.ended
                    if client.records >= records:
                        waiting.discard(client)
        if any(client.records > records for client in everyone):
            raise RuntimeError(f"clients received more than the {records} records that were sent")
        done.records = sum(client.records for client in everyone)
        done.cpu_s = time.process_time() - began_cpu_s
        done.complete = len(everyone) - len(waiting)
        for client in everyone:
            client.records = 0
        return done

    def heads(self) -> list[bytes]:
        """What each client received until its stream had opened, and the rest of that read."""
        return [client.head for client in self._clients.values()]

    def close_all(self) -> int:
        """Close all clients. Returns how many the server had closed before."""
        for each in [*(client.socket for client in self._clients.values()), *self._stalled]:
            each.close()
        self._clients.clear()
        self._stalled.clear()
        gone, self._gone = self._gone, 0
        return gone

    def _connect(self, place: Place) -> _Client:
        begun = time.monotonic_ns()
        connected = socket.create_connection(("127.0.0.1", place.port), OPEN_S_MAX)
        connected.sendall(place.request)
        connected.setblocking(False)
        client = _Client(connected, place, len(self._clients) < SAMPLED_MAX, begun)
        self._clients[connected.fileno()] = client
        self._poll.register(connected, select.EPOLLIN)
        return client

    def _until(self, done: Callable[[], bool], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not done():
            if time.monotonic() > deadline:
                return False
            for _ in self._read():
                pass
        return True

    def _read(self) -> Iterable[tuple[_Client, int]]:
        """One turn: each client that had something to read, and how many records it was."""
        buffer = self._buffer
        for fd, _ in self._poll.poll(0.1):
            client = self._clients[fd]
            try:
                size = client.socket.recv_into(buffer)
            except ConnectionError:
                size = 0
            if not size:
                self._lose(fd)
                continue
            came = buffer.count(MARK, 0, size)
            client.records += came
            if not client.opened or not client.probes:
                self._open_or_probe(client, bytes(buffer[:size]))
            if client.sampled and came and self._latencies is not None:
                self._latencies += _latencies(client, bytes(buffer[:size]))
            yield client, came

    def _open_or_probe(self, client: _Client, data: bytes) -> None:
        client.probes += data.count(PROBE)
        if not client.opened:
            client.head += data
            if client.place.opened in client.head:
                client.opened = time.monotonic_ns()

    def _lose(self, fd: int) -> None:
        client = self._clients.pop(fd)
        self._poll.unregister(fd)
        client.socket.close()
        self._gone += 1


def _latencies(client: _Client, data: bytes) -> list[int]:
    """Nanoseconds since each of the records in `data` was made."""
    now = time.monotonic_ns()
    text = client.tail + data
    found = list(_AT.finditer(text))
    client.tail = text[max(found[-1].end() if found else 0, len(text) - _TAIL_BYTES) :]
    return [now - int(each[1]) for each in found]


class Clients:
    """Swarms in processes of their own, as one."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._swarms = [Remote(Swarm) for _ in range(processes)]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for swarm in self._swarms:
            swarm.close()

    def open(self, places: list[Place]) -> list[float]:
        """See Swarm.open; spread over the processes."""
        shares = [(places[at :: len(self._swarms)],) for at in range(len(self._swarms))]
        return [took for part in self._each("open", shares) for took in part]

    def stall(self, count: int) -> None:
        """See Swarm.stall; all in the first process."""
        self._swarms[0].call("stall", count)

    def probed(self, within_s: float) -> bool:
        """See Swarm.probed."""
        return all(self._each("probed", [(within_s,)] * len(self._swarms)))

    def heads(self) -> list[bytes]:
        """See Swarm.heads."""
        return [head for part in self._each("heads") for head in part]

    def expect(self, records: int, within_s: float, timed: bool = False) -> None:
        """Begin to read; delivered() waits for the end. See Swarm.receive."""
        for swarm in self._swarms:
            swarm.start("receive", records, within_s, timed)

    def delivered(self) -> Delivered:
        """What came since expect()."""
        parts: list[Delivered] = [part for part in (swarm.result() for swarm in self._swarms) if part.records]
        return Delivered(
            sum(part.records for part in parts),
            sum(part.complete for part in parts),
            min((part.began for part in parts), default=0),
            max((part.ended for part in parts), default=0),
            [each for part in parts for each in part.latencies],
            sum(part.cpu_s for part in parts),
        )

    def close_all(self) -> int:
        """See Swarm.close_all."""
        return sum(self._each("close_all"))

    def _each(self, method: str, args: Sequence[tuple[object, ...]] | None = None) -> list[Any]:
        for swarm, given in zip(self._swarms, args or [()] * len(self._swarms), strict=True):
            swarm.start(method, *given)
        return [swarm.result() for swarm in self._swarms]
