"""One client's response: frames, heartbeats, and the ways in which it ends.

A stream ends when its client leaves, when it is as old as streams may get, when the server stops, or when an error
makes going on impossible. However it ends, its reader is closed.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any
from weakref import WeakSet

from gevent import get_hub, spawn_later

from kafkasse import frame
from kafkasse.config import Config
from kafkasse.errors import KafkasseError
from kafkasse.feed.own import OwnReader
from kafkasse.frame import Wire

AGE_JITTER = 0.1
RETRY_JITTER = 0.5
DRAIN_S = 1.0  # a server that stops ends its streams within this time, not all at once

_open: WeakSet[Stream] = WeakSet()  # the streams of this process, for drain()
_stopping = Event()


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
        reader: OwnReader,
        wire: Wire,
        config: Config,
        client: socket.socket | None,
        on_end: Callable[[], object],
    ) -> None:
        self._reader = reader
        self._wire = wire
        self._config = config
        self._on_end = on_end
        self._ends_at = _age(config.stream_age_max_s)
        self._chunks = self._generate()
        self._watch = _watch(client, reader) if client is not None else None
        _open.add(self)

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        """Free everything. May be called twice, and without having been iterated."""
        if self in _open:
            _open.discard(self)
            if self._watch is not None:
                self._watch.close()
            self._reader.close()
            self._on_end()

    def end(self) -> None:
        """End politely, soon: with the last id, and a time after which to come back."""
        self._reader.ended = True

    def _generate(self) -> Iterator[bytes]:
        try:
            yield self._wire.opening + self._wire.retry(_jittered(self._config.retry_ms)) + self._reader.begin()
            yield from self._events()
        except KafkasseError as error:
            yield frame.error(self._wire, error, self._reader.position_id)
        finally:
            self.close()

    def _events(self) -> Iterator[bytes]:
        beat_due = time.monotonic() + self._config.heartbeat_s
        while not (self._reader.closed or self._reader.ended):
            now = time.monotonic()
            frames = self._reader.read(max(0.0, min(beat_due, self._ends_at) - now))
            now = time.monotonic()
            if not frames and now >= beat_due:
                frames = self._reader.id_if_moved() or self._wire.heartbeat
            if frames:
                yield frames
                beat_due = time.monotonic() + self._config.heartbeat_s
            if now >= self._ends_at:
                self._reader.ended = True
        if self._reader.ended:
            yield self._wire.retry(_jittered(self._config.retry_ms)) + self._reader.id_if_moved()


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


def _watch(client: socket.socket, reader: OwnReader) -> Any:
    """Tell `reader` when the client's end of the socket closes, idle or not. Costs no greenlet."""
    watcher = get_hub().loop.io(client.fileno(), 1)

    def readable() -> None:
        try:
            gone = client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return
        except (OSError, ValueError):
            gone = True
        watcher.stop()  # a client that sends more than its request is not heard again, or it would keep us busy
        reader.closed = reader.closed or gone

    watcher.start(readable)
    return watcher


def _age(age_max_s: float) -> float:
    if not age_max_s:
        return float("inf")
    return time.monotonic() + age_max_s * random.uniform(1 - AGE_JITTER, 1)  # noqa: S311


def _jittered(retry_ms: int) -> int:
    return int(retry_ms * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))  # noqa: S311
