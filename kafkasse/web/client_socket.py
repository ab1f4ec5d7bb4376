"""A client's socket that was taken over from the server: no greenlet waits at it while its client has all there is.

A stream does not hand its bytes to werkzeug's and gunicorn's iterators. Bytes that a thousand clients share are framed
once, and sent without a switch to a thousand greenlets; and none of these is there to hold memory. Knows HTTP's chunks,
and no Kafka.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress

from gevent import spawn
from gevent.monkey import get_original
from gevent.socket import wait_write

LAST_CHUNK = b"0\r\n\r\n"
LOOKS = 4  # in the time of a write deadline, at whether the client takes anything
_UNREAD_BYTES_MAX = 65_536
_INT = struct.Struct("i")
_PlainSocket = get_original("socket", "socket")  # gevent's own has two watchers each, for those who wait in a call


class ClientGone(Exception):
    """The client has closed its connection, or has taken not one byte for the write deadline."""


class ClientSocket:
    """One client's socket, to which a chunked response goes.

    Args:
        client: connected. It is taken away from the caller, whose object is a closed one from now on.
        write_timeout_s: how long write() waits for a client that takes nothing.
        go_on: what a greenlet is made for when a parked client is woken up.
    """

    __slots__ = ("_go_on", "_rest", "_write_timeout_s", "parked", "socket")

    def __init__(self, client: socket.socket, write_timeout_s: float, go_on: Callable[[], None]) -> None:
        self.socket: socket.socket = _PlainSocket(client.family, client.type, client.proto, client.detach())
        self.socket.setblocking(False)
        self._write_timeout_s = write_timeout_s
        self._go_on = go_on
        self._rest: bytes | memoryview = b""
        self.parked = False

    def wrap(self, data: bytes) -> bytes:
        """`data` as a chunk of the body."""
        return b"%x\r\n%b\r\n" % (len(data), data)

    def write(self, wrapped: bytes | memoryview) -> None:
        """Send all of it, however slowly the client takes it, as long as it takes some.

        Raises:
            ClientGone: see there.
        """
        view = memoryview(wrapped)
        while view:
            try:
                view = view[self.socket.send(view) :]
            except BlockingIOError:
                self._wait_for_room()
            except OSError as error:
                raise ClientGone(str(error)) from None

    def deliver(self, wrapped: bytes) -> bool:
        """Send without waiting; see feed.ring.Parked. What the socket did not take is kept for finish()."""
        try:
            sent = self.socket.send(wrapped)
        except OSError:
            sent = 0  # full; one that is broken will say so again to finish()
        if sent == len(wrapped):
            return True
        self._rest = memoryview(wrapped)[sent:]  # shared with all who could not take it either
        self.wake()
        return False

    def park(self) -> None:
        """Nothing is left to do until wake() makes a greenlet that goes on."""
        self.parked = True

    def wake(self) -> None:
        """Go on, if the client is parked."""
        if self.parked:
            self.parked = False
            spawn(self._go_on)

    def finish(self) -> None:
        """Send what deliver() could not.

        Raises:
            ClientGone: see there.
        """
        rest, self._rest = self._rest, b""
        self.write(rest)

    def close(self) -> None:
        """Say no more; the system delivers what was sent. What the client said is read, or it would get a reset instead."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.recv(_UNREAD_BYTES_MAX)
        self.socket.close()

    def _wait_for_room(self) -> None:
        untaken, taken_at = self._untaken(), time.monotonic()
        while True:
            try:
                wait_write(self.socket.fileno(), self._write_timeout_s / LOOKS)
                return
            except TimeoutError as error:
                # The system tells of room only when a third of what it holds is gone, which may be megabytes.
                now, left = time.monotonic(), self._untaken()
                if left < untaken:
                    untaken, taken_at = left, now
                elif now - taken_at >= self._write_timeout_s:
                    raise ClientGone(str(error)) from None

    def _untaken(self) -> int:
        """Bytes that were sent and that the client's system has not taken yet."""
        try:
            (count,) = _INT.unpack(fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        except OSError:  # closed
            return 0
        return int(count)
