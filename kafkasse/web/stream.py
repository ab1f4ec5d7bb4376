"""A stream: the response to one client, with its frames and heartbeats.

A stream ends when its client leaves, when it reaches its maximum age, when the server stops, or when an error makes it
impossible to continue. In all cases, its reader is closed. There are two ways to send a stream:

    the server iterates over it    one greenlet for the whole stream; works under every WSGI server
    serve() takes over the socket  a greenlet only while there is something to send; our worker calls this
"""

from __future__ import annotations

import logging
import math
import random
import socket
import ssl
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Any

import gevent
from gevent import get_hub, spawn

from kafkasse.errors import UNEXPECTED, URN, FilterError, KafkasseError
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.reader import Reader
from kafkasse.log import Offsets
from kafkasse.process.event_loop import take_turn
from kafkasse.process.log_line import Fields
from kafkasse.process.open_streams import EndReason, StreamEnd, StreamInfo, StreamRegistry
from kafkasse.records import frame
from kafkasse.settings import WebSettings
from kafkasse.web.client_socket import LAST_CHUNK, ClientGone, ClientSocket, ClientStalled, SilenceDetector
from kafkasse.web.compression import IDENTITY, Coding

MAX_AGE_JITTER = 0.1
RETRY_JITTER = 0.5
TEST_INTERVAL_S = 0.01  # between checks whether a test has received all records
MAX_INPUT_BYTES = 65_536  # from one client; after that, we notice only by a failed write that the client has left
UNEXPECTED_ERROR = "UnexpectedError"  # in metrics and logs, in place of a class of errors.py
_READABLE = 1  # libev's constant
_NO_INPUT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def _nothing() -> None:
    pass


class _FirstPart(bytes):
    """The first part of a body. Methods of bytes, such as replace(), return another object, even if nothing changes.

    Middleware that replaces text in each part can therefore be recognized by a first part without that text.
    """

    __slots__ = ()


def with_jitter(retry_ms: int) -> int:
    """Return a random time near `retry_ms`, so that clients whose streams ended together do not reconnect together."""
    return int(retry_ms * random.uniform(1 - RETRY_JITTER, 1 + RETRY_JITTER))  # noqa: S311 - no secret


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class StreamBody:
    """The body of a streaming response.

    A WSGI server iterates it once and calls close(). Our worker calls serve() instead.
    """

    reader: Reader
    settings: WebSettings
    registry: StreamRegistry  # contains this stream as long as it is open
    client: socket.socket | None  # if the server exposes it: the stream notices when the client leaves
    on_close: Callable[[StreamBody, StreamEnd], object]  # called once, after the reader was closed
    logger: logging.Logger  # receives unexpected errors
    problem_types: str = URN  # the start of the `type` of an error; see KafkasseError.problem()
    expires_at: InitVar[float] = math.inf  # when the visitor must be identified again, in seconds since the epoch
    info: StreamInfo = field(default_factory=StreamInfo.new)
    on_open: Callable[[], object] = _nothing  # called once: the first bytes were sent, or the stream ends before that
    coding: Coding = IDENTITY
    ends: Offsets | None = None  # the offsets at which the stream ends, in a test; None: it has no end
    _closed: bool = field(init=False, default=False)
    _end_reason: EndReason | None = field(init=False, default=None)
    _error: str = field(init=False, default="")
    _deadline: float = field(init=False)
    _deadline_reason: EndReason = field(init=False, default=EndReason.MAX_AGE)
    _input_left: int = field(init=False, default=MAX_INPUT_BYTES)
    _socket: ClientSocket | None = field(init=False, default=None)  # set by serve()
    _on_end: tuple[Callable[[], object], ...] = field(init=False, default=())
    _opening: bytes = field(init=False, default=b"")  # the first part, until the iterator continues
    _silence: SilenceDetector | None = field(init=False, default=None)  # of a client's socket that the server writes to
    _watcher: Any = field(init=False, default=None)
    _timer: Any = field(init=False, default=None)

    def __post_init__(self, expires_at: float) -> None:
        self._deadline = _deadline(self.settings.max_stream_age_s)
        if (expires := time.monotonic() + expires_at - time.time()) < self._deadline:
            self._deadline, self._deadline_reason = expires, EndReason.ACCESS_EXPIRED
        self.registry.add(self)

    def __del__(self) -> None:
        """Close a response that was discarded before the server received it, because nothing else closes it."""
        if not self._closed:
            with suppress(RuntimeError):  # the process is exiting
                spawn(self.close)  # close() may wait for Kafka, and a finalizer must not wait

    def __iter__(self) -> Iterator[bytes]:
        try:
            self._opening = _FirstPart(next(self._body()) or b"")
            yield self._opening
            if self._closed or self._socket is not None:  # serve() sends the rest
                return
            self.reader.count_bytes(len(self._opening))
            self._opening = b""
            for data in filter(None, self._rest()):
                self.reader.count_bytes(len(data))
                yield data
        finally:
            self.close()

    @property
    def can_serve(self) -> bool:
        """Whether serve() can be called: the stream is open, and there is a client socket that does not use TLS."""
        return self.client is not None and not self._closed and not isinstance(self.client, ssl.SSLSocket)

    def has_returned(self, part: object) -> bool:
        """Return whether `part` is the first part of the body, and the iterator has returned no other part.

        False if the stream has ended, because serve() could not send the rest.
        """
        return bool(part) and part is self._opening and not self._closed

    def call_on_end(self, call: Callable[[], object]) -> None:
        """Call a function once, when the stream has ended."""
        self._on_end += (call,)

    def serve(self, start: Callable[[bytes], bytes]) -> None:
        """Take over the client's socket from the server, and write the response to it.

        Returns as soon as the client has received everything, because then no greenlet is needed. Middleware that wraps
        this object does not see the bytes, except the first part if the iterator has already returned it.

        Args:
            start: prefixes the first bytes of the body with the HTTP header, and encodes them as a chunk.
        """
        assert self.client is not None  # noqa: S101 - see can_serve
        self._socket = ClientSocket(self.client, self.settings.write_timeout_s, self, self.coding)
        self.client = self._silence = None
        if self._deadline != math.inf:
            self._timer = get_hub().loop.timer(max(0.0, self._deadline - time.monotonic()))
            # update: the clock of the event loop may be late, and the timer would fire too early.
            self._timer.start(self.end, self._deadline_reason, update=True)
        opening, self._opening = self._opening, b""
        self._send(self._socket, chain((opening,), self._rest()) if opening else self._body(), start)

    @property
    def topics(self) -> list[str]:
        """The topics of the stream, in alphabetical order."""
        return self.reader.topics

    def end(self, reason: EndReason = EndReason.RECONNECT) -> None:
        """End the stream soon: send the last event ID and a reconnection time. Never waits."""
        self._end_reason = self._end_reason or reason
        self._stop(StopReason.ENDED)

    def status(self) -> dict[str, Any]:
        """Return the current status of the stream for operators."""
        reader = self.reader
        silent_s = int(max(0.0, time.monotonic() - reader.stats.silent_since))
        return self.info.status(reader.state.name.lower(), *reader.totals(), reader.lag(), silent_s)

    def close(self) -> None:
        """Release everything. May be called twice, and before the stream was iterated."""
        if self._closed:
            return
        self._closed = True
        self._report_open()
        self.registry.discard(self)
        for watcher in (self._watcher, self._timer):
            if watcher is not None:
                watcher.close()
        if self._socket is not None:
            self._socket.close()
        elif self.client is not None:
            with suppress(OSError):
                self.client.shutdown(socket.SHUT_RD)  # or gunicorn would wait for the next request on this connection
        try:
            self.reader.close()
        finally:
            self.on_close(self, StreamEnd(self._reason(), self._error, *self.reader.totals()))
            on_end, self._on_end = self._on_end, ()
            for call in on_end:
                try:
                    call()
                except Exception:
                    self.logger.exception("A function that runs at the end of a stream failed.")
            self._socket = None  # break the reference cycle, so that Python frees the memory at once

    def _report_open(self) -> None:
        on_open, self.on_open = self.on_open, _nothing  # a span takes memory
        on_open()

    def _reason(self) -> EndReason:
        if self._error:
            return EndReason.ERROR
        if self.reader.stop_reason is StopReason.ENDED:
            return self._end_reason or EndReason.RECONNECT
        return self._end_reason if self._end_reason is EndReason.WRITE_TIMEOUT else EndReason.CLIENT_LEFT

    # The body.

    def _body(self) -> Iterator[bytes | None]:
        """Return the parts of the body in its content coding; see _generate()."""
        return self._encoded(self._generate(), self.coding.opening())

    def _rest(self) -> Iterator[bytes | None]:
        """Return the rest of the body after the client was parked. A parked client has no generator, which saves memory."""
        return self._encoded(self._after_opening(), b"")

    def _encoded(self, parts: Iterator[bytes | None], opening: bytes) -> Iterator[bytes | None]:
        return parts if self.coding is IDENTITY else self._compressed(parts, opening)

    def _compressed(self, parts: Iterator[bytes | None], opening: bytes) -> Iterator[bytes | None]:
        for data in parts:
            if data:
                self.coding.add(data)
                data, opening = opening + self.coding.segment(data), b""
            yield data
        yield self.coding.ending()

    def _generate(self) -> Iterator[bytes | None]:
        """Yield the parts of the body, which may be b"", and None whenever the client can be parked."""
        wire = self.reader.wire
        opening = wire.opening + wire.retry(self._retry_ms())
        try:
            self._prepare_client()
            opening += self.reader.begin()
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001 - logged
            yield opening + self._error_frame(error)
        else:
            yield opening
            yield from self._after_opening()

    def _after_opening(self) -> Iterator[bytes | None]:
        if self._error:
            return
        try:
            self._report_open()
            yield from self._frames()
            if self.reader.stop_reason is StopReason.ENDED:
                yield self.reader.wire.retry(self._retry_ms()) + self.reader.id_if_moved()
        except (Exception, gevent.Timeout) as error:  # noqa: BLE001 - logged; a hook may let a Timeout escape
            yield self._error_frame(error)

    def _frames(self) -> Iterator[bytes | None]:
        reader, heartbeat_s = self.reader, self.settings.heartbeat_s
        heartbeat_at = time.monotonic() + heartbeat_s
        while not reader.is_stopped:
            if time.monotonic() >= self._deadline:
                self.end(self._deadline_reason)
                continue
            if self.ends is not None and reader.has_passed(self.ends):
                self.end()
                continue
            if self._socket is not None and reader.can_park:
                # If there is an ID to send, check again afterwards: new records may arrive while it is written.
                yield reader.id_if_moved() or None
                heartbeat_at = time.monotonic() + heartbeat_s
                continue
            timeout_s = max(0.0, min(heartbeat_at, self._deadline) - time.monotonic())
            frames = reader.read(timeout_s if self.ends is None else min(timeout_s, TEST_INTERVAL_S))
            now = time.monotonic()
            if not frames and now >= heartbeat_at:
                frames = reader.id_if_moved() or reader.wire.heartbeat
            if self._silence is not None and self._silence.is_silent():
                self._stop(StopReason.CLIENT_LEFT)
            elif frames:
                yield frames
                heartbeat_at = time.monotonic() + heartbeat_s

    def _error_frame(self, error: BaseException) -> bytes:
        """Return the last event of a stream that failed, and log the failure unless it is the client's or Kafka's."""
        self._error = type(error).__name__ if isinstance(error, KafkasseError) else UNEXPECTED_ERROR
        request_id = self.info.request_id
        if isinstance(error, FilterError):
            self._log_filter_error(error)
        elif not isinstance(error, KafkasseError):
            self.logger.error("A stream failed: %s", Fields(request_id=request_id), exc_info=error)
        if isinstance(error, KafkasseError):
            return frame.error(self.reader.wire, error, self.reader.position_id, self.problem_types, request_id)
        # After an unexpected error, the reader's position may be past frames that it has not returned. Without an ID, the
        # client keeps the last ID that it received.
        return frame.error(self.reader.wire, KafkasseError(UNEXPECTED), "", self.problem_types, request_id)

    def _log_filter_error(self, error: FilterError) -> None:
        """Log where the filter failed. The text of its exception may contain the record's data, so it is left out."""
        cause = error.__cause__
        if cause is not None and not error.is_logged:
            error.is_logged = True
            line = traceback.extract_tb(cause.__traceback__)[-1]
            self.logger.error(
                "The filter failed at %s: %s in %s, line %s.",
                error.record,
                type(cause).__name__,
                line.filename,
                line.lineno,
            )

    def _retry_ms(self) -> int:
        return with_jitter(self.settings.retry_ms)

    # Sending, after serve() has taken over the socket.

    def _send(
        self, client: ClientSocket, parts: Iterator[bytes | None], start: Callable[[bytes], bytes] | None = None
    ) -> None:
        """Send parts of the body until the client can be parked, or the stream ends. See serve() for `start`."""
        try:
            client.send_unsent()
            for data in parts:
                if data is None:
                    self.reader.park(client)
                    client.parked = True
                    return
                if data:  # an empty chunk would end the response
                    self.reader.count_bytes(len(data))
                    if start is None:
                        take_turn()  # a client that reads fast must not occupy the event loop
                        client.send_chunk(data)
                    else:
                        client.send_all(start(data))
                        start = None
            client.send_all(LAST_CHUNK)
        except ClientGone as error:
            if isinstance(error, ClientStalled):
                self._end_reason = EndReason.WRITE_TIMEOUT
        except Exception as error:  # noqa: BLE001 - logged; park() failed, because _generate() raises no exception
            to_chunk = client.frame if start is None else start
            last = self._error_frame(error)
            self.coding.add(last)
            with suppress(ClientGone):
                client.send_all(to_chunk(self.coding.segment(last) + self.coding.ending()) + LAST_CHUNK)
        finally:
            if not client.parked:
                self.close()

    def resume(self) -> None:
        """Continue in a new greenlet, because a parked client did not accept all bytes, or because the stream ends."""
        client = self._socket
        if client is not None and not self._closed:  # it may have been closed before this greenlet ran
            self.reader.unpark()
            self._send(client, self._rest())

    # Watching the client.

    def _prepare_client(self) -> None:
        client = self.client
        if self._socket is not None:
            client = self._socket.socket
        elif client is not None:
            client.settimeout(self.settings.write_timeout_s)
            self._silence = SilenceDetector(client, self.settings.write_timeout_s)
        if client is not None:
            # The watcher notices that the client closed its connection, even while the stream is idle. It needs no greenlet.
            self._watcher = get_hub().loop.io(client.fileno(), _READABLE)
            self._watcher.start(self._on_readable)

    def _on_readable(self) -> None:
        """Handle input from the client, or the end of its connection. The event loop calls this."""
        try:
            count = self._discard_input()
        except _NO_INPUT_YET:
            return
        except (OSError, ValueError):
            count = 0
        self._input_left -= count
        if not count:
            self._stop(StopReason.CLIENT_LEFT)
        if not count or self._input_left <= 0:  # cap the input, so that one client cannot keep the worker busy
            self._watcher.stop()

    def _discard_input(self) -> int:
        """Read and discard input, because no request follows on this connection. Return the number of bytes."""
        if self._socket is not None:
            return len(self._socket.socket.recv(MAX_INPUT_BYTES))
        client = self.client
        assert client is not None  # noqa: S101 - it is watched
        timeout_s = client.gettimeout()
        client.settimeout(0.0)
        try:
            return len(client.recv(MAX_INPUT_BYTES))
        finally:
            client.settimeout(timeout_s)

    def _stop(self, reason: StopReason) -> None:
        self.reader.stop(reason)
        if self._socket is not None:
            self._socket.wake()


def _deadline(max_age_s: float) -> float:
    if not max_age_s:
        return math.inf
    return time.monotonic() + max_age_s * random.uniform(1 - MAX_AGE_JITTER, 1)  # noqa: S311 - not for secrets
