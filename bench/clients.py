"""Many HTTP clients in a few processes. They use raw sockets and epoll instead of an HTTP library to save CPU time.

The clients count records by a byte that each record contains exactly once. Measuring latency requires parsing, so the
clients parse only a random sample of all reads. load_generator.py measures how many records the clients can receive.
"""

from __future__ import annotations

import random
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.records import MARK, PROBE
from bench.remote import Remote

PROCESSES = 2
MAX_READ_BYTES = 262_144
OPEN_TIMEOUT_S = 60.0
_TLS = ssl.create_default_context()
_TLS.check_hostname, _TLS.verify_mode = False, ssl.CERT_NONE
_AT = re.compile(rb'"at": ?(\d+),')


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a stream.

    Attributes:
        port: the server's port on 127.0.0.1.
        path: the path of the stream.
        opened: the stream is open when the response contains these bytes.
        headers: more header lines, each with its line end.
        tls: connect with TLS, and do not check the certificate.
    """

    port: int
    path: str
    opened: bytes
    headers: str = ""
    tls: bool = False

    @property
    def encoded(self) -> bytes:
        """The bytes to send."""
        return f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{self.headers}\r\n".encode()


@dataclass(slots=True)
class Delivered:
    """The records that the clients received.

    Attributes:
        records: the number of records that all clients received.
        reads: the number of reads that returned records: about as many as the server's writes.
        complete: the number of clients that received all expected records.
        began, ended: the times of the first and the last record, in monotonic nanoseconds.
        latencies: the latencies of a sample of the records, in nanoseconds.
        cpu_s: the CPU time of all client processes.
    """

    records: int = 0
    reads: int = 0
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
        """Records per second."""
        return self.records / self.seconds if self.seconds else 0.0


@dataclass(slots=True, eq=False)
class _Client:
    socket: socket.socket
    request: Request
    began: int
    opened: int = 0
    head: bytes = b""
    records: int = 0
    probes: int = 0
    closed: bool = False


class ClientProcess:
    """The clients of one process. Between calls nothing is read; incoming data waits in the sockets."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._buffer = bytearray(MAX_READ_BYTES)
        self._closed_by_server = 0
        self._latencies: list[int] | None = None
        self._sampled_share = 1.0

    def open(self, requests: list[Request]) -> list[float]:
        """Open all streams at the same time. Returns the seconds until each was open, without those that failed."""
        clients = [self._connect(request) for request in requests]
        self._until(lambda: all(client.opened for client in clients), OPEN_TIMEOUT_S)
        return [(client.opened - client.began) / 1e9 for client in clients if client.opened]

    def connect(self, requests: list[Request]) -> None:
        """Send all requests, and do not wait for the responses."""
        for request in requests:
            self._connect(request)

    def probed(self, within_s: float) -> bool:
        """Read until each client has received a probe, or for `within_s` seconds. Returns whether all have received one."""
        return self._until(lambda: all(client.probes for client in self._clients.values()), within_s)

    def receive(self, records: int, within_s: float, sampled_share: float) -> Delivered:
        """Read until each client has received `records` records, or for `within_s` seconds.

        Records that arrived while the streams were opened are counted; records that an earlier call counted are not.

        Args:
            records: the number of records that each client should receive.
            within_s: how long to wait for them.
            sampled_share: the share of the reads whose records' latencies are measured, which costs this process CPU time.

        Raises:
            RuntimeError: a client received more records than expected: the server sent duplicates, or the count is wrong.
        """
        done = Delivered()
        self._latencies = done.latencies if sampled_share else None
        self._sampled_share = sampled_share
        began_cpu_s = time.process_time()
        clients = list(self._clients.values())
        waiting = {client for client in clients if client.records < records}
        deadline = time.monotonic() + within_s
        while waiting and self._clients and time.monotonic() < deadline:
            for client, received in self._read():
                if received:
                    done.reads += 1
                    done.ended = time.monotonic_ns()
                    done.began = done.began or done.ended
                if client.records >= records or client.closed:
                    waiting.discard(client)
        if any(client.records > records for client in clients):
            raise RuntimeError(f"clients received more than the {records} records that were sent")
        done.records = sum(client.records for client in clients)
        done.cpu_s = time.process_time() - began_cpu_s
        done.complete = sum(client.records == records for client in clients)
        for client in clients:
            client.records = 0
        return done

    def heads(self) -> list[bytes]:
        """Return what each client received until its stream was open, including the rest of the last read."""
        return [client.head for client in self._clients.values()]

    def close_all(self) -> int:
        """Close all clients. Returns the number of clients that the server had already closed."""
        for client in self._clients.values():
            client.socket.close()
        self._clients.clear()
        closed, self._closed_by_server = self._closed_by_server, 0
        return closed

    def _connect(self, request: Request) -> _Client:
        began = time.monotonic_ns()
        connected = socket.create_connection(("127.0.0.1", request.port), OPEN_TIMEOUT_S)
        if request.tls:
            connected = _TLS.wrap_socket(connected)
        connected.sendall(request.encoded)
        connected.setblocking(False)
        client = _Client(connected, request, began)
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
        """Poll once and read. Yields each client that received data, with the number of its new records."""
        buffer = self._buffer
        for fd, _ in self._poll.poll(0.1):
            client = self._clients[fd]
            try:
                size = client.socket.recv_into(buffer)
                while client.request.tls and client.socket.pending():  # epoll does not know what OpenSSL has decrypted
                    size += client.socket.recv_into(memoryview(buffer)[size:])
            except ssl.SSLWantReadError:
                continue
            except ConnectionError:
                size = 0
            if not size:
                self._remove(fd)
                yield client, 0
                continue
            received = buffer.count(MARK, 0, size)
            client.records += received
            if not client.opened or not client.probes:
                self._open_or_probe(client, bytes(buffer[:size]))
            if received and self._latencies is not None and random.random() < self._sampled_share:
                self._latencies += latencies_of(bytes(buffer[:size]))
            yield client, received

    def _open_or_probe(self, client: _Client, data: bytes) -> None:
        client.probes += data.count(PROBE)
        if not client.opened:
            client.head += data
            if client.request.opened in client.head:
                client.opened = time.monotonic_ns()

    def _remove(self, fd: int) -> None:
        client = self._clients.pop(fd)
        client.closed = True
        self._poll.unregister(fd)
        client.socket.close()
        self._closed_by_server += 1


def latencies_of(data: bytes) -> list[int]:
    """Return the age in nanoseconds of each record in `data`, except those that a read has split."""
    now = time.monotonic_ns()
    return [now - int(each[1]) for each in _AT.finditer(data)]


class Clients:
    """Clients in several processes, used like one object."""

    def __init__(self, processes: int = PROCESSES) -> None:
        self._processes = [Remote(ClientProcess) for _ in range(processes)]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()

    def open(self, requests: list[Request]) -> list[float]:
        """See ClientProcess.open. The clients are spread over the processes."""
        shares = [(requests[at :: len(self._processes)],) for at in range(len(self._processes))]
        return [took for part in self._each("open", shares) for took in part]

    def connect(self, requests: list[Request]) -> float:
        """See ClientProcess.connect. Returns the time before the first client connects, in monotonic seconds."""
        began = time.monotonic()
        self._each("connect", [(requests[at :: len(self._processes)],) for at in range(len(self._processes))])
        return began

    def probed(self, within_s: float) -> bool:
        """See ClientProcess.probed."""
        return all(self._each("probed", [(within_s,)] * len(self._processes)))

    def heads(self) -> list[bytes]:
        """See ClientProcess.heads."""
        return [head for part in self._each("heads") for head in part]

    def expect(self, records: int, within_s: float, sampled_share: float = 0.0) -> None:
        """Start to read; delivered() waits for the end. See ClientProcess.receive."""
        for process in self._processes:
            process.start("receive", records, within_s, sampled_share)

    def delivered(self) -> Delivered:
        """Return what the clients received since expect()."""
        parts: list[Delivered] = [part for part in (process.result() for process in self._processes) if part.records]
        return Delivered(
            sum(part.records for part in parts),
            sum(part.reads for part in parts),
            sum(part.complete for part in parts),
            min((part.began for part in parts), default=0),
            max((part.ended for part in parts), default=0),
            [each for part in parts for each in part.latencies],
            sum(part.cpu_s for part in parts),
        )

    def close_all(self) -> int:
        """See ClientProcess.close_all."""
        return sum(self._each("close_all"))

    def _each(self, method: str, args: Sequence[tuple[object, ...]] | None = None) -> list[Any]:
        for process, given in zip(self._processes, args or [()] * len(self._processes), strict=True):
            process.start(method, *given)
        return [process.result() for process in self._processes]
