"""Connections to brokers that gevent's event loop reads itself: an answer that has come whole is handed on in the loop.

kafka-python connects, encrypts and authenticates; then its hands are off the socket. A request over its own loop costs a
millisecond of CPU in futures, timers and wake-ups.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gevent import get_hub
from gevent.socket import wait_read, wait_write
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.net.connection import KafkaConnection
from kafka.net.transport import KafkaSSLTransport

from kafkasse.kafka.fetch_protocol import API_KEY, VERSIONS, framed

BUFFER_BYTES = 65_536  # to begin with; it grows with the answers
ANSWER_BYTES_MAX = 1 << 30  # a fetch asks for much less, but a single batch of records may be larger than was asked for
WARM_PER_BROKER_MAX = 4
HANDSHAKE_S_MAX = 5.0
_INT32 = struct.Struct(">i")
_READABLE = 1  # libev's name for it
_WOULD_WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Broker(NamedTuple):
    """Where a broker listens, as metadata tells it."""

    node_id: int
    host: str
    port: int


class Connection:
    """A connection to one broker, ready for fetches, one at a time.

    Args:
        sock: connected, encrypted and authenticated as need be.
        broker: whose it is.
        version: the newest of Fetch that both sides know.
        client_id: what the broker calls us.
        timeout_s: how long the broker may take to take a request.
    """

    def __init__(self, sock: socket.socket, broker: Broker, version: int, client_id: str, timeout_s: float) -> None:
        self.broker = broker
        self.version = version
        self.fresh = False  # it was kept for a while: the broker may have closed it
        self.broken = False
        self.awaited: int | None = None  # the correlation id of the answer that is under way
        self._socket = sock
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._last_id = 0
        self._buffer = bytearray()
        self._filled = 0
        self._watch: Any = None
        sock.settimeout(0.0)

    def listen(self, answered: Callable[[memoryview], None], broke: Callable[[Exception], None]) -> None:
        """Be told of answers, and of the end of the connection, by the event loop itself: neither may wait.

        Args:
            answered: with each answer. It is overwritten by the next one.
            broke: with what is wrong with the connection, or with what `answered` raised.
        """
        self._listen_no_more()
        self._buffer = self._buffer or bytearray(BUFFER_BYTES)
        self._watch = get_hub().loop.io(self._socket.fileno(), _READABLE)
        self._watch.start(self._read, answered, broke)

    def ask(self, version: int, request: bytes) -> None:
        """Send the body of a fetch of this version.

        Raises:
            OSError: the connection is broken.
        """
        self._last_id = (self._last_id + 1) % 2**31
        self.awaited = self._last_id
        rest = memoryview(framed(version, self._last_id, self._client_id, request))
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                wait_write(self._socket.fileno(), self._timeout_s)
            except ssl.SSLWantReadError:
                wait_read(self._socket.fileno(), self._timeout_s)

    def _read(self, answered: Callable[[memoryview], None], broke: Callable[[Exception], None]) -> None:
        try:
            if self._has_answer():
                data = memoryview(self._buffer)[_INT32.size : self._filled]
                self._filled = 0
                if self.awaited is None or self.awaited != _INT32.unpack_from(data)[0]:
                    raise OSError("an answer to another request")
                self.awaited, self.fresh = None, False
                answered(data)
        except _WOULD_WAIT:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, reading goes on by another connection
            self._listen_no_more()
            self.broken = True
            broke(error)

    def _has_answer(self) -> bool:
        """Read what there is of the answer that is under way. Whether all of it is here."""
        size = self._answer_size()
        while self._filled < size:
            count = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            self._filled += count
            size = self._answer_size()
            if size > len(self._buffer):
                larger = bytearray(size)
                larger[: self._filled] = memoryview(self._buffer)[: self._filled]
                self._buffer = larger
        if self._filled > size:
            raise OSError("more than an answer")
        return True

    def _answer_size(self) -> int:
        """How many bytes the answer has, with those that tell this."""
        if self._filled < _INT32.size:
            return _INT32.size
        (size,) = _INT32.unpack_from(self._buffer)
        if not _INT32.size <= size <= ANSWER_BYTES_MAX:
            raise OSError(f"an answer of {size} bytes")
        return int(_INT32.size + size)

    def rest(self) -> None:
        """Nobody uses it for now."""
        self._listen_no_more()
        self.fresh = True
        self._buffer = bytearray()

    def close(self) -> None:
        """Hang up."""
        self._listen_no_more()
        self._socket.close()

    def _listen_no_more(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


class Connections:
    """Opens connections, and keeps a few that were given back.

    Args:
        admin: the client whose settings and loop they are made with.
        timeout_s: how long a broker may take to let one in, and to take a request.
    """

    def __init__(self, admin: Callable[[], KafkaAdminClient], timeout_s: float) -> None:
        self._admin = admin
        self._timeout_s = timeout_s
        self._warm: defaultdict[Broker, list[Connection]] = defaultdict(list)
        self._closed = False

    def open(self, broker: Broker) -> Connection:
        """A connection to this broker.

        Raises:
            kafka.errors.KafkaError: it cannot be had.
        """
        if (warm := self.warm(broker)) is not None:
            return warm
        admin = self._admin()
        sock, version = admin._net.run(_connected, admin._manager, broker, time.monotonic() + self._timeout_s)
        return Connection(sock, broker, version, admin.config["client_id"], self._timeout_s)

    def warm(self, broker: Broker) -> Connection | None:
        """One that was given back, or None: then open() takes a while."""
        return self._warm[broker].pop() if self._warm[broker] else None

    def drop(self, broker: Broker) -> None:
        """Keep none of this broker's: where one was found dead the others will be, each after its own wait."""
        for connection in self._warm.pop(broker, []):
            connection.close()

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next one who reads from this broker."""
        warm = self._warm[connection.broker]
        if self._closed or connection.broken or connection.awaited is not None or len(warm) >= WARM_PER_BROKER_MAX:
            connection.close()
        else:
            connection.rest()
            warm.append(connection)

    def close(self) -> None:
        """Close those that wait here."""
        self._closed = True
        for connections in self._warm.values():
            while connections:
                connections.pop().close()


async def _connected(manager: Any, broker: Broker, deadline_s: float) -> tuple[socket.socket, int]:
    """The socket of a new connection that is ready for requests, and a version of Fetch. Runs in kafka-python's loop."""
    connection = KafkaConnection(
        manager._net, node_id=broker.node_id, broker_version_data=manager.broker_version_data, **manager.config
    )
    transport = await manager._build_transport(broker, timeout_at=deadline_s)
    try:
        connection.connection_made(transport)
        await connection.initialize(timeout_at=deadline_s)
        await connection
        version = _version(connection.broker_version_data.api_versions)
    except BaseException:
        transport.close()
        raise
    # The loop lets go of the socket, and there is nobody whom the transport would tell that it is gone.
    connection._reauth.cancel()
    for task in (transport._read_task, transport._write_task):
        if task is not None:
            manager._net.cancel(task)
    sock: socket.socket = transport._sock
    transport._sock = None
    return sock, version


async def _shaken_hands(self: Any) -> None:
    """In place of kafka-python's own, which waits for ever for a broker that takes connections and says nothing."""
    deadline_s = time.monotonic() + HANDSHAKE_S_MAX
    while True:
        try:
            self._sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await self._net.wait_read(self._sock, deadline_s)
        except ssl.SSLWantWriteError:
            await self._net.wait_write(self._sock, deadline_s)


def bound_handshakes() -> None:
    """Give each TLS handshake of kafka-python's a deadline."""
    KafkaSSLTransport.handshake = _shaken_hands


def _version(versions: Mapping[int, tuple[int, int]]) -> int:
    first, last = versions[API_KEY]
    known = [version for version in VERSIONS if first <= version <= last]
    if not known:
        raise kafka_errors.IncompatibleBrokerVersion(
            f"Kafka 2.7 or newer is needed; this broker's Fetch is {first} to {last}"
        )
    return max(known)
