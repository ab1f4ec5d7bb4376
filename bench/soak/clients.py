"""The clients of a soak test. Each client has one behavior for the whole run, so that the load is constant.

A client is a greenlet. It opens one connection after another: it connects, reads, disconnects, and reconnects with its last
event ID. A StreamCheck checks everything that the client receives. The pool records errors, and the client continues.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from threading import Barrier

import gevent
from gevent.event import Event

from bench.soak.records import Partition, first_shown, value
from bench.soak.stream_check import DeliveryError, StreamCheck
from bench.soak.writer import Writer
from tests.support.kafka import Cluster

SILENCE_TIMEOUT_S = (
    30.0  # longer than the heartbeat interval, and the tolerance for the write timeout on a busy machine
)
MAX_READ_BYTES = 65_536
SLOW_BYTES, SLOW_PAUSE_S = 1_024, 0.05
SLOW_SHARE, STALLED_SHARE = 0.6, 1.5  # of the write timeout: a slow client stays below it, a stalled one exceeds it
SMALL_BUFFER_BYTES = 32_768
PAST_S = 150.0  # how far in the past a client starts that requests older records
LATE_AFTER_CONNECTIONS = 6
MAX_ERRORS = 50
TEMPORARY_RECORDS, TEMPORARY_READERS, TEMPORARY_PARTITIONS = 20, 4, 2


@dataclass(frozen=True)
class Stream:
    """A stream: its path, and a function that returns the first record, from n on, that its filter passes."""

    path: str
    first_shown: Callable[[int], int] = lambda n: n


PARTITIONS = 3
TOPICS = ("plain", "other", "hidden", "values")  # the writer appends to all of them at the same rate
QUIET = "quiet"  # a topic without new records
STREAMS = (
    Stream("/plain"),
    Stream("/other"),
    Stream("/plain,other"),
    Stream("/filtered/hidden", first_shown),
    Stream("/by-value"),
)
VALUES_ROUTE = {"path": "/by-value", "topics": ["values"], "format": "value"}

BAD_REQUESTS: Sequence[tuple[str, str, dict[str, str], int]] = (
    ("HEAD", "/plain", {}, 200),
    ("GET", "/does-not-exist", {}, 404),
    ("GET", "/plain", {"Last-Event-ID": "garbage"}, 400),
    ("GET", "/plain", {"Last-Event-ID": '[{"topic":"plain","partition":99,"offset":0}]'}, 400),
    ("GET", "/plain", {"Last-Event-ID": "[" * 20_000}, 400),
    ("GET", "/plain?timestamp=soon", {}, 400),
    ("POST", "/plain", {}, 405),
    ("GET", "/plain", {"Accept": "text/html"}, 406),
)


class Connection:
    """One request and its response. It ends with a FIN, or abruptly with an RST.

    Attributes:
        status: the status of the response.
    """

    def __init__(
        self, port: int, path: str, headers: Mapping[str, str], method: str = "GET", buffer_bytes: int = 0
    ) -> None:
        self._http = HTTPConnection("127.0.0.1", port)
        self.socket = self._http.sock = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(SILENCE_TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self._http.request(method, path, headers=dict(headers))
        self._response = self._http.getresponse()
        self.status = self._response.status

    def read(self, within_s: float, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return the next bytes, or b"" if the server has ended the response in any way.

        Raises:
            TimeoutError: nothing arrived in time. The connection cannot be used any more.
        """
        self.socket.settimeout(within_s)
        try:
            return self._response.read1(max_bytes)
        except TimeoutError:
            raise
        except (HTTPException, OSError):
            return b""

    def close(self, abruptly: bool = False) -> None:
        """Close the connection, with an RST if `abruptly`."""
        if abruptly:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._response.close()  # the response refers to the socket too
        self._http.close()


class ClientPool:
    """All clients of a run.

    Args:
        port: the server's port.
        writer: knows the end of each topic.
        cluster: creates and deletes temporary topics.
        write_timeout_s: the server's setting.

    Attributes:
        over: set when the clients should read to the end and disconnect.
        errors: the first errors that the clients found.
        counts: the number of events such as connections and errors, by name.
    """

    def __init__(self, port: int, writer: Writer, cluster: Cluster, write_timeout_s: float) -> None:
        self.port = port
        self.writer = writer
        self.write_timeout_s = write_timeout_s
        self.over = Event()
        self.errors: list[str] = []
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._greenlets: list[gevent.Greenlet] = []

    def start(self, behaviors: Mapping[str, int]) -> None:
        """Start clients by behavior, a client that sends bad requests, and one that creates and deletes topics."""
        number = 0
        for behavior, clients in behaviors.items():
            for _ in range(clients):
                self._spawn(Client(self, number, BEHAVIORS[behavior]).run, f"{behavior} {number}")
                number += 1
        self._spawn(self._send_bad_requests, "bad requests")
        self._spawn(self._create_and_delete_topics, "temporary topics")

    def end(self, within_s: float) -> None:
        """Let each client read to the end of its stream and disconnect. The writer must have stopped."""
        self.over.set()
        gevent.joinall(self._greenlets, within_s)
        for each in self._greenlets:
            if not each.dead:
                self.report_error(each.name, f"did not receive all records within {within_s:.0f} s")
        gevent.killall(self._greenlets)

    def report_error(self, client: str, error: object) -> None:
        """Record an error and print it at once, while the state of the server can still be inspected."""
        self.counts["errors"] += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(f"{client}: {error}")
            print(self.errors[-1], flush=True)

    def connect(self, path: str, headers: Mapping[str, str], **options: object) -> Connection:
        """Open a connection and count it."""
        self.counts["connections"] += 1
        return Connection(self.port, path, headers, **options)  # type: ignore[arg-type]

    def _spawn(self, run: Callable[[], object], name: str) -> gevent.Greenlet:
        def guarded() -> None:
            while True:
                try:
                    run()
                    return
                except Exception as error:  # noqa: BLE001 - the soak test reports every error
                    self.report_error(name, f"{type(error).__name__}: {error}")
                    if self.over.wait(1.0):
                        return

        greenlet = gevent.spawn(guarded)
        greenlet.name = name
        self._greenlets.append(greenlet)
        return greenlet

    def _send_bad_requests(self) -> None:
        while not self.over.wait(0.5):
            for method, path, headers, status in BAD_REQUESTS:
                response = self.connect(path, headers, method=method)
                response.close()
                self.counts["HEAD and bad requests"] += 1
                if response.status != status:
                    raise DeliveryError(f"{method} {path} {headers}: received {response.status}, expected {status}")

    def _create_and_delete_topics(self) -> None:
        while not self.over.wait(5.0):
            name = f"temporary-{time.monotonic_ns()}"
            self._cluster.create(name, TEMPORARY_PARTITIONS)
            ends = {(name, each): TEMPORARY_RECORDS for each in range(TEMPORARY_PARTITIONS)}
            for partition, end in ends.items():
                self._cluster.send(name, *(value(partition, n) for n in range(end)), partition=partition[1])
            all_received = Barrier(TEMPORARY_READERS + 1)
            readers = [gevent.spawn(self._read_to_its_end, name, ends, all_received) for _ in range(TEMPORARY_READERS)]
            try:
                all_received.wait(SILENCE_TIMEOUT_S)
                self._cluster.delete(name)
                gevent.joinall(readers, raise_error=True)
            finally:
                gevent.killall(readers)
            self.counts["topics created and deleted"] += 1

    def _read_to_its_end(self, topic: str, ends: Mapping[Partition, int], all_received: Barrier) -> None:
        check = StreamCheck()
        connection = self.connect(f"/{topic}?timestamp=0", {})
        while not check.has_all(ends):
            if not (data := connection.read(SILENCE_TIMEOUT_S)):
                raise DeliveryError(f"{topic}: the server ended the stream at {check.next}: {check.error}")
            check.receive(data)
        all_received.wait(SILENCE_TIMEOUT_S)
        while data := connection.read(SILENCE_TIMEOUT_S):
            check.receive(data)
        connection.close()
        if check.error.get("status") != 410:
            raise DeliveryError(f"{topic} was deleted, expected the error 410, received {check.error}")


class Client:
    """One client. `behavior` is one of its methods; each call handles one connection."""

    def __init__(self, pool: ClientPool, number: int, behavior: Callable[[Client], None]) -> None:
        self._pool = pool
        self._behavior = behavior
        self._random = random.Random(number)
        self._stream = STREAM_OF.get(behavior, STREAMS[number % len(STREAMS)])
        self._check = StreamCheck(self._stream.first_shown)
        self._past: deque[StreamCheck] = deque(maxlen=LATE_AFTER_CONNECTIONS)

    def run(self) -> None:
        """Repeat the behavior until the soak test is over; then read all remaining records."""
        self._pool.over.wait(self._random.uniform(0, 2))  # so that not all clients connect at the same moment
        while not self._pool.over.is_set():
            try:
                self._behavior(self)
            except DeliveryError:
                self._check = StreamCheck(self._stream.first_shown)  # otherwise each further record would be an error
                raise
        self._read(self._connect(), SILENCE_TIMEOUT_S, lambda: self._check.has_all(self._pool.writer.ends))
        if not self._check.has_all(self._pool.writer.ends):
            raise DeliveryError(
                f"lost: received records up to {self._check.next}, the topics end at {self._pool.writer.ends}"
            )

    # Behaviors.

    def idle(self) -> None:
        """Stay connected for a long time to a topic without new records."""
        self._read(self._connect(), self._random.uniform(20, 60))
        self._pause(1)

    def steady(self) -> None:
        """Read for a while, disconnect, and reconnect."""
        self._read(self._connect(), self._random.uniform(10, 40))
        self._pause(self._random.uniform(0, 10))

    def cutting(self) -> None:
        """Disconnect at any moment, even in the middle of an event, and reconnect at once."""
        self._read(self._connect(), self._random.uniform(0.1, 4), abruptly=self._random.random() < 0.5)

    def slow(self) -> None:
        """Read more slowly than the writer writes, fall behind, then read as fast as possible."""
        query = "" if self._check.id else f"?timestamp={self._past_ms()}"
        connection = self._connect(query, SMALL_BUFFER_BYTES)
        until = time.monotonic() + self._pool.write_timeout_s * SLOW_SHARE
        while time.monotonic() < until and not self._pool.over.is_set():
            self._receive(connection.read(SILENCE_TIMEOUT_S, SLOW_BYTES))
            self._pause(SLOW_PAUSE_S)
        self._read(connection, self._random.uniform(5, 10))
        self._pause(self._random.uniform(30, 60))

    def stalled(self) -> None:
        """Request many old records and read nothing until the server closes the connection. Then read the buffer."""
        self._check = StreamCheck(self._stream.first_shown)
        connection = self._connect(f"?timestamp={self._past_ms()}", SMALL_BUFFER_BYTES)
        self._pause(self._pool.write_timeout_s * STALLED_SHARE)
        # With a buffer that is smaller than a packet on the loopback interface, reading megabytes may take minutes.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAX_READ_BYTES)
        deadline = time.monotonic() + SILENCE_TIMEOUT_S
        while not self._pool.over.is_set() and time.monotonic() < deadline:
            if not (data := connection.read(SILENCE_TIMEOUT_S)):
                self._pool.counts["stalled readers closed"] += 1
                break
            self._check.receive(data)
        else:
            if not self._pool.over.is_set():
                raise DeliveryError("the client read nothing, and the server did not close it")
        self._disconnect(connection)

    def late(self) -> None:
        """Reconnect with an old event ID, or start in the past."""
        if len(self._past) == LATE_AFTER_CONNECTIONS:
            self._check = self._past.popleft()
            self._read(self._connect(), self._random.uniform(10, 30))
        else:
            self._check = StreamCheck(self._stream.first_shown)
            self._read(self._connect(f"?timestamp={self._past_ms()}"), self._random.uniform(10, 30))
        self._past.append(self._check.copy())

    # Shared by all behaviors.

    def _connect(self, query: str = "", buffer_bytes: int = 0) -> Connection:
        headers = {"Last-Event-ID": self._check.id} if self._check.id else {}
        self._pool.counts["resumes"] += bool(headers)
        connection = self._pool.connect(self._stream.path + query, headers, buffer_bytes=buffer_bytes)
        if connection.status != 200:
            connection.close()
            raise DeliveryError(f"received status {connection.status}, expected 200")
        return connection

    def _read(
        self,
        connection: Connection,
        seconds: float,
        until: Callable[[], bool] | None = None,
        abruptly: bool = False,
    ) -> None:
        """Read for `seconds` or until the condition is met (by default: the soak test is over). Then disconnect."""
        until = until or self._pool.over.is_set
        deadline = time.monotonic() + seconds
        try:
            while not until() and (left_s := deadline - time.monotonic()) > 0:
                try:
                    self._receive(connection.read(min(left_s, SILENCE_TIMEOUT_S)))
                except TimeoutError:
                    if left_s > SILENCE_TIMEOUT_S:
                        raise DeliveryError(f"no heartbeat within {SILENCE_TIMEOUT_S:.0f} s") from None
        finally:
            self._disconnect(connection, abruptly)

    def _receive(self, data: bytes) -> None:
        if not data:
            raise DeliveryError(f"the server ended the stream: {self._check.error}")
        before = self._check.records
        self._check.receive(data)
        self._pool.counts["records"] += self._check.records - before

    def _disconnect(self, connection: Connection, abruptly: bool = False) -> None:
        connection.close(abruptly)
        self._check.disconnect()

    def _pause(self, seconds: float) -> None:
        self._pool.over.wait(seconds)

    def _past_ms(self) -> int:
        return int((time.time() - PAST_S) * 1000)


BEHAVIORS: dict[str, Callable[[Client], None]] = {
    "idle": Client.idle,
    "steady": Client.steady,
    "cutting": Client.cutting,
    "slow": Client.slow,
    "stalled": Client.stalled,
    "late": Client.late,
}
STREAM_OF = {Client.idle: Stream(f"/{QUIET}"), Client.stalled: Stream("/plain,other")}  # the others use one of STREAMS
