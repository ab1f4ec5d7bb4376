"""A client's socket, taken over from the HTTP server. It needs no greenlet while its client has received everything.

Under our worker, the bytes of a stream do not pass through the iterators of werkzeug and gunicorn. The feed can therefore
send the same bytes to a thousand clients without switching to a thousand greenlets, and no idle greenlet holds memory. This
module uses HTTP's chunked encoding. It does not depend on Kafka.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gevent import get_hub, spawn
from gevent.monkey import get_original
from gevent.socket import cancel_wait, wait

LAST_CHUNK = b"0\r\n\r\n"
CHECKS_PER_TIMEOUT = 4  # how often per write timeout we check whether the client has accepted bytes
MAX_UNREAD_BYTES = 65_536
_WRITABLE = 2  # libev's WRITE
_INT = struct.Struct("i")
_PlainSocket = get_original("socket", "socket")  # gevent's socket holds two watchers, which we do not need


def close_if_silent(client: socket.socket, timeout_s: float) -> None:
    """Let the kernel break the connection if the peer's system does not respond for about `timeout_s` seconds.

    Otherwise, a connection whose peer vanished without a FIN or an RST stays open for hours. While the stream is quiet, the
    kernel sends a probe four times per timeout, and checks then, so it may break the connection a quarter of the timeout
    late. These intervals are whole seconds. Systems other than Linux lack some of these options.
    """
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if client.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for name, value in (
        ("TCP_USER_TIMEOUT", int(timeout_s * 1000)),
        ("TCP_KEEPIDLE", max(1, int(timeout_s / 2))),
        ("TCP_KEEPINTVL", max(1, int(timeout_s / CHECKS_PER_TIMEOUT))),
    ):
        if hasattr(socket, name):
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class ClientGone(Exception):
    """The client has closed its connection, or has not accepted a byte within the write timeout."""


class ClientSocket:
    """One client's socket, which receives a chunked response. Implements feed.ParkedClient.

    Args:
        client: a connected socket. It is detached, so the caller can no longer use this object.
        write_timeout_s: how long send_all() waits while the client accepts no byte.
        resume: runs in a new greenlet when a parked client is woken.
    """

    __slots__ = ("_is_closed", "_resume", "_unsent", "_watcher", "_write_timeout_s", "parked", "socket")

    def __init__(self, client: socket.socket, write_timeout_s: float, resume: Callable[[], None]) -> None:
        self.socket: socket.socket = _PlainSocket(client.family, client.type, client.proto, client.detach())
        self.socket.setblocking(False)
        self.parked = False
        self._write_timeout_s = write_timeout_s
        self._resume = resume
        self._unsent: bytes | memoryview = b""
        self._watcher: Any = None  # while a greenlet waits until the socket is writable
        self._is_closed = False

    def to_chunk(self, data: bytes) -> bytes:
        """Return `data` as a chunk of the response body."""
        return b"%x\r\n%b\r\n" % (len(data), data)

    def send_all(self, data: bytes | memoryview) -> None:
        """Send `data`. A slow client has no deadline as long as it accepts some bytes within each write timeout.

        Raises:
            ClientGone: the client has left, or has accepted nothing within the write timeout.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self._wait_until_writable()
            except OSError as error:
                raise ClientGone(str(error)) from None

    def try_send(self, chunk: bytes) -> bool:
        """Send without waiting. If the socket does not accept all bytes, keep the rest, wake the client and return False."""
        try:
            sent = self.socket.send(chunk)
        except OSError:
            sent = 0  # the socket is full, or broken; if it is broken, send_unsent() gets the same error
        if sent == len(chunk):
            return True
        self._unsent = memoryview(chunk)[sent:]  # a view: many clients may keep the rest of the same chunk
        self.wake()
        return False

    def send_unsent(self) -> None:
        """Send the bytes that try_send() kept.

        Raises:
            ClientGone: see send_all().
        """
        unsent, self._unsent = self._unsent, b""
        self.send_all(unsent)

    def wake(self) -> None:
        """If the client is parked, start a greenlet for it."""
        if self.parked:
            self.parked = False
            spawn(self._resume)

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
        queued, accepted_at = self._queued_bytes(), time.monotonic()
        while True:
            try:
                wait(self._watcher, self._write_timeout_s / CHECKS_PER_TIMEOUT)
                return
            except TimeoutError as error:
                # The kernel reports a socket as writable only when a third of its buffer is free, which may be megabytes.
                now, still_queued = time.monotonic(), self._queued_bytes()
                if still_queued < queued:
                    queued, accepted_at = still_queued, now
                elif now - accepted_at >= self._write_timeout_s:
                    raise ClientGone(str(error)) from None

    def _queued_bytes(self) -> int:
        """Return how many of the sent bytes the client's operating system has not acknowledged."""
        try:
            (count,) = _INT.unpack(fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        except OSError:  # the socket is closed
            return 0
        return int(count)
