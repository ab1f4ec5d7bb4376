"""A client's socket, taken over from the HTTP server. It needs no greenlet while its client has received everything.

Under our worker, the bytes of a stream do not pass through the iterators of werkzeug and gunicorn. The feed can therefore
send the same bytes to a thousand clients without switching to a thousand greenlets, and no idle greenlet holds memory. This
module uses HTTP's chunked encoding. It does not depend on Kafka.
"""

from __future__ import annotations

import fcntl
import math
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import Any, Protocol

from gevent import get_hub, spawn
from gevent.monkey import get_original
from gevent.socket import cancel_wait, wait

from kafkasse.web.compression import IDENTITY, Coding

LAST_CHUNK = b"0\r\n\r\n"
CHECKS_PER_TIMEOUT = 4  # how often per write timeout we check whether the client has accepted bytes
MAX_UNREAD_BYTES = 65_536
_WRITABLE = 2  # libev's WRITE
_INT = struct.Struct("i")
_LAST_ACK_RECEIVED_MS = struct.Struct("=56xI")  # the member tcpi_last_ack_recv of struct tcp_info
_TCP_INFO = socket.TCP_INFO if sys.platform == "linux" else 0
_PlainSocket = get_original("socket", "socket")  # gevent's socket holds two watchers, which we do not need


class SilenceDetector:
    """Detects that the client's system has vanished without closing the connection, as after a power failure.

    On an idle connection, the kernel sends keepalive probes, and breaks the connection after `timeout_s`, rounded to whole
    seconds. Some systems lack the options for this. While sent bytes are unacknowledged, the kernel sends no probes and
    retransmits for 15 minutes, so is_silent() checks how long ago the last acknowledgment arrived. TCP_USER_TIMEOUT would
    do the same, but it also closes clients that read slowly.
    """

    __slots__ = ("_check_at", "_client", "_timeout_s", "_unacknowledged_since")

    def __init__(self, client: socket.socket, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._check_at = time.monotonic() + timeout_s / CHECKS_PER_TIMEOUT
        self._unacknowledged_since = math.inf
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if client.family in (socket.AF_INET, socket.AF_INET6):
            interval_s = max(1, int(timeout_s / CHECKS_PER_TIMEOUT))
            options = {"TCP_KEEPIDLE": 2 * interval_s, "TCP_KEEPINTVL": interval_s, "TCP_KEEPCNT": 2}
            for name, value in options.items():
                if hasattr(socket, name):
                    client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def is_silent(self) -> bool:
        """Return whether sent bytes have waited for `timeout_s` without any acknowledgment. Call this before each write."""
        now = time.monotonic()
        if now < self._check_at:
            return False
        self._check_at = now + self._timeout_s / CHECKS_PER_TIMEOUT
        if not queued_bytes(self._client):
            self._unacknowledged_since = math.inf
            return False
        self._unacknowledged_since = min(self._unacknowledged_since, now)
        return min(now - self._unacknowledged_since, self._silence_s()) >= self._timeout_s

    def _silence_s(self) -> float:
        """Return the seconds since the last acknowledgment, or 0 if the system does not report them."""
        try:
            info = self._client.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_ACK_RECEIVED_MS.size)
        except OSError:
            return 0.0
        (milliseconds,) = _LAST_ACK_RECEIVED_MS.unpack(info)
        return float(milliseconds / 1000)


def queued_bytes(client: socket.socket) -> int:
    """Return how many of the sent bytes the client's system has not acknowledged."""
    try:
        (count,) = _INT.unpack(fcntl.ioctl(client.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
    except (OSError, ValueError):  # the socket is closed
        return 0
    return int(count)


class ClientGone(Exception):
    """The client has closed its connection, has accepted no byte within the write timeout, or has vanished."""


class ClientStalled(ClientGone):
    """The client has accepted no byte within the write timeout."""


class Resumable(Protocol):
    """A stream whose client may be parked."""

    def resume(self) -> None:
        """Unpark the client and send the rest of the stream."""


class ClientSocket:
    """One client's socket, which receives a chunked response. Implements feed.ParkedClient.

    Args:
        client: a connected socket. It is detached, so the caller can no longer use this object.
        write_timeout_s: how long send_all() waits while the client accepts no byte.
        stream: its method resume() runs in a new greenlet when a parked client is woken.
        coding: compresses what a feed sends to the client while it is parked.
    """

    __slots__ = (
        "_coding",
        "_is_closed",
        "_is_gone",
        "_silence",
        "_stream",
        "_unsent",
        "_watcher",
        "_write_timeout_s",
        "parked",
        "socket",
    )

    def __init__(
        self, client: socket.socket, write_timeout_s: float, stream: Resumable, coding: Coding = IDENTITY
    ) -> None:
        self.socket: socket.socket = _PlainSocket(client.family, client.type, client.proto, client.detach())
        self.socket.setblocking(False)
        self.parked = False
        self._write_timeout_s = write_timeout_s
        self._stream = stream
        self._coding = coding
        self._unsent: bytes | memoryview = b""
        self._watcher: Any = None  # while a greenlet waits until the socket is writable
        self._is_closed = False
        self._silence = SilenceDetector(self.socket, write_timeout_s)
        self._is_gone = False  # the client has vanished

    @property
    def coding(self) -> str:
        """The content coding. Clients with the same coding receive the same chunks."""
        return self._coding.name

    def to_chunk(self, data: bytes) -> bytes:
        """Return `data`, in the content coding of the response, as a chunk of the body."""
        return self.frame(self._coding.segment(data))

    @staticmethod
    def frame(data: bytes) -> bytes:
        """Return `data` as a chunk of the body."""
        return b"%x\r\n%b\r\n" % (len(data), data)

    def send_chunk(self, data: bytes) -> None:
        """Send `data` as a chunk, without a copy: a slow client may take long to accept it. Raises as send_all()."""
        head = b"%x\r\n" % len(data)
        try:
            sent = 0 if self._has_vanished() else self.socket.sendmsg((head, data, b"\r\n"))
        except OSError:
            sent = 0  # the socket is full, or broken; if it is broken, send_all() gets the same error
        for part in (head, data, b"\r\n"):
            if sent < len(part):
                self.send_all(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def send_all(self, data: bytes | memoryview) -> None:
        """Send `data`. A slow client has no deadline as long as it accepts some bytes within each write timeout.

        Raises:
            ClientGone: the client has left, or has accepted nothing within the write timeout.
        """
        if self._has_vanished():
            raise ClientGone("the client has vanished")
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self._wait_until_writable()
            except OSError as error:
                raise ClientGone(str(error)) from None

    def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
        """Send a chunk of `data` without waiting.

        If the socket does not accept all bytes, keep the rest, wake the client and return False.
        """
        self._coding.add(data)
        try:
            sent = 0 if self._has_vanished() else self.socket.send(chunk)
        except OSError:
            sent = 0  # the socket is full, or broken; if it is broken, send_unsent() gets the same error
        if sent == len(chunk):
            return True
        self._unsent = memoryview(chunk)[sent:]  # a view: many clients may keep the rest of the same chunk
        self.wake()
        return False

    def _has_vanished(self) -> bool:
        self._is_gone = self._is_gone or self._silence.is_silent()
        return self._is_gone

    def send_unsent(self) -> None:
        """Send the bytes that try_send() kept. Raises as send_all()."""
        unsent, self._unsent = self._unsent, b""
        self.send_all(unsent)

    def wake(self) -> None:
        """If the client is parked, start a greenlet for it."""
        if self.parked:
            self.parked = False
            spawn(self._stream.resume)

    def close(self) -> None:
        """Half-close, then drain the input, so that the client does not receive an RST; then close."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.recv(MAX_UNREAD_BYTES)
        self._is_closed = True
        if self._watcher is None:
            self.socket.close()
        else:  # libev aborts the process if a descriptor is closed while it is watched, so the greenlet that waits closes it
            cancel_wait(self._watcher, ClientGone("the stream was closed"))

    def _wait_until_writable(self) -> None:
        self._watcher = get_hub().loop.io(self.socket.fileno(), _WRITABLE)
        try:
            self._wait_while_accepting()
        finally:
            self._watcher.close()
            self._watcher = None
            if self._is_closed:
                self.socket.close()

    def _wait_while_accepting(self) -> None:
        queued, accepted_at = queued_bytes(self.socket), time.monotonic()
        while True:
            try:
                wait(self._watcher, self._write_timeout_s / CHECKS_PER_TIMEOUT)
                return
            except TimeoutError as error:
                # The kernel reports a socket as writable only when a third of its buffer is free, which may be megabytes.
                now, still_queued = time.monotonic(), queued_bytes(self.socket)
                if still_queued < queued:
                    queued, accepted_at = still_queued, now
                elif now - accepted_at >= self._write_timeout_s:
                    raise ClientStalled(str(error)) from None
