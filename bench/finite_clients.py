"""Many clients of finite reads in one process: they read chunk after chunk, and follow with long polls.

They are as simple as those of clients.py: a client counts the marks of its records, and parses only the head of a response.
"""

from __future__ import annotations

import random
import re
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from bench.clients import MAX_READ_BYTES, OPEN_TIMEOUT_S, latencies_of
from bench.records import MARK

MAX_READ_S = 170.0  # shorter than RESULT_TIMEOUT_S of bench/remote.py

_STATUS = re.compile(rb"HTTP/1\.1 (20[04]) ")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)")
_NEXT = re.compile(rb"(?i)\r\nstream-next-offset: (\S+)")
_UP_TO_DATE = re.compile(rb"(?i)\r\nstream-up-to-date: true")
_CURSOR = re.compile(rb"(?i)\r\nstream-cursor: (\S+)")
_END = b"\r\n\r\n"


@dataclass(slots=True)
class Finished:
    """What all clients have received.

    Attributes:
        records, bytes, requests: their numbers.
        complete: the number of clients that have reached the end of the log.
        seconds, cpu_s: the time from the first request to the last response, and the CPU time of this process.
        offset: the offset of a client at the end.
        latencies: the latencies of a sample of the records, in nanoseconds.
    """

    records: int = 0
    bytes: int = 0
    requests: int = 0
    complete: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    offset: str = ""
    latencies: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Client:
    offset: bytes
    socket: socket.socket = field(init=False)
    cursor: bytes = b""
    head: bytes = b""
    left: int = 0  # of the body
    is_up_to_date: bool = False

    def receive_into(self, buffer: bytearray) -> int:
        """Return how many bytes arrived; 0 if the connection was closed."""
        try:
            return self.socket.recv_into(buffer)
        except ConnectionError:
            return 0


class FiniteClients:
    """The clients of one process."""

    def read(self, port: int, path: str, offset: str, clients: int) -> Finished:
        """Let all clients read to the end of the log, at the same time."""
        return self._run(port, path, offset, clients, None, 0.0)

    def follow(self, port: int, path: str, offset: str, clients: int, seconds: float, sampled_share: float) -> Finished:
        """Let all clients follow the log with long polls. Latencies are those of a share of the responses."""
        return self._run(port, path, offset, clients, seconds, sampled_share)

    def _run(
        self, port: int, path: str, offset: str, clients: int, seconds: float | None, sampled_share: float
    ) -> Finished:
        poll, done, buffer = select.epoll(), Finished(offset=offset), bytearray(MAX_READ_BYTES)
        opened: dict[int, _Client] = {}
        began, began_cpu_s = time.monotonic(), time.process_time()
        suffix = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        prefix = b"GET %b?%boffset=" % (path.encode(), b"live=long-poll&" if seconds else b"")

        def connect(client: _Client) -> None:
            client.socket = socket.create_connection(("127.0.0.1", port), OPEN_TIMEOUT_S)
            opened[client.socket.fileno()] = client
            poll.register(client.socket, select.EPOLLIN)

        def request(client: _Client) -> None:
            cursor = b"&cursor=" + client.cursor if client.cursor else b""
            with suppress(ConnectionError):  # the connection was closed, so poll() returns it
                client.socket.sendall(prefix + client.offset + cursor + suffix)
            done.requests += 1

        for _ in range(clients):
            connect(client := _Client(offset.encode()))
            request(client)
        waiting, deadline = len(opened), began + (seconds or MAX_READ_S)
        while waiting and time.monotonic() < deadline:
            for fd, _ in poll.poll(0.1):
                client = opened[fd]
                if not (size := client.receive_into(buffer)):
                    if client.head or client.left:
                        raise ConnectionError("a response was cut off")
                    opened.pop(fd).socket.close()
                    connect(client)  # Varnish closes a connection that is idle for 5 s
                    request(client)
                    continue
                is_sampled = sampled_share and random.random() < sampled_share
                if self._receive(client, memoryview(buffer)[:size], done, bool(is_sampled)):
                    if client.is_up_to_date and seconds is None:
                        poll.unregister(client.socket)
                        waiting -= 1
                    else:
                        request(client)
        done.seconds, done.cpu_s = time.monotonic() - began, time.process_time() - began_cpu_s
        done.complete = sum(client.is_up_to_date for client in opened.values())
        done.offset = client.offset.decode()
        for client in opened.values():
            client.socket.close()
        return done

    @staticmethod
    def _receive(client: _Client, data: memoryview, done: Finished, is_sampled: bool) -> bool:
        """Process data of a client. Returns whether its response is complete."""
        if not client.left:
            client.head += data
            if _END not in client.head:
                return False
            head, _, body = client.head.partition(_END)
            client.head = b""
            if (status := _STATUS.match(head)) is None:
                raise ConnectionError(f"a response has an unexpected head: {head[:300]!r}")
            length = _LENGTH.search(head)
            client.left = int(length[1]) if length and status[1] == b"200" else 0
            client.is_up_to_date = _UP_TO_DATE.search(head) is not None
            (client.offset,) = _NEXT.search(head).groups()  # type: ignore[union-attr]
            client.cursor = cursor[1] if (cursor := _CURSOR.search(head)) else b""
            data = memoryview(body)
        text = data.tobytes()
        client.left -= len(text)
        done.bytes += len(text)
        done.records += text.count(MARK)
        if is_sampled:
            done.latencies += latencies_of(text)
        return client.left == 0
