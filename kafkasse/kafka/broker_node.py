"""The connection of one cursor to one broker: sends the requests of a FetchSession, and delivers the responses.

fetch ─▶ take a connection ─▶ send ─▶ on_response; the cursor then calls parse()
                 └──────────────┴─▶ timeout, error ─▶ on_error
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from gevent import get_hub

from kafkasse.kafka.connection import Connection
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.cursor_core import CursorCore, CursorOptions
from kafkasse.kafka.fetch_protocol import FetchResponse, encode_request, parse_response, parse_throttle_ms
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.process.event_loop import take_turn


class BrokerNode:
    """Sends Fetch requests to one broker, one at a time.

    Args:
        session: what the requests contain.
        core: returns the requests.
        pool: provides connections to the broker.
        options: how the cursor reads.
        on_response: called with the node and the bytes of each response, which parse() takes. It must not block.
        on_error: called when the connection failed or could not be opened, with the error and with `retry_now`: True if the
            connection was an idle one from the pool. The broker may have closed such a connection long ago, so a new one may
            work at once.
    """

    def __init__(
        self,
        session: FetchSession,
        core: CursorCore,
        pool: ConnectionPool,
        options: CursorOptions,
        on_response: Callable[[BrokerNode, memoryview], None],
        on_error: Callable[[FetchSession, Exception, bool], None],
    ) -> None:
        self.session = session
        self._pool = pool
        self._core = core
        self._on_response = on_response
        self._on_error = on_error
        self._connection: Connection | None = None
        self._closed = False
        self._urgent = options.tail
        self._version = 0  # of the last request
        self._received_bytes = 0  # of the response, when its progress was checked
        response_timeout_s = options.fetch.max_wait_ms / 1000 + options.timeout_s
        self._response_timer = get_hub().loop.timer(response_timeout_s, response_timeout_s)

    def fetch(self) -> None:
        """Send the next request. No request may be in flight. Opening a connection does not block."""
        if self._connection is not None:
            self._send_or_fail(self._connection)
        elif (idle := self._pool.take_idle(self.session.broker)) is not None:
            self._use(idle)
        else:
            gevent.spawn(self._connect)

    def parse(self, data: memoryview) -> FetchResponse | None:
        """Parse the last response. Return None if it is malformed; `on_error` has then been called."""
        try:
            return parse_response(self._version, data)
        except Exception as error:  # noqa: BLE001 - the cursor tries another connection, whatever the error
            self._fail(error)
            return None

    def close(self) -> None:
        """Close the node. If a response is in flight, the connection returns to the pool when the response has arrived."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is None or connection.in_flight is None:
            self._release(connection)
        else:
            self._response_timer.again(self._release, connection)
            connection.start_reading(lambda _: self._release(connection), lambda _: self._release(connection))

    def _release(self, connection: Connection | None) -> None:
        self._response_timer.close()
        if connection is not None:
            self._pool.release(connection)

    def _connect(self) -> None:
        try:
            connection = self._pool.take(self.session.broker)
        except Exception as error:  # noqa: BLE001 - the cursor tries another connection, whatever the error
            self._fail(error)
            return
        take_turn(urgent=self._urgent)  # a hundred cursors may get their connections at the same time
        if self._closed:
            self._pool.release(connection)
        else:
            self._use(connection)

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        connection.start_reading(self._receive, self._fail_later)
        self._send_or_fail(connection)

    def _send_or_fail(self, connection: Connection) -> None:
        try:
            self._send(connection)
        except OSError as error:
            self._fail(error)

    def _send(self, connection: Connection) -> None:
        request = self._core.request(time.monotonic(), self.session, connection.version)
        self._version = request.version
        self._received_bytes = 0
        self._response_timer.again(self._check_progress, connection)
        connection.send(request.version, encode_request(request))

    def _receive(self, data: memoryview) -> None:
        self._response_timer.stop()
        if throttle_ms := parse_throttle_ms(self._version, data):
            gevent.spawn_later(throttle_ms / 1000, self._on_response, self, data)
        else:
            self._on_response(self, data)

    def _check_progress(self, connection: Connection) -> None:
        """Fail unless more bytes of the response have arrived since the last check. A large response takes many turns."""
        received, self._received_bytes = self._received_bytes, connection.received_bytes
        if self._received_bytes == received:
            self._fail_later(TimeoutError("the broker did not respond in time"))

    def _fail_later(self, error: Exception) -> None:
        """Call _fail() in a new greenlet. The callers are callbacks of the event loop, and must not wait."""
        self._response_timer.stop()
        gevent.spawn(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if self._closed:
            return
        connection, self._connection = self._connection, None
        was_reused = connection is not None and connection.reused
        if connection is not None:
            connection.close()
            if was_reused:
                self._pool.close_idle(self.session.broker)
        self._on_error(self.session, error, was_reused)
