"""A client that records every byte it receives, can be cut at any byte, and reconnects as a browser does.

It implements HTTP/1.1 itself, so that no library stands between the socket and the recorded bytes. It imports nothing from
kafkasse. Each client runs in its own greenlet; a test can run hundreds of them. JSON lines have no event IDs: a client of
JSON lines makes an ID from the offsets in its lines, as docs/wire.md describes.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from tests.history.checker import Connection
from tests.history.wire import Partition, blocks, last_id, next_offsets

READ_TIMEOUT_S = 120.0  # a silent connection is dead after this time; heartbeats come more often
MAX_READ_BYTES = 65_536
MAX_HEAD_BYTES = 65_536

LEFT = "left"  # the reason of a break that the client itself caused
Address = tuple[str, int]


class Broken(Exception):
    """The connection broke, or the response is not valid HTTP."""


class Response:
    """One request and its response. The body is read only when read() is called.

    Attributes:
        headers: the response headers, with names in lower case.
        arrivals: when `body` had how many bytes.
        ended: whether the server ended the body correctly. A broken connection does not set it.

    Raises:
        Broken: there was no response.
    """

    def __init__(self, address: Address, path: str, headers: dict[str, str], silence_s: float = READ_TIMEOUT_S) -> None:
        self.body = bytearray()
        self.began = time.monotonic()
        self.arrivals: list[tuple[int, float]] = []
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
        if not (match := re.fullmatch(r"HTTP/1\.1 (\d{3})(?: .*)?", head[0])):
            raise Broken(f"not HTTP/1.1: {head[0]!r}")
        self.status = int(match[1])
        self.headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in head[1:])}
        self._chunked = self.headers.get("transfer-encoding") == "chunked"
        self._left = 0 if self._chunked else int(self.headers.get("content-length", 1 << 62))

    def read(self) -> bytes:
        """Return the next part of the body; b"" at its end.

        Raises:
            Broken: the body ended too early or is not valid HTTP.
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
        self.arrivals.append((len(self.body), time.monotonic()))
        if self._left == 0 and self._chunked and self._until(b"\r\n"):
            raise Broken("a chunk is longer than its size")
        return taken

    def close(self, abruptly: bool = False) -> None:
        """Close the connection; if `abruptly`, with an RST."""
        if abruptly:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _next_chunk(self) -> None:
        if not self._chunked:
            self.ended = True
            return
        size = self._until(b"\r\n")
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            raise Broken(f"not a chunk size: {size[:40]!r}")
        self._left = int(size, 16)
        if self._left == 0:
            if self._until(b"\r\n"):
                raise Broken("data follows the last chunk")
            self.ended = True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._raw:
            if len(self._raw) > MAX_HEAD_BYTES or not self._receive():
                raise Broken(f"the connection ended, or {mark!r} did not come: {self._raw[:200]!r}")
        part, self._raw = self._raw.split(mark, 1)
        return part

    def _receive(self) -> bytes:
        try:
            more = self.socket.recv(MAX_READ_BYTES)
        except OSError as error:
            raise Broken(str(error)) from error
        self._raw += more
        return more


@dataclass(eq=False)
class Recorder:
    """One client of one stream.

    Args:
        address: returns the address for each connection: any of several workers, or a proxy.
        max_retry_ms: the longest wait before a reconnect, whatever `retry:` or Retry-After say.
        silence_s: how long a silent connection is kept.
        lines_of: the topics of a stream of JSON lines; None for Server-Sent Events.
        token: returns the token for each connection, and when it expires.

    Attributes:
        last_id: the Last-Event-ID that a browser would send now.
        errors: the reasons for breaks that the test did not cause, for the output of a failed test.
    """

    address: Callable[[], Address]
    path: str
    accept: str = "text/event-stream"
    last_id: str | None = None
    max_retry_ms: int = 20
    silence_s: float = READ_TIMEOUT_S
    lines_of: Sequence[str] | None = None
    token: Callable[[], tuple[str, float]] | None = None

    def __post_init__(self) -> None:
        self.connections: list[Connection] = []
        self.errors: list[str] = []
        self._expires_at = inf
        self._next_offsets: dict[Partition, int] = {}
        self._retry_ms = self.max_retry_ms
        self._response: Response | None = None
        self._sent_id: str | None = None

    @property
    def body(self) -> bytearray:
        return self._response.body if self._response else bytearray()

    def next_offsets(self, tail_bytes: int) -> dict[Partition, int]:
        """Return the offset after the last line of each partition. Only the last bytes of the open connection count."""
        _, _, tail = bytes(self.body[-tail_bytes:]).partition(b"\n")
        return self._next_offsets | next_offsets(tail)

    def follow(self, enough: Callable[[Recorder], bool], cut_after: Callable[[], int | None] = lambda: None) -> None:
        """Read, and reconnect after every break, until `enough` returns True. Then leave.

        Args:
            enough: called after every read and every break.
            cut_after: called for each connection. Returns the number of bytes after which we cut it, or None.
        """
        while not enough(self):
            if self.connect():
                self._read_until(enough, cut_after())
            elif not enough(self):
                self._wait()
        self.leave()

    def connect(self) -> bool:
        """Connect with the last event ID. Return False if the response was no stream; it is recorded too."""
        headers = {"Accept": self.accept}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        if self.token is not None:
            token, self._expires_at = self.token()
            headers["Authorization"] = f"Bearer {token}"
        self._sent_id = self.last_id
        began = time.monotonic()
        try:
            self._response = Response(self.address(), self.path, headers, self.silence_s)
        except Broken as broken:
            self.errors.append(str(broken))
            self.connections.append(Connection(self._sent_id, 0, b"", began=began))
            return False
        if self._response.status == 200:
            return True
        self._read_until(lambda recorder: False, None)
        return False

    def read(self, max_bytes: int | None = None) -> bool:
        """Read once, and cut the connection when its body has `max_bytes` bytes. Return False if the connection is over."""
        response = self._response
        assert response is not None
        try:
            more = response.read()
        except Broken as broken:
            self._over(broken)
            return False
        if max_bytes is not None and len(response.body) >= max_bytes:
            self.leave(max_bytes)
        elif not more:
            self._over(None)
        return self._response is not None

    def leave(self, max_bytes: int | None = None) -> None:
        """Close the connection, as if only the first `max_bytes` bytes of the body had arrived."""
        if (response := self._response) is not None:
            del response.body[len(response.body) if max_bytes is None else max_bytes :]
            self._over(Broken(LEFT))

    def _read_until(self, enough: Callable[[Recorder], bool], max_bytes: int | None) -> None:
        while self.read(max_bytes):
            if enough(self):
                return

    def _over(self, broken: Broken | None) -> None:
        response, self._response = self._response, None
        assert response is not None
        if broken is not None:
            self.errors.append(str(broken))
        response.close(abruptly=broken is not None)
        what = self._sent_id, response.status, bytes(response.body), broken is not None
        self.connections.append(Connection(*what, response.began, tuple(response.arrivals), self._expires_at))
        if response.status == 200:
            self._learn(bytes(response.body))

    def _learn(self, body: bytes) -> None:
        if self.lines_of is not None:
            self._next_offsets |= next_offsets(body)
            self.last_id = _own_id(self.lines_of, self._next_offsets)
            return
        self.last_id = last_id(body, self._sent_id)
        retries = [block.retry_ms for block in blocks(body) if block.retry_ms is not None]
        self._retry_ms = retries[-1] if retries else self._retry_ms

    def _wait(self) -> None:
        time.sleep(min(self._retry_ms, self.max_retry_ms) / 1000)


def _own_id(topics: Sequence[str], offsets: dict[Partition, int]) -> str | None:
    """Return an ID with the next offset of each partition. The names of the topics stand for all other partitions."""
    if not offsets:
        return None
    entries = [{"topic": topic, "partition": at, "offset": offset} for (topic, at), offset in offsets.items()]
    return json.dumps([*topics, *entries])
