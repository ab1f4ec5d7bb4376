"""A client's socket, written to directly once the response's header has gone out.

Under kafkasse's own worker a stream does not hand its bytes to werkzeug's and gunicorn's iterators. Bytes that a thousand
clients share are then framed once, and sent without a switch to a thousand greenlets. Knows HTTP's chunks, and no Kafka.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

from gevent.event import Event

_INT = struct.Struct("i")


class ClientGone(Exception):
    """The client has closed its connection, or has taken not one byte for the write deadline."""


class Outlet:
    """One client's socket, on which gunicorn has begun a chunked response.

    Args:
        client: connected, and past the response's header.
        write_deadline_s: how long write() waits for a client that takes nothing.
    """

    def __init__(self, client: socket.socket, write_deadline_s: float) -> None:
        self._client = client
        self._rest: bytes | memoryview = b""
        self._woken = Event()
        client.settimeout(write_deadline_s)

    def wrap(self, data: bytes) -> bytes:
        """`data` as a chunk of the body."""
        return b"%x\r\n%b\r\n" % (len(data), data)

    def write(self, data: bytes) -> None:
        """Send all of `data`, however slowly the client takes it, as long as it takes some.

        Raises:
            ClientGone: see there.
        """
        self._send(self.wrap(data))

    def deliver(self, wrapped: bytes) -> bool:
        """Send without waiting; see feed.ring.Parked. What the socket did not take is kept for finish()."""
        try:
            # gevent's third argument: a timeout of 0 raises at once. MSG_DONTWAIT alone would still wait, and all with us.
            sent = self._client.send(wrapped, 0, 0.0)  # type: ignore[call-arg]
        except OSError:
            sent = 0  # full; one that is broken will say so again to finish()
        if sent == len(wrapped):
            return True
        self._rest = memoryview(wrapped)[sent:]  # shared with all who could not take it either
        self.wake()
        return False

    def wake(self) -> None:
        """Let park() return."""
        self._woken.set()

    def park(self) -> None:
        """Wait until somebody wakes this client up."""
        self._woken.wait()

    def finish(self) -> None:
        """Send what deliver() could not.

        Raises:
            ClientGone: see there.
        """
        self._woken.clear()
        rest, self._rest = self._rest, b""
        self._send(rest)

    def _send(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            before = self._untaken()
            try:
                view = view[self._client.send(view) :]
            except TimeoutError as error:
                # The system tells of room only when a third of what it holds is gone, which may be megabytes.
                if self._untaken() >= before:
                    raise ClientGone(str(error)) from None
            except (OSError, ValueError) as error:
                raise ClientGone(str(error)) from None

    def _untaken(self) -> int:
        """Bytes that were sent and that the client's system has not taken yet."""
        try:
            (count,) = _INT.unpack(fcntl.ioctl(self._client.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        except OSError:  # closed
            return 0
        return int(count)
