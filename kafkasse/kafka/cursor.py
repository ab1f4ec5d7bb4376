"""KafkaCursor reads partitions with its own Fetch requests: one connection and one fetch session per broker.

    seek ─▶ PartitionState ─▶ BrokerNode.fetch ─▶ FetchResponse ─▶ decode ─▶ poll
                  ▲                                    │
                  └──────── refresh leaders ◀──────────┘ leader moved, broker unreachable, topic unknown

kafka-python's consumer does the same, but needs a millisecond of CPU per fetch. A cursor knows offsets and leaders. It does
not know about clients, event IDs or frames.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import gevent
from gevent.event import Event
from kafka import errors as kafka_errors

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.kafka.batches import MAX_RUN_RECORDS, BatchTooLarge, RecordRun, decode
from kafkasse.kafka.broker_node import BrokerNode
from kafkasse.kafka.client import Broker
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.errors import PERMANENT_ERRORS, translate_errors
from kafkasse.kafka.fetch_protocol import FetchOptions, FetchResponse, PartitionData
from kafkasse.kafka.partition_state import Leader, PartitionState
from kafkasse.log import Batch, OffsetOutOfRange, Partition

log = logging.getLogger(__name__)

BACKOFF_S = 0.02  # multiplied by the square of the number of failures in a row
MAX_BACKOFF_S = 1.0
OUT_OF_RANGE_REPEAT_S = 0.5
BATCH_TOO_LARGE = "too large when decompressed"

_SUCCESS, _OFFSET_OUT_OF_RANGE, _UNKNOWN_SERVER_ERROR = 0, 1, -1  # Kafka's error codes

FindLeaders = Callable[[Iterable[Partition]], Mapping[Partition, Leader]]


class CursorOptions(NamedTuple):
    """How a cursor reads.

    Attributes:
        fetch: the fields that all its Fetch requests share.
        tail: the cursor stays at the end of its partitions. It uses fetch sessions, and fetches only while it is polled, so
            that records accumulate in between. Other cursors fetch ahead while responses are large.
        timeout_s: how long to wait for a response, in addition to `fetch.max_wait_ms`.
        max_decompressed_bytes: the maximum decompressed size of a batch. Larger batches are reported as unreadable.
    """

    fetch: FetchOptions
    tail: bool
    timeout_s: float
    max_decompressed_bytes: int


class _Stopped(NamedTuple):
    """Why the cursor has stopped reading a partition until seek() moves it. The fields are those of OffsetOutOfRange."""

    diverged_at: int | None = None
    unreadable: tuple[int, str] | None = None


class KafkaCursor:
    """Implements log.Cursor.

    Args:
        find_leaders: returns the current leaders of those partitions that have one. Raises Unavailable if Kafka does not
            answer.
        pool: provides connections.
        offsets: where to start.
        leaders: the known leaders of these partitions. The cursor finds the others itself.
        options: how to read.
        on_close: called once, by close().
    """

    def __init__(
        self,
        find_leaders: FindLeaders,
        pool: ConnectionPool,
        offsets: Mapping[Partition, int],
        leaders: Mapping[Partition, Leader],
        options: CursorOptions,
        on_close: Callable[[], object],
    ) -> None:
        self._find_leaders = find_leaders
        self._pool = pool
        self._options = options
        self._on_close = on_close
        self._closed = False
        self._partitions: dict[Partition, PartitionState] = {}
        # Each partition is in exactly one of the next three maps.
        self._nodes_of: dict[Partition, BrokerNode] = {}
        self._leaderless: dict[Partition, PartitionState] = {}
        self._stopped: dict[Partition, _Stopped] = {}
        self._nodes: dict[Broker, BrokerNode] = {}
        self._topic_ids: dict[str, bytes] = {}  # a topic that was recreated has another ID, and is not read
        self._responses: deque[tuple[BrokerNode, FetchResponse]] = deque()
        self._runs: deque[tuple[PartitionState, Iterator[RecordRun]]] = deque()
        self._error: Exception | None = None
        self._raise_out_of_range_at = 0.0
        self._wakeup = Event()
        self._is_refreshing = False
        self._failures = 0  # in a row
        self._fetches_ahead = False
        self.seek(offsets)
        self._assign(leaders)

    # log.Cursor

    def remove(self, partitions: Iterable[Partition]) -> None:
        removed = set(partitions)
        for partition in removed & self._partitions.keys():
            state = self._partitions.pop(partition)
            self._remove_leader(state)
            del self._leaderless[partition]
            self._stopped.pop(partition, None)
        self._runs = deque(each for each in self._runs if each[0].partition not in removed)

    def seek(self, offsets: Mapping[Partition, int], epochs: Mapping[Partition, int] | None = None) -> None:
        for partition, offset in offsets.items():
            state = self._partitions.setdefault(partition, PartitionState(partition))
            state.seek(offset)
            self._stopped.pop(partition, None)
            if (node := self._nodes_of.get(partition)) is not None:
                node.offset_changed(state)
            else:
                self._leaderless[partition] = state
        self._runs = deque(each for each in self._runs if each[0].partition not in offsets)

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline_s = time.monotonic() + timeout_s
        while not self._closed:
            if batches := self._decode():
                if self._fetches_ahead and not self._runs:
                    self._fetch()
                return batches
            self._raise_errors()
            self._wakeup.clear()
            self._fetch()
            if not self._responses and not self._wakeup.wait(max(0.0, deadline_s - time.monotonic())):
                return []
            while self._responses:
                self._process(*self._responses.popleft())
        return []

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for node in self._nodes.values():
            node.close()
        # Break the reference cycles between cursor and nodes, so that records and buffers are freed at once.
        for each in (self._nodes, self._nodes_of, self._responses, self._runs):
            each.clear()
        self._wakeup.set()
        self._on_close()

    # Responses

    def _decode(self) -> list[Batch]:
        """Decode the next records that were fetched, about MAX_RUN_RECORDS at a time."""
        batches: list[Batch] = []
        count = 0
        while self._runs and count < MAX_RUN_RECORDS:
            state, runs = self._runs[0]
            try:
                run = next(runs, None)
            except kafka_errors.CorruptRecordError as error:
                self._error, run = error, None
            except BatchTooLarge as error:
                log.error(
                    "%s/%d: the batch before offset %d is %s, so its records are skipped."
                    " Increase max_decompressed_bytes to read such batches.",
                    *state.partition,
                    error.next_offset,
                    BATCH_TOO_LARGE,
                )
                self._stop(state, _Stopped(unreadable=(error.next_offset, BATCH_TOO_LARGE)))
                run = None
            if run is None:
                self._runs.popleft()
            elif run.next_offset > state.offset:
                state.advance(run)
                batches.append(Batch(state.partition, run.records, run.next_offset))
                count += len(run.records)
        return batches

    def _raise_errors(self) -> None:
        """Raise the error that ends the cursor, or OffsetOutOfRange. poll() has returned all records before the error."""
        if self._error is not None:
            error, self._error = self._error, None
            with translate_errors():
                raise error
        if self._stopped and time.monotonic() >= self._raise_out_of_range_at:
            # Raise it again after a while, because the caller may have failed to find an offset to continue at.
            self._raise_out_of_range_at = time.monotonic() + OUT_OF_RANGE_REPEAT_S
            stopped = self._stopped.items()
            raise OffsetOutOfRange(
                self._stopped,
                {each: why.diverged_at for each, why in stopped if why.diverged_at is not None},
                {each: why.unreadable for each, why in stopped if why.unreadable is not None},
            )

    def _process(self, node: BrokerNode, response: FetchResponse) -> None:
        if node.closed:
            return
        node.finish_fetch()
        if response.error_code != _SUCCESS:
            log.info("broker %d rejects a fetch: %s", node.broker.node_id, kafka_errors.for_code(response.error_code))
            self._abandon(node)
            return
        # After a large response there are probably more records. At the end of the log, do not fetch ahead: if no request is
        # in flight when the cursor is closed, its connection can be reused at once.
        record_bytes = sum(len(each.records) for each in response.partitions)
        self._fetches_ahead = not self._options.tail and record_bytes > self._options.fetch.max_bytes // 2
        for state, data in node.match(response):
            if data.error_code != _SUCCESS or data.diverging is not None:
                self._handle_partition_error(state, data)
            elif data.records:
                if not self._leaderless:
                    self._failures = 0
                self._runs.append((state, self._runs_of(data, state)))
                node.records_received(state)

    def _runs_of(self, data: PartitionData, state: PartitionState) -> Iterator[RecordRun]:
        read_committed = bool(self._options.fetch.isolation_level)
        return decode(data, state.offset, read_committed, self._options.max_decompressed_bytes)

    def _handle_partition_error(self, state: PartitionState, data: PartitionData) -> None:
        error = kafka_errors.for_code(data.error_code)
        if data.diverging is not None:
            self._stop(state, _Stopped(diverged_at=state.diverged_at(*data.diverging)))
        elif data.error_code == _OFFSET_OUT_OF_RANGE:
            self._stop(state, _Stopped())
        elif error.retriable or data.error_code == _UNKNOWN_SERVER_ERROR:
            log.info("%s/%d cannot be read now: %s", *state.partition, error.__name__)
            self._remove_leader(state)
            self._failures += 1
        else:
            self._error = error(f"{state.partition.topic}/{state.partition.partition}")

    # Leaders

    def _fetch(self) -> None:
        if self._leaderless and not self._is_refreshing:
            self._is_refreshing = True
            gevent.spawn(self._refresh_leaders)
        for node in list(self._nodes.values()):
            node.fetch()

    def _refresh_leaders(self) -> None:
        """After a backoff, find leaders for the partitions without one."""
        try:
            gevent.sleep(min(MAX_BACKOFF_S, BACKOFF_S * self._failures**2))
            leaders = {} if self._closed else self._find_leaders(self._leaderless)
            if not self._closed:
                self._assign(leaders)
        except Unavailable:
            pass  # poll() starts the next refresh
        except KafkasseError as error:
            self._error = error
        finally:
            self._failures += bool(self._leaderless)
            self._is_refreshing = False
            self._wakeup.set()

    def _assign(self, leaders: Mapping[Partition, Leader]) -> None:
        """Give each partition without a leader to the node of its leader."""
        for state in list(self._leaderless.values()):
            partition = state.partition
            leader = leaders.get(partition)
            if leader is None or leader.topic_id != (self._topic_ids.get(partition.topic) or leader.topic_id):
                continue
            if state.leader is not None and leader.epoch < state.leader.epoch:
                continue  # the metadata comes from a broker that lags behind
            self._topic_ids[partition.topic] = leader.topic_id
            state.leader = leader
            self._nodes_of[partition] = node = self._node(leader.broker)
            node.add(state)
            del self._leaderless[partition]

    def _node(self, broker: Broker) -> BrokerNode:
        if broker not in self._nodes:
            options = self._options
            self._nodes[broker] = BrokerNode(
                broker, self._pool, options.fetch, options.tail, options.timeout_s, self._on_response, self._on_error
            )
        return self._nodes[broker]

    def _stop(self, state: PartitionState, why: _Stopped) -> None:
        """Stop reading a partition until seek() moves it."""
        self._remove_leader(state)
        del self._leaderless[state.partition]
        self._stopped[state.partition] = why
        self._raise_out_of_range_at = 0.0

    def _remove_leader(self, state: PartitionState) -> None:
        if (node := self._nodes_of.pop(state.partition, None)) is not None:
            node.remove(state)
        self._leaderless[state.partition] = state

    def _abandon(self, node: BrokerNode, retry_now: bool = False) -> None:
        """Close a node and find the current leaders of its partitions. The backoff grows unless `retry_now`."""
        self._failures += not retry_now
        if self._nodes.get(node.broker) is node:
            del self._nodes[node.broker]
        for partition, state in node.close().items():
            del self._nodes_of[partition]
            self._leaderless[partition] = state
        self._wakeup.set()

    # Callbacks of the nodes

    def _on_response(self, node: BrokerNode, response: FetchResponse) -> None:
        if not self._closed:
            self._responses.append((node, response))
            self._wakeup.set()

    def _on_error(self, node: BrokerNode, error: Exception, retry_now: bool) -> None:
        if isinstance(error, PERMANENT_ERRORS):
            self._error = error
        log.info("Connection to broker %d failed: %s: %s", node.broker.node_id, type(error).__name__, error)
        self._abandon(node, retry_now)
