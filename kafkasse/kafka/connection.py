"""A connection to one broker, for one Fetch request at a time. gevent's event loop reads from it without a greenlet.

kafka-python connects, encrypts and authenticates; then this module takes over the socket, because a request through
kafka-python's event loop costs a millisecond of CPU for futures, timers and wake-ups. This module delimits responses by
their size field. It does not parse them.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from gevent import get_hub
from gevent.socket import wait_read, wait_write

from kafkasse.kafka.fetch_protocol import Broker, frame_request

# A response that arrives in one recv() of at most this size is not copied.
SMALL_RESPONSE_BYTES = 65_536
# The limits for one turn of the event loop: of one connection, and of all together, because hundreds may have a response at
# the same time. A connection reads at least a TLS record (16 KiB): the event loop does not see the rest of a record that is
# already decrypted.
MAX_BYTES_PER_TURN = 131_072
MAX_BYTES_OF_ALL_PER_TURN = 2_097_152
MIN_BYTES_PER_TURN = 16_384
# Far more than a Fetch request asks for: a broker returns the first batch even if it exceeds the limits of the request.
MAX_RESPONSE_BYTES = 1 << 30
_INT32 = struct.Struct(">i")
_READABLE = 1  # libev's READ
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """A connection that is ready for Fetch requests.

    Args:
        sock: a connected socket, on which TLS and SASL have finished if the settings require them.
        broker: the broker at the other end.
        version: the newest Fetch version that both sides support.
        client_id: the client ID in each request.
        timeout_s: how long the broker may take to accept a request.

    Attributes:
        in_flight: the correlation ID of the request whose response has not arrived, or None.
        reused: the connection came from the pool and has not received a response yet. The broker may have closed it.
        broken: the connection failed and must not be used again.
    """

    reading: ClassVar[int] = 0  # the number of connections that read

    def __init__(self, sock: socket.socket, broker: Broker, version: int, client_id: str, timeout_s: float) -> None:
        self.broker = broker
        self.version = version
        self.in_flight: int | None = None
        self.reused = False
        self.broken = False
        self._socket = sock
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._last_correlation_id = 0
        self._buffer = bytearray()  # of an incomplete response
        self._filled = 0
        self._watcher: Any = None
        sock.settimeout(0.0)

    def start_reading(self, on_response: Callable[[memoryview], None], on_error: Callable[[Exception], None]) -> None:
        """Call back for each response and when the connection fails. Callbacks run in the event loop and must not block.

        Args:
            on_response: receives a response without its size field.
            on_error: receives the connection's error, or an exception that `on_response` raised. Called at most once.
        """
        self._stop_reading()
        self._watcher = get_hub().loop.io(self._socket.fileno(), _READABLE)
        self._watcher.start(self._read, on_response, on_error)
        Connection.reading += 1

    def send(self, version: int, body: bytes) -> None:
        """Send a Fetch request of this version. Blocks while the socket's buffer is full.

        Raises:
            OSError: the connection is broken, or the broker has not accepted the request within the timeout.
        """
        self._last_correlation_id = (self._last_correlation_id + 1) % 2**31
        self.in_flight = self._last_correlation_id
        rest = memoryview(frame_request(version, self._last_correlation_id, self._client_id, body))
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                wait_write(self._socket.fileno(), self._timeout_s)
            except ssl.SSLWantReadError:
                wait_read(self._socket.fileno(), self._timeout_s)

    @property
    def received_bytes(self) -> int:
        """How many bytes of an incomplete response have arrived."""
        return self._filled

    def suspend(self) -> None:
        """Stop reading while the connection is idle."""
        self._stop_reading()
        self.reused = True

    def close(self) -> None:
        self._stop_reading()
        self._socket.close()

    def _read(self, on_response: Callable[[memoryview], None], on_error: Callable[[Exception], None]) -> None:
        try:
            response = self._receive()
            if self.in_flight is None or self.in_flight != _INT32.unpack_from(response)[0]:
                raise OSError("the response has the correlation ID of another request")
            self.in_flight, self.reused = None, False
            on_response(response)
        except _WOULD_BLOCK:
            pass
        except Exception as error:  # noqa: BLE001 - the cursor continues on another connection, whatever the error
            self._stop_reading()
            self.broken = True
            on_error(error)

    def _receive(self) -> memoryview:
        """Read some of the available bytes. Return the response without its size field once it is complete.

        Raises:
            BlockingIOError, SSLWantReadError, SSLWantWriteError: the response is incomplete.
        """
        share = max(MIN_BYTES_PER_TURN, min(MAX_BYTES_PER_TURN, MAX_BYTES_OF_ALL_PER_TURN // (Connection.reading or 1)))
        if not self._filled:
            data = self._socket.recv(min(share, SMALL_RESPONSE_BYTES))
            if len(data) == _response_size(data):
                return memoryview(data)[_INT32.size :]
            self._buffer, self._filled = bytearray(data), _received(len(data))
        size, began = self._grow(), self._filled
        while self._filled < size:
            if self._filled - began >= share:
                raise BlockingIOError
            rest = memoryview(self._buffer)[self._filled : self._filled + share]
            self._filled += _received(self._socket.recv_into(rest))
            size = self._grow()
        if self._filled > size:
            raise OSError("the broker sent more than one response")
        response = memoryview(self._buffer)[_INT32.size :]
        # The caller keeps the buffer, because a large response is decoded while the next one arrives.
        self._buffer, self._filled = bytearray(), 0
        return response

    def _grow(self) -> int:
        """Make room for the whole response, as far as its size is known. Return the size."""
        size = _response_size(memoryview(self._buffer)[: self._filled])
        if size > len(self._buffer):
            larger = bytearray(size)
            larger[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = larger
        return size

    def _stop_reading(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
            Connection.reading -= 1


def _response_size(start: bytes | memoryview) -> int:
    """Return the size in bytes of the response and its size field, or only of that field while it is incomplete."""
    if len(start) < _INT32.size:
        return _INT32.size
    (size,) = _INT32.unpack_from(start)
    if not _INT32.size <= size <= MAX_RESPONSE_BYTES:
        raise OSError(f"the broker announced a response of {size} bytes")
    return int(_INT32.size + size)


def _received(count: int) -> int:
    if not count:
        raise ConnectionResetError("the broker closed the connection")
    return count
