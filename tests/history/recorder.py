"""A client that keeps every byte, can be cut at any of them, and comes back as a browser would.

It speaks HTTP/1.1 by itself, so that nothing stands between the socket and what is kept. Knows no code of kafkasse and no
topic. Made for greenlets: one client each, hundreds at once.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Callable

from tests.history.checker import Attempt, last_id
from tests.history.wire import blocks

SILENCE_S_MAX = 30.0  # a connection that says nothing for so long is dead: heartbeats come more often
READ_BYTES_MAX = 65_536
HEAD_BYTES_MAX = 65_536
AWAY_PAUSE_S = 0.05  # after a connection that could not be made, where nobody said how long to wait

Address = tuple[str, int]


class Broken(Exception):
    """The connection broke, or what came over it is not HTTP."""


class Response:
    """One request and its response, read as far as somebody asked.

    Attributes:
        status: of the response.
        headers: with names in lower case.
        body: the bytes of the body so far.
        ended: whether the server has ended it by HTTP's rules; what breaks before has not ended.

    Raises:
        Broken: there was no response.
    """

    def __init__(self, address: Address, path: str, headers: dict[str, str], silence_s: float = SILENCE_S_MAX) -> None:
        self.body = bytearray()
        self.ended = False
        self._raw = b""
        try:
            self.socket = socket.create_connection(address, timeout=silence_s)
            fields = {"Host": f"{address[0]}:{address[1]}", **headers}
            lines = [f"GET {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items()), "", ""]
            self.socket.sendall("\r\n".join(lines).encode("latin-1"))
        except OSError as error:
            raise Broken(str(error)) from error
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        if not (found := re.fullmatch(r"HTTP/1\.1 (\d{3})(?: .*)?", head[0])):
            raise Broken(f"not HTTP/1.1: {head[0]!r}")
        self.status = int(found[1])
        self.headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head[1:])}
        self._chunked = self.headers.get("transfer-encoding") == "chunked"
        self._left = 0 if self._chunked else int(self.headers.get("content-length", 1 << 62))

    def read(self) -> bytes:
        """What comes next of the body; b"" once it has ended.

        Raises:
            Broken: it ended where HTTP does not allow it.
        """
        if self._left == 0 and not self.ended:
            self._next_chunk()
        if self.ended:
            return b""
        if not self._raw and not self._receive():
            if not self._chunked and "content-length" not in self.headers:
                self.ended = True
                return b""
            raise Broken("the connection ended within the body")
        taken, self._raw = self._raw[: self._left], self._raw[self._left :]
        self._left -= len(taken)
        self.body += taken
        if self._left == 0 and self._chunked and self._until(b"\r\n"):
            raise Broken("a chunk is longer than it said")
        return taken

    def close(self, abruptly: bool = False) -> None:
        """Leave; `abruptly` by a reset, as a machine that is switched off."""
        if abruptly:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _next_chunk(self) -> None:
        if not self._chunked:
            self.ended = True
            return
        size = self._until(b"\r\n")
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            raise Broken(f"not the size of a chunk: {size[:40]!r}")
        self._left = int(size, 16)
        if self._left == 0:
            if self._until(b"\r\n"):
                raise Broken("something follows the last chunk")
            self.ended = True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._raw:
            if len(self._raw) > HEAD_BYTES_MAX or not self._receive():
                raise Broken(f"the connection ended, or {mark!r} did not come: {self._raw[:200]!r}")
        found, self._raw = self._raw.split(mark, 1)
        return found

    def _receive(self) -> bytes:
        try:
            more = self.socket.recv(READ_BYTES_MAX)
        except OSError as error:
            raise Broken(str(error)) from error
        self._raw += more
        return more


class Recorder:
    """One client of one stream.

    Args:
        address: where to connect, asked anew each time: any of some workers, or a proxy.
        path: of the stream.
        accept: what it asks for.
        last_id: what it comes with at first.
        retry_ms_max: how long it waits at most, whatever `retry:` or Retry-After ask for.
        silence_s: after how long a silence it takes the connection for dead.

    Attributes:
        attempts: its connections so far that are over.
        last_id: what a browser would come back with now.
        errors: why connections broke that nobody had cut, for whoever reads of a failure.
    """

    def __init__(
        self,
        address: Callable[[], Address],
        path: str,
        accept: str = "text/event-stream",
        last_id: str | None = None,
        retry_ms_max: int = 20,
        silence_s: float = SILENCE_S_MAX,
    ) -> None:
        self.attempts: list[Attempt] = []
        self.errors: list[str] = []
        self.last_id = last_id
        self._address = address
        self._path = path
        self._accept = accept
        self._retry_ms_max = retry_ms_max
        self._silence_s = silence_s
        self._retry_ms = retry_ms_max
        self._response: Response | None = None
        self._sent_id: str | None = None

    @property
    def body(self) -> bytearray:
        """What has come over the connection that is open."""
        return self._response.body if self._response else bytearray()

    def follow(self, enough: Callable[[Recorder], bool], cut_after: Callable[[], int | None] = lambda: None) -> None:
        """Read, and come back after every break, until it is enough. Then leave.

        Args:
            enough: asked after whatever was read, and after each break.
            cut_after: asked at each connection, after how many bytes of its body it is cut; None: not by us.
        """
        while not enough(self):
            if self.connect():
                self._read_until(enough, cut_after())
            elif not enough(self):
                self._wait()
        self.leave()

    def connect(self) -> bool:
        """Connect with the last id. False: there was no stream; what was answered instead is kept."""
        headers = {"Accept": self._accept}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        self._sent_id = self.last_id
        try:
            self._response = Response(self._address(), self._path, headers, self._silence_s)
        except Broken as broken:
            self._over(broken)
            return False
        if self._response.status == 200:
            return True
        self._read_until(lambda recorder: False, None)
        return False

    def read(self, bytes_max: int | None = None) -> bool:
        """Read once. False: this connection is over; it was cut by us where its body has `bytes_max` bytes."""
        response = self._response
        assert response is not None
        try:
            more = response.read()
        except Broken as broken:
            self._over(broken)
            return False
        if bytes_max is not None and len(response.body) >= bytes_max:
            self.leave(bytes_max)
        elif not more:
            self._over(None)
        return self._response is not None

    def leave(self, bytes_max: int | None = None) -> None:
        """Break off, as if nothing after the first `bytes_max` bytes of the body had come."""
        if (response := self._response) is not None:
            del response.body[len(response.body) if bytes_max is None else bytes_max :]
            self._over(Broken("left"))

    def _read_until(self, enough: Callable[[Recorder], bool], bytes_max: int | None) -> None:
        while self.read(bytes_max):
            if enough(self):
                return

    def _over(self, broken: Broken | None) -> None:
        response, self._response = self._response, None
        if broken is not None:
            self.errors.append(str(broken))
        if response is None:
            self.attempts.append(Attempt(self._sent_id, 0, b""))
            return
        response.close(abruptly=broken is not None)
        self.attempts.append(Attempt(self._sent_id, response.status, bytes(response.body), cut=broken is not None))
        if response.status == 200:
            self._learn(bytes(response.body))

    def _learn(self, body: bytes) -> None:
        self.last_id = last_id(body, self._sent_id)
        told = [each.retry_ms for each in blocks(body) if each.retry_ms is not None]
        self._retry_ms = told[-1] if told else self._retry_ms

    def _wait(self) -> None:
        time.sleep(min(self._retry_ms, self._retry_ms_max) / 1000)
