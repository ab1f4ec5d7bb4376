"""One client's response: frames, heartbeats, and the ways in which it ends.

A stream ends when its client leaves, when it is as old as streams may get, when the server stops, or when an error
makes going on impossible. However it ends, its reader is closed.
"""

from __future__ import annotations

import logging
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
from kafkasse.config.settings import WebSettings
from kafkasse.errors import KafkasseError
from kafkasse.feed.reader import Reader as SharedReader
from kafkasse.frame import Wire
from kafkasse.web.client_socket import LAST_CHUNK, ClientGone, ClientSocket

log = logging.getLogger("kafkasse")

AGE_JITTER = 0.1
RETRY_JITTER = 0.5
DRAIN_S = 1.0  # a server that stops ends its streams within this time, not all at once
HEARD_BYTES_MAX = 65_536  # that a client may say besides its request, and still be missed at once when it leaves
_READABLE = 1  # libev's name for it
_NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_open: WeakSet[Stream] = WeakSet()  # the streams of this process, for drain()
_stopping = Event()


class Reader(Protocol):
    """What a feed gives for one client; see feed.own.CatchUp and feed.shared.Reader."""

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
    """The body of a streaming response: iterate it once, then close() it, as WSGI servers do; or let it serve() itself.

    Args:
        reader: what to send.
        wire: how to write what is not a record.
        settings: intervals and bounds.
        client: the client's socket, where the server shows it (gunicorn does), to notice at once that it has gone.
        on_end: called once, when the reader has been closed.
    """

    __slots__ = (
        "__weakref__",
        "_bytes_to_hear",
        "_chunks",
        "_client",
        "_closed",
        "_ends_at",
        "_on_end",
        "_on_served",
        "_outlet",
        "_reader",
        "_settings",
        "_timer",
        "_watch",
        "_wire",
    )

    def __init__(
        self,
        reader: Reader,
        wire: Wire,
        settings: WebSettings,
        client: socket.socket | None,
        on_end: Callable[[], object],
    ) -> None:
        self._closed = False
        self._reader = reader
        self._wire = wire
        self._settings = settings
        self._on_end = on_end
        self._ends_at = _age(settings.max_stream_age_s)
        self._client = client
        self._bytes_to_hear = HEARD_BYTES_MAX
        self._outlet: ClientSocket | None = None
        self._chunks: Iterator[bytes | None] = iter(())  # what is still to be written by serve()
        self._on_served: Callable[[], object] | None = None
        self._watch: Any = None
        self._timer: Any = None
        _open.add(self)
        if _stopping.is_set():  # the server was told to stop while this stream was being opened
            reader.ended = True

    def __del__(self) -> None:
        """A response that was thrown away before the server got it was never iterated, and nobody closed it."""
        if not self._closed:
            with suppress(RuntimeError):  # the process is ending, and all greenlets with it
                spawn(self.close)  # it may wait for Kafka, and this may run where nobody may wait

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from filter(None, self._generate())
        finally:
            self.close()

    @property
    def can_serve(self) -> bool:
        """Whether there is a socket to which plain bytes may be written."""
        return self._client is not None and not isinstance(self._client, ssl.SSLSocket)

    def serve(self, begin: Callable[[bytes], bytes], on_end: Callable[[], object] | None = None) -> None:
        """Write to the client's socket past the server. The socket is the stream's own from now on.

        Returns when the client has all there is: then no greenlet is needed until that changes. Only for a server that was
        given this very object; whatever wraps it would miss what is written.

        Args:
            begin: makes of the body's first bytes the first of the response, with its header, chunked.
            on_end: called once, when all is over.
        """
        assert self._client is not None  # noqa: S101 - see can_serve
        self._outlet = ClientSocket(self._client, self._settings.write_timeout_s, self._go_on)
        self._client = None
        self._chunks = self._generate()
        self._on_served = on_end
        if self._ends_at != float("inf"):
            self._timer = get_hub().loop.timer(max(0.0, self._ends_at - time.monotonic()))
            self._timer.start(self.end)
        self._write(self._outlet, begin)

    def close(self) -> None:
        """Free everything. May be called twice, and without having been iterated."""
        if not self._closed:
            self._closed = True
            _open.discard(self)
            for watcher in (self._watch, self._timer):
                if watcher is not None:
                    watcher.close()
            if self._outlet is not None:
                self._outlet.close()
            elif self._client is not None:
                self._release(self._client)
            try:
                self._reader.close()
            finally:
                self._on_end()
                if self._on_served is not None:
                    self._on_served()
                self._chunks, self._outlet = iter(()), None  # or a circle would wait for the garbage collector

    def end(self) -> None:
        """End politely, soon: with the last id, and a time after which to come back."""
        self._reader.ended = True
        self._wake()

    def _generate(self) -> Iterator[bytes | None]:
        """What is to be written, if only b""; None where the client may be parked."""
        try:
            self._prepare_client()
            yield self._wire.opening + self._wire.retry(_jittered(self._settings.retry_ms)) + self._reader.begin()
            yield from self._events()
            if self._reader.ended:
                yield self._wire.retry(_jittered(self._settings.retry_ms)) + self._reader.id_if_moved()
        except KafkasseError as error:
            yield frame.error(self._wire, error, self._reader.position_id)

    def _events(self) -> Iterator[bytes | None]:
        reader = self._reader
        beat_due = time.monotonic() + self._settings.heartbeat_s
        while not (reader.closed or reader.ended):
            if self._outlet is not None and isinstance(reader, SharedReader) and reader.may_park:
                yield reader.id_if_moved() or None  # writing it may take a while: look again
                beat_due = time.monotonic() + self._settings.heartbeat_s
                continue
            now = time.monotonic()
            frames = reader.read(max(0.0, min(beat_due, self._ends_at) - now))
            now = time.monotonic()
            if not frames and now >= beat_due:
                frames = reader.id_if_moved() or self._wire.heartbeat
            if frames:
                yield frames
                beat_due = time.monotonic() + self._settings.heartbeat_s
            if now >= self._ends_at:
                reader.ended = True

    def _write(self, outlet: ClientSocket, wrap: Callable[[bytes], bytes]) -> None:
        """Write until the client may be parked, or the stream ends."""
        try:
            outlet.finish()
            for chunk in self._chunks:
                if chunk is None:
                    self._park(outlet)
                    return
                if chunk:  # in chunks, nothing means the end
                    outlet.write(wrap(chunk))
                    wrap = outlet.wrap
            outlet.write(LAST_CHUNK)
        except ClientGone:
            pass
        except Exception:
            log.exception("a stream failed")
        finally:
            if not outlet.parked:
                self.close()

    def _park(self, outlet: ClientSocket) -> None:
        assert isinstance(self._reader, SharedReader)  # noqa: S101 - only those may park
        self._reader.feed.park(outlet)
        outlet.park()

    def _go_on(self) -> None:
        """What a parked client needs a greenlet for: it took less than there was, or the stream is to end."""
        reader, outlet = self._reader, self._outlet
        assert isinstance(reader, SharedReader)  # noqa: S101 - only those are parked
        assert outlet is not None  # noqa: S101
        reader.unparked(reader.feed.unpark(outlet))
        self._write(outlet, outlet.wrap)

    def _release(self, client: socket.socket) -> None:
        """The server may finish the response, but waits for no further request: a worker that stops would wait with it."""
        with suppress(OSError):
            client.shutdown(socket.SHUT_RD)

    def _wake(self) -> None:
        self._reader.stop_waiting()
        if self._outlet is not None:
            self._outlet.wake()

    def _prepare_client(self) -> None:
        client = self._client
        if self._outlet is not None:
            client = self._outlet.socket
        elif client is not None:
            client.settimeout(self._settings.write_timeout_s)
        if client is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # Notices when the client's end of the socket closes, idle or not. Costs no greenlet.
            self._watch = get_hub().loop.io(client.fileno(), _READABLE)
            self._watch.start(self._readable)

    def _readable(self) -> None:
        """The client has said something, or has gone. Words without end would keep us busy: then it is heard no more."""
        try:
            heard = self._hear()
        except _NOTHING_YET:
            return
        except (OSError, ValueError):
            heard = 0
        self._bytes_to_hear -= heard
        if not heard:
            self._reader.closed = True
            self._wake()
        if not heard or self._bytes_to_hear <= 0:
            self._watch.stop()

    def _hear(self) -> int:
        """How many bytes have come. They are thrown away, for the stream is the last that is answered here."""
        if self._outlet is not None:
            return len(self._outlet.socket.recv(HEARD_BYTES_MAX))
        client = self._client
        assert client is not None  # noqa: S101 - it is watched
        timeout_s = client.gettimeout()
        client.settimeout(0.0)
        try:
            return len(client.recv(HEARD_BYTES_MAX))
        finally:
            client.settimeout(timeout_s)


def drain(within_s: float = DRAIN_S) -> int:
    """The server stops: end every stream of this process politely, spread over `within_s` seconds. Returns how many."""
    _stopping.set()
    streams = list(_open)
    for stream in streams:
        spawn_later(random.uniform(0, within_s), stream.end)  # noqa: S311 - spreading, not secrecy
    return len(streams)


def cut() -> None:
    """Close what is still open: the process ends."""
    for stream in list(_open):
        stream.close()


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
