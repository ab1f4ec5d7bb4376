"""One broker, as one cursor uses it: the partitions that the broker leads, a connection and a fetch session.

    fetch ─▶ take a connection ─▶ send ─▶ response ─▶ on_response ─▶ finish_fetch, match
                     └──────────────┴─▶ timeout, error ─▶ on_error

A node changes only its own fields. It reads the partitions' offsets, and reports to the cursor through two callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import gevent
from gevent import get_hub

from kafkasse.kafka.client import Broker
from kafkasse.kafka.connection import Connection
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.fetch_protocol import (
    BY_NAME,
    NEW_SESSION,
    NO_SESSION,
    FetchOptions,
    FetchPartition,
    FetchResponse,
    PartitionData,
    encode_request,
    parse_response,
)
from kafkasse.kafka.partition_state import PartitionState
from kafkasse.log import Partition

MAX_SESSION_EPOCH = 2**31 - 1

OnResponse = Callable[["BrokerNode", FetchResponse], None]
OnError = Callable[["BrokerNode", Exception, bool], None]


class BrokerNode:
    """Sends Fetch requests to one broker, one at a time.

    Args:
        broker: the broker.
        pool: provides connections to it.
        options: the fields of all requests; fetch() sets `max_bytes` for each.
        use_session: keep a fetch session, so that requests name only partitions that have changed.
        timeout_s: how long to wait for a response, in addition to `options.max_wait_ms`.
        on_response: called in the event loop with each response. It must not block.
        on_error: called when the connection failed or could not be opened, with the error and with `retry_now`: True if the
            connection was an idle one from the pool. The broker may have closed such a connection long ago, so a new one may
            work at once.
    """

    def __init__(
        self,
        broker: Broker,
        pool: ConnectionPool,
        options: FetchOptions,
        use_session: bool,
        timeout_s: float,
        on_response: OnResponse,
        on_error: OnError,
    ) -> None:
        self.broker = broker
        self.closed = False
        self._pool = pool
        self._options = options
        self._on_response = on_response
        self._on_error = on_error
        # Requests without a session contain all partitions in this order. A partition that returns records moves to the end.
        self._partitions: dict[Partition, PartitionState] = {}
        self._paused: dict[Partition, PartitionState] = {}
        self._changed: dict[Partition, PartitionState] = {}  # not yet sent to the session, or sent with another offset
        # By the topic and partition that responses contain: the partition, and the offset that was requested last.
        self._requested: dict[tuple[bytes, int], tuple[PartitionState, int]] = {}
        self._forgotten: list[tuple[bytes, int]] = []  # to remove from the session
        self._without_topic_id: set[Partition] = set()  # their topics have no ID, so all requests contain names
        self._session = NEW_SESSION if use_session else NO_SESSION  # of the next request
        self._connection: Connection | None = None
        self._is_fetching = False
        self._may_redirect = False
        self._max_bytes = 0
        self._version = 0  # of the last request
        self._received_bytes = 0  # of the response, when its progress was checked
        response_timeout_s = options.max_wait_ms / 1000 + timeout_s
        self._response_timer = get_hub().loop.timer(response_timeout_s, response_timeout_s)

    def add(self, state: PartitionState) -> None:
        """Read a partition that this broker leads."""
        self._partitions[state.partition] = self._changed[state.partition] = state
        if state.leader is not None and not state.leader.topic_id:
            self._without_topic_id.add(state.partition)

    def remove(self, state: PartitionState) -> None:
        """Stop reading a partition. A response in flight to a request for it is ignored."""
        if self._paused.pop(state.partition, None) is not None:
            return
        del self._partitions[state.partition]
        self._changed.pop(state.partition, None)
        self._without_topic_id.discard(state.partition)
        if (entry := state.request(self._version)) is not None:
            name = entry.topic, entry.partition
            if self._requested.pop(name, None) is not None:
                self._forgotten.append(name)

    @property
    def has_partitions(self) -> bool:
        """Whether this node reads partitions. Those that are paused count."""
        return bool(self._partitions or self._paused)

    def pause(self, state: PartitionState) -> None:
        """Do not request a partition until resume() is called. May be called twice."""
        if state.partition in self._partitions:
            self.remove(state)
            self._paused[state.partition] = state

    def resume(self, state: PartitionState) -> None:
        """Request a partition again. May be called for any partition."""
        if self._paused.pop(state.partition, None) is not None:
            self.add(state)

    def offset_changed(self, state: PartitionState) -> None:
        """Request a partition at its new offset from now on."""
        if state.partition in self._partitions:
            self._changed[state.partition] = state

    def records_received(self, state: PartitionState) -> None:
        """Request a partition at its new offset, and after all others, so that each gets its share of a response."""
        self._partitions[state.partition] = self._changed[state.partition] = self._partitions.pop(state.partition)

    def fetch(self, may_redirect: bool, max_bytes: int) -> None:
        """Send a request, unless one is in flight or there is nothing to read. Opening a connection does not block.

        Args:
            may_redirect: send our rack, so that the broker may name a nearer replica instead of returning records.
            max_bytes: the maximum size of the response. If the next batch is larger, the broker returns that batch alone.
        """
        if not self._partitions or self._is_fetching:
            return
        self._is_fetching = True
        self._may_redirect, self._max_bytes = may_redirect, max_bytes
        if self._connection is not None:
            self._send_or_fail(self._connection)
        elif (idle := self._pool.take_idle(self.broker)) is not None:
            self._use(idle)
        else:
            gevent.spawn(self._connect)

    def finish_fetch(self) -> None:
        """Allow the next fetch. Call this when a response is processed: an earlier fetch would return the same records."""
        self._is_fetching = False

    def match(self, response: FetchResponse) -> Iterator[tuple[PartitionState, PartitionData]]:
        """Yield the partitions of a response with their data. A partition that has moved is requested again instead."""
        for data in response.partitions:
            state, offset = self._requested.get((data.topic, data.partition), (None, 0))
            if state is None:
                continue
            if state.offset == offset:
                yield state, data
            else:
                self.offset_changed(state)

    def restart_session(self) -> bool:
        """Let the next request open a new session with all partitions. Return False if the last request did the same."""
        was_open = self._session[1] > 0
        if was_open:
            self._session = NEW_SESSION
        return was_open

    def close(self) -> Mapping[Partition, PartitionState]:
        """Stop reading, and return the partitions. May be called twice.

        If a response is in flight, the connection returns to the pool when the response has arrived.
        """
        self.closed = True
        partitions = self._partitions | self._paused
        self._partitions, self._paused, self._changed, self._requested = {}, {}, {}, {}
        connection, self._connection = self._connection, None
        if connection is None or connection.in_flight is None:
            self._release(connection)
        else:
            self._response_timer.again(self._release, connection)
            connection.start_reading(lambda _: self._release(connection), lambda _: self._release(connection))
        return partitions

    def _release(self, connection: Connection | None) -> None:
        self._response_timer.close()
        if connection is not None:
            self._pool.release(connection)

    def _connect(self) -> None:
        try:
            connection = self._pool.take(self.broker)
        except Exception as error:  # noqa: BLE001 - the cursor tries another connection, whatever the error
            self._fail(error)
            return
        if self.closed:
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
        version = min(connection.version, BY_NAME) if self._without_topic_id else connection.version
        session_id, epoch = self._session
        if version != self._version and epoch > 0:
            # A session cannot contain both names and topic IDs. Epoch 0 with an ID replaces the session.
            epoch = 0
            self._session = session_id, epoch
        self._version = version
        if epoch <= 0:
            self._changed, self._forgotten, self._requested = self._partitions, [], {}
        partitions = [entry for state in self._changed.values() if (entry := self._request(state)) is not None]
        # A partition that was removed and added again must not be in both lists: the protocol does not define the result.
        forgotten = [name for name in self._forgotten if name not in self._requested]
        self._changed, self._forgotten = {}, []
        options = self._options.for_request(self._may_redirect, self._max_bytes)
        body = encode_request(version, options, self._session, partitions, forgotten)
        self._received_bytes = 0
        self._response_timer.again(self._check_progress, connection)
        connection.send(self._version, body)

    def _request(self, state: PartitionState) -> FetchPartition | None:
        entry = state.request(self._version)
        if entry is not None:
            self._requested[entry.topic, entry.partition] = state, entry.fetch_offset
        return entry

    def _receive(self, data: memoryview) -> None:
        self._response_timer.stop()
        response = parse_response(self._version, data)
        if self._session != NO_SESSION and not response.error_code:
            epoch = self._session[1] % MAX_SESSION_EPOCH + 1
            self._session = (response.session_id, epoch) if response.session_id else NEW_SESSION
        if response.throttle_ms:
            gevent.spawn_later(response.throttle_ms / 1000, self._on_response, self, response)
        else:
            self._on_response(self, response)

    def _check_progress(self, connection: Connection) -> None:
        """Fail unless more bytes of the response have arrived since the last check. A large response takes many turns."""
        received, self._received_bytes = self._received_bytes, connection.received_bytes
        if self._received_bytes == received:
            self._fail_later(TimeoutError("the broker did not respond in time"))

    def _fail_later(self, error: Exception) -> None:
        """Call _fail() in a new greenlet. Callers in the event loop must not block, and `on_error` may wait for a lock."""
        self._response_timer.stop()
        gevent.spawn(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if self.closed:
            return
        connection, self._connection = self._connection, None
        was_reused = connection is not None and connection.reused
        if connection is not None:
            connection.close()
            if was_reused:
                self._pool.close_idle(self.broker)
        self._on_error(self, error, was_reused)
