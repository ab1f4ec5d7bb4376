"""One client's response: frames, heartbeats, and the ways in which it ends.

A stream ends when its client leaves, when it is as old as streams may get, when the server stops, or when an error
makes going on impossible. However it ends, its reader is closed.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Any, Protocol
from weakref import WeakSet

from gevent import get_hub, spawn, spawn_later

from kafkasse import frame
from kafkasse.config import Config
from kafkasse.errors import KafkasseError
from kafkasse.feed.shared import SharedReader
from kafkasse.frame import Wire
from kafkasse.web.outlet import ClientGone, Outlet

AGE_JITTER = 0.1
RETRY_JITTER = 0.5
DRAIN_S = 1.0  # a server that stops ends its streams within this time, not all at once
_READABLE = 1  # libev's name for it

_open: WeakSet[Stream] = WeakSet()  # the streams of this process, for drain()
_stopping = Event()


class Reader(Protocol):
    """What a feed gives for one client; see feed.own.OwnReader and feed.shared.SharedReader."""

    closed: bool
    ended: bool

    def begin(self) -> bytes: ...
    def read(self, timeout_s: float) -> bytes: ...
    def stop_waiting(self) -> None: ...
    def id_if_moved(self) -> bytes: ...
    @property
    def position_id(self) -> str: ...
    def close(self) -> None: ...


class Stream:
    """The body of a streaming response: iterate it once, then close() it. WSGI servers do both.

    Args:
        reader: what to send.
        wire: how to write what is not a record.
        config: intervals and bounds.
        client: the client's socket, where the server shows it (gunicorn does), to notice at once that it has gone.
        on_end: called once, when the reader has been closed.
    """

    def __init__(
        self,
        reader: Reader,
        wire: Wire,
        config: Config,
        client: socket.socket | None,
        on_end: Callable[[], object],
    ) -> None:
        self._closed = False
        self._reader = reader
        self._wire = wire
        self._config = config
        self._on_end = on_end
        self._ends_at = _age(config.stream_age_max_s)
        self._client = client
        self._outlet: Outlet | None = None
        self._watch: Any = None
        _open.add(self)
        if _stopping.is_set():  # the server was told to stop while this stream was being opened
            reader.ended = True

    def __del__(self) -> None:
        """A response that was thrown away before the server got it was never iterated, and nobody closed it."""
        if not self._closed:
            with suppress(RuntimeError):  # the process is ending, and all greenlets with it
                spawn(self.close)  # it may wait for Kafka, and this may run where nobody may wait

    def __iter__(self) -> Iterator[bytes]:
        return self._generate()

    def write_directly(self) -> None:
        """Write to the client's socket past the server, once the server has sent the header and the first bytes.

        Only for a server that returns this very object to its own loop: whatever wraps it would miss what is written.
        """
        if self._client is not None and not isinstance(self._client, ssl.SSLSocket):
            self._outlet = Outlet(self._client, self._config.write_deadline_s)

    def close(self) -> None:
        """Free everything. May be called twice, and without having been iterated."""
        if not self._closed:
            self._closed = True
            _open.discard(self)
            if self._watch is not None:
                self._watch.close()
            if self._client is not None:
                self._release(self._client)
            try:
                self._reader.close()
            finally:
                self._on_end()

    def end(self) -> None:
        """End politely, soon: with the last id, and a time after which to come back."""
        self._reader.ended = True
        self._wake()

    def _generate(self) -> Iterator[bytes]:
        try:
            self._prepare_client()
            yield self._wire.opening + self._wire.retry(_jittered(self._config.retry_ms)) + self._reader.begin()
            if self._outlet is None:
                yield from self._events()
            else:
                self._serve(self._outlet)
            if self._reader.ended:
                yield self._wire.retry(_jittered(self._config.retry_ms)) + self._reader.id_if_moved()
        except KafkasseError as error:
            yield frame.error(self._wire, error, self._reader.position_id)
        except ClientGone:
            self._hang_up()
        finally:
            self.close()

    def _serve(self, outlet: Outlet) -> None:
        """As _events(), past the server; parked while there is nothing that needs this greenlet."""
        timer = None
        if self._ends_at != float("inf"):
            timer = spawn_later(max(0.0, self._ends_at - time.monotonic()), self.end)
        try:
            while True:
                for frames in self._events(until_it_may_park=True):
                    outlet.write(frames)
                if self._reader.closed or self._reader.ended:
                    return
                self._park(outlet)
        finally:
            if timer is not None:
                timer.kill(block=False)

    def _park(self, outlet: Outlet) -> None:
        reader = self._reader
        assert isinstance(reader, SharedReader)  # noqa: S101 - only those may park
        if moved := reader.id_if_moved():
            outlet.write(moved)
            return  # writing may have taken a while: look again
        reader.feed.park(outlet)
        try:
            outlet.park()
        finally:
            reader.unparked(reader.feed.unpark(outlet))
        outlet.finish()

    def _events(self, until_it_may_park: bool = False) -> Iterator[bytes]:
        reader = self._reader
        beat_due = time.monotonic() + self._config.heartbeat_s
        while not (reader.closed or reader.ended):
            if until_it_may_park and isinstance(reader, SharedReader) and reader.may_park:
                return
            now = time.monotonic()
            frames = reader.read(max(0.0, min(beat_due, self._ends_at) - now))
            now = time.monotonic()
            if not frames and now >= beat_due:
                frames = reader.id_if_moved() or self._wire.heartbeat
            if frames:
                yield frames
                beat_due = time.monotonic() + self._config.heartbeat_s
            if now >= self._ends_at:
                reader.ended = True

    def _hang_up(self) -> None:
        """Let the server write no more either: what it sent now would follow a frame that was cut."""
        self._reader.closed = True
        if self._client is not None:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def _release(self, client: socket.socket) -> None:
        """The server may finish the response, but waits for no further request: a worker that stops would wait with it."""
        with suppress(OSError):
            client.shutdown(socket.SHUT_RD)

    def _wake(self) -> None:
        self._reader.stop_waiting()
        if self._outlet is not None:
            self._outlet.wake()

    def _prepare_client(self) -> None:
        if self._client is not None:
            self._watch = self._watch_client(self._client)
            self._client.settimeout(self._config.write_deadline_s)
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def _watch_client(self, client: socket.socket) -> Any:
        """Notice when the client's end of the socket closes, idle or not. Costs no greenlet."""
        watcher = get_hub().loop.io(client.fileno(), _READABLE)

        def readable() -> None:
            try:
                gone = client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                return
            except (OSError, ValueError):
                gone = True
            watcher.stop()  # a client that sends more than its request is not heard again, or it would keep us busy
            if gone:
                self._reader.closed = True
                self._wake()

        watcher.start(readable)
        return watcher


def drain(within_s: float = DRAIN_S) -> int:
    """The server stops: end every stream of this process politely, spread over `within_s` seconds. Returns how many."""
    _stopping.set()
    streams = list(_open)
    for stream in streams:
        spawn_later(random.uniform(0, within_s), stream.end)  # noqa: S311 - spreading, not secrecy
    return len(streams)


def stopping() -> bool:
    """Whether this process has been told to stop: it opens no more streams."""
    return _stopping.is_set()


def open_streams() -> int:
    """How many streams this process has open."""
    return len(_open)


def _age(age_max_s: float) -> float:
    if not age_max_s:
        return float("inf")
    return time.monotonic() + age_max_s * random.uniform(1 - AGE_JITTER, 1)  # noqa: S311


def _jittered(retry_ms: int) -> int:
    return int(retry_ms * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))  # noqa: S311
