"""A long poll that waits: its client keeps its connection, but has no greenlet, no Flask context and no request.

When the read has ended, the client gets the whole response, and the server gets the connection back for the next request.
If a hook of the app or middleware needs the response, or under another server, a greenlet waits instead.

This module does not depend on Kafka or Flask, and does not know what the response contains.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, NamedTuple

from gevent import get_hub, spawn

from kafkasse.feed.core.chunk import Chunk
from kafkasse.feed.shared_chunks import SharedRead
from kafkasse.process.open_streams import EndReason, StreamInfo, streams
from kafkasse.web.client_socket import ClientGone, ClientSocket, ClientStalled
from kafkasse.web.open_read import OpenRead

OK = "200 OK"
MAX_COPY_BYTES = 65_536  # a larger response is sent in parts, by a greenlet
_READABLE = 1  # libev's constant
_SENT_LATER = b"date:", b"connection:", b"transfer-encoding:"


class Answer(NamedTuple):
    """What a response to a long poll contains in addition to the headers of the app."""

    status: str  # such as "200 OK"
    headers: Mapping[str, str]  # added to those of the app
    replaced: Set[str]  # the names of headers of the app that the response does not have, in lower case
    body: Sequence[bytes]


@dataclass(slots=True, eq=False, repr=False)
class LongPoll:
    """The response to a long poll whose read waits for records."""

    opened: OpenRead  # counts as a stream until the response was sent
    read: SharedRead
    cursor: str  # that the client has sent
    succeed: Callable[[OpenRead, Chunk, str], Answer]  # returns the answer with a chunk, without waiting
    fail: Callable[[StreamInfo, Exception], Answer]  # logs an error, and returns the answer. It may wait.
    write_timeout_s: float
    headers: list[tuple[str, str]] = field(default_factory=list)  # those of status 200, with those of the app
    start_response: Any = None  # of the WSGI server
    prepare: Callable[[], object] | None = None  # called before the greenlet of the request waits
    _head: bytes = b""  # the header fields of a parked client, until the response is sent
    _sent: tuple[str, int] = OK, 0  # the status, and the size of the body
    _has_failed: bool = False
    _client: ClientSocket | None = None  # until the response was sent
    _watcher: Any = None
    _keep: Callable[[socket.socket], object] | None = None
    _on_end: Callable[[str, int], object] | None = None

    def answer(self) -> Answer:
        """Wait for the answer."""
        try:
            return self.succeed(self.opened, self.opened.wait_for(self.read.get), self.cursor)
        except Exception as error:  # noqa: BLE001 - fail() logs it
            self._has_failed = True
            if self._client is None:
                self.opened.release(EndReason.ERROR)
            return self.fail(self.opened.info, error)

    def __iter__(self) -> Iterator[bytes]:
        """Wait in the greenlet of the request, because middleware has wrapped this body."""
        prepare, self.prepare = self.prepare, None  # it refers to the response, which refers to this poll
        if prepare is not None:
            prepare()
        answer = self.answer()
        headers = [header for header in self.headers if header[0].lower() not in answer.replaced]
        self.start_response(answer.status, [*headers, *answer.headers.items()])
        yield from answer.body

    def close(self) -> None:
        """Release everything. A server that has iterated over this object calls this."""
        self.opened.close()

    # Without a greenlet.

    def park(
        self,
        client: socket.socket,
        head: bytes,
        keep: Callable[[socket.socket], object] | None,
        on_end: Callable[[str, int], object] | None,
    ) -> None:
        """Take over the client's socket from the server. The response is sent later.

        Args:
            head: the head of a response with `headers`.
            keep: gets the socket for the client's next request. None: the connection ends with the response.
            on_end: gets the status and the size of the body when the response was sent.
        """
        fields = head.rstrip().split(b"\r\n")[1:]
        self._head = b"\r\n".join(field for field in fields if not field.lower().startswith(_SENT_LATER))
        self._keep, self._on_end = keep, on_end
        self.headers, self.start_response, self.prepare = [], None, None
        self._client = ClientSocket(client, self.write_timeout_s, self)
        self._client.parked = True
        self._watcher = get_hub().loop.io(self._client.socket.fileno(), _READABLE)
        self._watcher.start(self._on_readable)
        self.opened.call_at_end(self._client.wake)
        self.read.park(self.wake)

    def wake(self) -> None:
        """Send the response, because the read has ended. Never waits."""
        client, chunk = self._client, self.read.chunk
        if client is None or not client.parked:
            return
        self._watcher.stop()
        if chunk is None or chunk.size > MAX_COPY_BYTES or self.opened.has_ended or self.opened.on_close:
            client.wake()
        elif client.try_send(b"".join(self._response(self.succeed(self.opened, chunk, self.cursor)))):
            client.parked = False
            self._end(EndReason.COMPLETE)

    def resume(self) -> None:
        """Send the response, or its rest, in a greenlet."""
        client, reason = self._client, EndReason.ERROR
        if client is None:
            return
        self._watcher.stop()
        try:
            client.send_unsent()
            if self._head:
                self.read.parked.pop(self.wake, None)
                for part in self._response(self.answer()):
                    client.send_all(part)
            reason = EndReason.COMPLETE
        except ClientGone as error:
            reason = EndReason.WRITE_TIMEOUT if isinstance(error, ClientStalled) else EndReason.CLIENT_LEFT
        finally:
            self._end(reason)

    def _response(self, answer: Answer) -> Iterator[bytes]:
        """Yield the parts of the response. It can be sent only once."""
        if streams.stopping or answer.status.startswith("503"):  # see Worker
            self._keep = None
        self._sent = answer.status, sum(map(len, answer.body))
        head, self._head = self._head, b""
        fields = [
            line for line in head.split(b"\r\n") if line[: line.index(b":")].decode().lower() not in answer.replaced
        ]
        added = {
            "Date": formatdate(usegmt=True),
            "Connection": "close" if self._keep is None else "keep-alive",
            **answer.headers,
        }
        lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {text}" for name, text in added.items())]
        yield b"\r\n".join(("\r\n".join(lines).encode("latin-1"), *fields, b"", b""))
        yield from answer.body

    def _on_readable(self) -> None:
        """Handle the end of the connection. A next request stays in the buffer of the kernel."""
        client = self._client
        assert client is not None  # noqa: S101 - it is watched
        try:
            has_left = not client.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            has_left = True
        self._watcher.stop()
        if has_left:
            self.read.parked.pop(self.wake, None)
            client.parked = False
            spawn(self._end, EndReason.CLIENT_LEFT)

    def _end(self, reason: EndReason) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        self._watcher.close()
        on_end, self._on_end = self._on_end, None
        try:
            if on_end is not None:
                on_end(*self._sent)
            self.opened.release(EndReason.ERROR if self._has_failed else reason)
        finally:
            if reason is EndReason.COMPLETE and self._keep is not None:
                self._keep(client.socket)
            else:
                client.close()
