"""KafkaCursor reads partitions with its own Fetch requests, over one connection per broker.

    seek ─▶ PartitionState ─▶ BrokerNode.fetch ─▶ FetchResponse ─▶ decode ─▶ poll
                  ▲                                    │
                  └──────── refresh leaders ◀──────────┘ leader moved, broker unreachable, topic unknown

kafka-python's consumer does the same, but needs a millisecond of CPU per fetch. A cursor knows offsets and leaders. It does
not know about clients, event IDs or frames.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping, Set
from contextlib import suppress
from typing import NamedTuple

import gevent
from gevent.event import Event
from kafka import errors as kafka_errors

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.kafka.batches import MAX_COST, BatchTooLarge, RecordRun
from kafkasse.kafka.broker_node import BrokerNode
from kafkasse.kafka.client import UNKNOWN_OFFSET, Broker
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.decoding import DecodingQueue
from kafkasse.kafka.errors import PERMANENT_ERRORS, message, report
from kafkasse.kafka.fetch_protocol import NO_REPLICA, FetchOptions, FetchResponse, PartitionData
from kafkasse.kafka.partition_state import Leader, PartitionState
from kafkasse.log import (
    RECREATED_AT,
    UNKNOWN_EPOCH,
    Batch,
    OffsetAndEpoch,
    OffsetOutOfRange,
    Partition,
    PartitionsFailed,
)
from kafkasse.process.event_loop import take_turn

log = logging.getLogger(__name__)

OUT_OF_RANGE_REPEAT_S = 0.5
MAX_METADATA_LAG_S = 5.0
MAX_REPLICA_AGE_S = 300.0  # after this time, ask the leader again which replica is the nearest
REPLICA_FAILED_S = 30.0  # after a replica failed, read from leaders for this long
MAX_POLL_COST = 2 * MAX_COST  # poll() returns at most about 2,000 records or 1 MiB
MAX_UNDECODED_FETCHES = 6  # times max_fetch_bytes: while its undecoded responses are larger, a tail fetches nothing
MIN_FETCH_BYTES = 1 << 20  # what MAX_UNDECODED_FETCHES counts if max_fetch_bytes is smaller
MAX_DECODE_S = 0.005  # after this time, poll() returns the records that it has decoded
BATCH_TOO_LARGE = "too large when decompressed"

_SUCCESS, _OFFSET_OUT_OF_RANGE, _UNKNOWN_SERVER_ERROR = 0, 1, -1  # Kafka's error codes
_SESSION_ERRORS = (70, 71, 106)  # the broker has evicted the session, or does not accept its epoch or its topic IDs

FindLeaders = Callable[[Iterable[Partition]], Mapping[Partition, Leader | KafkasseError]]
FindBroker = Callable[[int], Broker | None]
FindEpochs = Callable[[Mapping[Partition, int]], Mapping[Partition, tuple[int, int]]]
FindRecreated = Callable[[Mapping[Partition, int]], Set[Partition]]
KnownLeaders = Callable[[Iterable[Partition]], Mapping[Partition, Leader]]


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

    diverged_at: OffsetAndEpoch | None = None
    unreadable: tuple[int, str] | None = None


class KafkaCursor:
    """Implements log.Cursor.

    Args:
        known_leaders: returns the last known leaders of those partitions that have one. Does not block.
        find_leaders: returns the current leaders of those partitions that have one, and an error for those that we may not
            read. Raises Unavailable if Kafka does not answer.
        find_epochs: receives an epoch for each partition. Returns the newest epoch in the partition's log that is not newer
            than the given one, and the offset at which it ends, or UNKNOWN_OFFSET if the log has only older epochs.
        find_recreated: as Log.recreated().
        find_broker: returns the broker with a node ID.
        pool: provides connections.
        offsets: where to start.
        epochs, topic_ids: as for log.Cursor.seek().
        options: how to read.
    """

    def __init__(
        self,
        known_leaders: KnownLeaders,
        find_leaders: FindLeaders,
        find_epochs: FindEpochs,
        find_recreated: FindRecreated,
        find_broker: FindBroker,
        pool: ConnectionPool,
        offsets: Mapping[Partition, int],
        epochs: Mapping[Partition, int] | None,
        topic_ids: Mapping[str, str] | None,
        options: CursorOptions,
    ) -> None:
        self._known_leaders = known_leaders
        self._find_leaders = find_leaders
        self._find_epochs = find_epochs
        self._find_recreated = find_recreated
        self._find_broker = find_broker
        self._pool = pool
        self._options = options
        self._closed = False
        self._partitions: dict[Partition, PartitionState] = {}
        # Each partition is in exactly one of the next three maps.
        self._nodes_of: dict[Partition, BrokerNode] = {}
        self._leaderless: dict[Partition, PartitionState] = {}
        self._stopped: dict[Partition, _Stopped] = {}
        self._nodes: dict[Broker, BrokerNode] = {}
        self._topic_ids: dict[str, bytes] = {}  # a recreated topic has another ID, and is not read
        self._expected_ids: dict[str, str] = {}  # the first characters, if the caller knows them
        self._responses: deque[tuple[BrokerNode, FetchResponse]] = deque()
        self._undecoded = DecodingQueue(bool(options.fetch.isolation_level), options.max_decompressed_bytes)
        self._decoded: list[Batch] = []  # what poll() is about to return
        self._error: KafkasseError | None = None  # ends the cursor
        self._failed: dict[Partition, KafkasseError] = {}  # removed, but not reported by poll() yet
        self._raise_out_of_range_at = 0.0
        self._wakeup = Event()
        self._is_refreshing = False
        self._next_refresh_at = math.inf
        self._replicas_expire_at = math.inf
        self._replicas_allowed_at = 0.0
        self._fetches_ahead = False
        self.seek(offsets, epochs, topic_ids)

    # log.Cursor

    def seek(
        self,
        offsets: Mapping[Partition, int],
        epochs: Mapping[Partition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._discard_records(offsets)
        added = []
        for partition, offset in offsets.items():
            if partition not in self._partitions:
                self._partitions[partition] = PartitionState(partition)
                added.append(partition)
                if topic_id := (topic_ids or {}).get(partition.topic):
                    self._expected_ids[partition.topic] = topic_id
            state = self._partitions[partition]
            state.seek(offset, (epochs or {}).get(partition, UNKNOWN_EPOCH))
            self._stopped.pop(partition, None)
            self._failed.pop(partition, None)
            node = self._nodes_of.get(partition)
            if self._options.tail and node is not None and state.leader is not None:
                state.first_epoch = state.leader.epoch
            if node is None:
                self._add_leaderless(state)
            elif state.leader is not None and self._must_validate(state, state.leader):
                self._remove_leader(state)
            else:
                node.offset_changed(state)
        known = self._known_leaders(added).items()
        self._assign(
            {each: leader for each, leader in known if not self._must_validate(self._partitions[each], leader)}
        )
        self._wakeup.set()

    def remove(self, partitions: Iterable[Partition]) -> None:
        removed = set(partitions)
        self._discard_records(removed)
        self._forget(removed)
        for partition in self._failed.keys() & removed:
            del self._failed[partition]

    def poll(self, timeout_s: float) -> list[Batch]:
        deadline_s = time.monotonic() + timeout_s
        if self._options.tail and self._undecoded:
            self._fetch_others()
        while True:
            if batches := self._decode():
                if self._fetches_ahead and not self._undecoded:
                    self._fetch()
                return batches
            if self._closed:
                break
            self._raise_errors()
            self._wakeup.clear()
            self._leave_old_replicas()
            self._fetch()
            if not self._responses and not self._wait(deadline_s):
                return []
            self._process_responses()
        return []

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for node in self._nodes.values():
            node.close()
        # Break the reference cycles between cursor and nodes, so that records and buffers are freed at once.
        for each in (self._nodes, self._nodes_of, self._responses, self._undecoded, self._decoded):
            each.clear()
        self._wakeup.set()

    def _wait(self, deadline_s: float) -> bool:
        """Wait until there is something to do. Return False after the deadline."""
        until_s = min(deadline_s, math.inf if self._is_refreshing else self._next_refresh_at)
        return self._wakeup.wait(max(0.0, until_s - time.monotonic())) or time.monotonic() < deadline_s

    # Responses

    def _decode(self) -> list[Batch]:
        """Decode the next records that were fetched. The partitions take turns, and so do all cursors of the process."""
        self._decoded = []
        cost, until_s = 0, time.monotonic() + MAX_DECODE_S
        while self._undecoded and cost < MAX_POLL_COST and not (self._decoded and time.monotonic() > until_s):
            take_turn(urgent=self._options.tail)
            cost += self._decode_run()
        decoded, self._decoded = self._decoded, []
        return decoded

    def _decode_run(self) -> int:
        """Decode the next run. Return its cost, or 0 if the position of the partition has not moved."""
        if (found := self._undecoded.next_run()) is None:
            return 0
        state, run = found
        if not isinstance(run, RecordRun):
            self._stop_at_unreadable(state, run)
            return 0
        cost = 0
        if run.next_offset > state.offset:
            state.advance(run)
            self._decoded.append(Batch(state.partition, run.records, run.next_offset, run.epoch))
            cost = run.cost
        if run.is_last:
            self._resume(state)
        return cost

    def _discard_records(self, partitions: Container[Partition]) -> None:
        """Discard the records of these partitions that poll() has not returned."""
        self._discard_undecoded(partitions)
        self._decoded[:] = [batch for batch in self._decoded if batch.partition not in partitions]

    def _discard_undecoded(self, partitions: Container[Partition]) -> None:
        for state in self._undecoded.discard(partitions):
            self._resume(state)

    def _resume(self, state: PartitionState) -> None:
        if (node := self._nodes_of.get(state.partition)) is not None:
            node.resume(state)

    def _stop_at_unreadable(
        self, state: PartitionState, error: kafka_errors.CorruptRecordError | BatchTooLarge
    ) -> None:
        if not isinstance(error, BatchTooLarge):
            self._fail([state], type(error)(f"{'/'.join(map(str, state.partition))}: {message(error)}"))
            return
        log.error(
            "%s/%d: the batch before offset %d is %s, so its records are skipped."
            " Increase max_decompressed_bytes to read such batches.",
            *state.partition,
            error.next_offset,
            BATCH_TOO_LARGE,
        )
        self._stop(state, _Stopped(unreadable=(error.next_offset, BATCH_TOO_LARGE)))

    def _fetch_others(self) -> None:
        """Fetch the other partitions while large batches are being decoded."""
        self._process_responses()
        max_bytes = max(self._options.fetch.max_bytes, MIN_FETCH_BYTES)
        if self._undecoded.response_bytes <= MAX_UNDECODED_FETCHES * max_bytes:
            for state in self._undecoded:
                if (node := self._nodes_of.get(state.partition)) is not None:
                    node.pause(state)
            self._fetch()

    def _raise_errors(self) -> None:
        """Raise the error of the cursor, or those of partitions. poll() has already returned all records before them."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._failed:
            failed, self._failed = self._failed, {}
            raise PartitionsFailed(failed)
        if self._stopped and time.monotonic() >= self._raise_out_of_range_at:
            # Raise it repeatedly, because the caller may have failed to find an offset at which to continue.
            self._raise_out_of_range_at = time.monotonic() + OUT_OF_RANGE_REPEAT_S
            stopped = self._stopped.items()
            raise OffsetOutOfRange(
                self._stopped,
                {each: why.diverged_at for each, why in stopped if why.diverged_at is not None},
                {each: why.unreadable for each, why in stopped if why.unreadable is not None},
            )

    def _process_responses(self) -> None:
        while self._responses:
            self._process(*self._responses.popleft())

    def _process(self, node: BrokerNode, response: FetchResponse) -> None:
        if node.closed:
            return
        node.finish_fetch()
        if response.error_code != _SUCCESS:
            log.info("Broker %d rejects a fetch: %s", node.broker.node_id, kafka_errors.for_code(response.error_code))
            if response.error_code not in _SESSION_ERRORS or not node.restart_session():
                self._abandon(node)
            return
        # After a large response there are probably more records. At the end of the log, do not fetch ahead: if no request is
        # in flight when the cursor is closed, its connection can be reused at once.
        record_bytes = sum(len(each.records) for each in response.partitions)
        self._fetches_ahead = not self._options.tail and record_bytes > self._max_bytes_per_node() // 2
        failed: defaultdict[tuple[str, type[kafka_errors.KafkaError]], list[PartitionState]] = defaultdict(list)
        for state, data in node.match(response):
            if data.error_code != _SUCCESS or data.diverging is not None:
                if (error := self._handle_partition_error(state, data)) is not None:
                    failed[state.partition.topic, error].append(state)
            elif data.replica not in (NO_REPLICA, node.broker.node_id):
                self._follow_replica(state, data.replica)
            elif state in self._undecoded:
                node.offset_changed(state)  # it moved to this node while its records are decoded
            elif data.records:
                state.records_received()
                self._undecoded.append(state, data)
                node.records_received(state)
        for (topic, error), states in failed.items():
            self._fail(states, error(topic))

    def _handle_partition_error(
        self, state: PartitionState, data: PartitionData
    ) -> type[kafka_errors.KafkaError] | None:
        """Return the error if the partition cannot be read any more. Otherwise stop the partition, or find its leader."""
        error: type[kafka_errors.KafkaError] = kafka_errors.for_code(data.error_code)
        if (leader := self._bypassed_leader(state)) is not None:
            log.info("%s/%d cannot be read from the nearest replica now: %s", *state.partition, error.__name__)
            self._avoid_replicas()
            self._move(state, leader)  # the replica may lag behind, so the leader decides
        elif (
            data.diverging is not None or data.error_code == _OFFSET_OUT_OF_RANGE
        ) and state.belongs_to_another_topic():
            self._stop(state, _Stopped(RECREATED_AT))
        elif data.diverging is not None:
            self._stop(state, _Stopped(state.diverged_at(*data.diverging)))
        elif data.error_code == _OFFSET_OUT_OF_RANGE:
            self._stop(state, _Stopped())
        elif error.retriable or data.error_code == _UNKNOWN_SERVER_ERROR:
            log.info("%s/%d cannot be read now: %s", *state.partition, error.__name__)
            state.back_off(time.monotonic())
            self._remove_leader(state)
        else:
            return error
        return None

    # Leaders

    def _fetch(self) -> None:
        if not self._is_refreshing and time.monotonic() >= self._next_refresh_at:
            self._is_refreshing = True
            gevent.spawn(self._refresh_leaders)
        may_redirect = time.monotonic() >= self._replicas_allowed_at
        max_bytes = self._max_bytes_per_node()
        for node in list(self._nodes.values()):
            node.fetch(may_redirect, max_bytes)

    def _max_bytes_per_node(self) -> int:
        """Return the maximum size of a response: all brokers that the cursor reads from share `fetch.max_bytes`."""
        return self._options.fetch.max_bytes // max(1, sum(node.has_partitions for node in self._nodes.values()))

    def _refresh_leaders(self) -> None:
        """Find leaders for the partitions without one whose backoff is over."""
        now = time.monotonic()
        due = [partition for partition, state in self._leaderless.items() if state.retry_at <= now]
        try:
            leaders = {} if self._closed else self._find_leaders(due)
            if not self._closed:
                self._validate(leaders)
                self._assign(leaders)
                self._stop_recreated()
        except Unavailable:
            pass  # retry after the backoff
        except KafkasseError as error:
            self._error = error
        finally:
            for partition in self._leaderless.keys() & due:
                self._leaderless[partition].back_off(time.monotonic())
            self._next_refresh_at = min((each.retry_at for each in self._leaderless.values()), default=math.inf)
            self._is_refreshing = False
            self._wakeup.set()

    def _must_validate(self, state: PartitionState, leader: Leader) -> bool:
        """Return whether the leader's log may have been truncated and its Fetch responses would not report that."""
        is_valid = state.last_epoch == UNKNOWN_EPOCH or state.valid_at == (leader.broker, leader.epoch)
        return not is_valid and not self._pool.reports_truncation(leader.broker)

    def _validate(self, leaders: Mapping[Partition, Leader | KafkasseError]) -> None:
        """Detect truncated logs that Fetch responses do not report, and stop their partitions."""
        unknown = {}
        for partition, leader in leaders.items():
            state = self._leaderless.get(partition)
            if state is not None and isinstance(leader, Leader) and self._must_validate(state, leader):
                unknown[partition] = state, state.last_epoch, leader
        epochs = {partition: epoch for partition, (_, epoch, _) in unknown.items()}
        for partition, (epoch, end_offset) in self._find_epochs(epochs).items():
            state, last_epoch, leader = unknown[partition]
            if self._leaderless.get(partition) is not state or state.last_epoch != last_epoch:
                continue  # removed or moved meanwhile
            is_unknown = end_offset == UNKNOWN_OFFSET
            if (is_unknown or end_offset < state.offset) and leader.is_of_another_topic(last_epoch):
                self._stop(state, _Stopped(RECREATED_AT))
            elif is_unknown:  # from Fetch version 12 on, the response is OFFSET_OUT_OF_RANGE instead
                self._stop(state, _Stopped())
            elif UNKNOWN_EPOCH < epoch < last_epoch or end_offset < state.offset:  # Kafka before 2.0 returns no epoch
                self._stop(state, _Stopped(state.diverged_at(epoch, end_offset)))
            else:
                state.valid_at = leader.broker, leader.epoch

    def _assign(self, leaders: Mapping[Partition, Leader | KafkasseError]) -> None:
        """Assign each leaderless partition to the node of the leader that was found."""
        for partition, leader in leaders.items():
            state = self._leaderless.get(partition)
            if state is None:
                continue  # removed meanwhile
            if isinstance(leader, KafkasseError):
                self._forget({partition})
                self._failed[partition] = leader
                continue
            if not self._is_expected(partition.topic, leader):
                continue
            if state.leader is not None and leader.epoch < state.leader.epoch:
                state.outdated_since = state.outdated_since or time.monotonic()
                continue
            self._topic_ids[partition.topic] = leader.topic_id
            state.leader, state.outdated_since = leader, None
            if self._options.tail and state.first_epoch == UNKNOWN_EPOCH:
                state.first_epoch = leader.epoch
            if state.last_epoch == UNKNOWN_EPOCH:
                state.valid_at = leader.broker, leader.epoch  # all records will come from this leader
            self._nodes_of[partition] = node = self._node(leader.broker)
            node.add(state)
            del self._leaderless[partition]

    def _is_expected(self, topic: str, leader: Leader) -> bool:
        """Return whether the leader is that of the topic that the cursor reads, and not of a recreated one."""
        expected, former = self._expected_ids.get(topic), self._topic_ids.get(topic)
        return (not expected or leader.short_topic_id in ("", expected)) and (not former or leader.topic_id == former)

    def _stop_recreated(self) -> None:
        """Stop the partitions whose topic was recreated, if the metadata has reported an older epoch for some seconds.

        Without topic IDs, the metadata of a broker that lags behind looks the same, so the leader must confirm the epoch.
        """
        oldest = time.monotonic() - MAX_METADATA_LAG_S
        outdated = {
            each: (state, state.leader)
            for each, state in self._leaderless.items()
            if state.leader is not None and state.outdated_since is not None and state.outdated_since <= oldest
        }
        # The log may be longer than before, so only an epoch that is older than that of the last leader is suspicious.
        epochs = {each: leader.epoch - 1 for each, (_, leader) in outdated.items()}
        found: Set[Partition] = frozenset()
        with suppress(KafkasseError):  # the next refresh reports the error of a topic only for its partitions
            found = self._find_recreated(epochs)
        for partition in found:
            state, leader = outdated[partition]
            if self._leaderless.get(partition) is state and state.leader is leader:  # not removed meanwhile
                state.leader = state.outdated_since = None
                self._stop(state, _Stopped(RECREATED_AT))

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

    def _fail(self, states: Iterable[PartitionState], error: kafka_errors.KafkaError) -> None:
        """Remove partitions that cannot be read any more, and let poll() report them."""
        failed = dict.fromkeys((each.partition for each in states), report(error))
        self._forget(failed.keys())
        self._failed |= failed

    def _forget(self, partitions: Set[Partition]) -> None:
        """Remove partitions, but keep the records that poll() is about to return."""
        removed = self._partitions.keys() & partitions
        self._discard_undecoded(removed)
        for partition in removed:
            self._remove_leader(self._partitions.pop(partition))
            del self._leaderless[partition]
            self._stopped.pop(partition, None)
        for topic in {each.topic for each in removed} - {each.topic for each in self._partitions}:
            self._topic_ids.pop(topic, None)
            self._expected_ids.pop(topic, None)

    def _remove_leader(self, state: PartitionState) -> None:
        if (node := self._nodes_of.pop(state.partition, None)) is not None:
            node.remove(state)
        self._add_leaderless(state)

    def _add_leaderless(self, state: PartitionState) -> None:
        self._leaderless[state.partition] = state
        self._next_refresh_at = min(self._next_refresh_at, state.retry_at)

    def _abandon(self, node: BrokerNode, retry_now: bool = False) -> None:
        """Close a node, then find the leaders of its partitions: at once if `retry_now` is set, else after a backoff."""
        if self._nodes.get(node.broker) is node:
            del self._nodes[node.broker]
        now = time.monotonic()
        for partition, state in node.close().items():
            if self._bypassed_leader(state) is not None:
                self._avoid_replicas()
            del self._nodes_of[partition]
            if not retry_now:
                state.back_off(now)
            self._add_leaderless(state)
        self._wakeup.set()

    # Replicas

    def _bypassed_leader(self, state: PartitionState) -> Broker | None:
        """Return the leader of a partition that is read from another replica, or None if it is read from its leader."""
        node = self._nodes_of.get(state.partition)
        if node is None or state.leader is None or node.broker == state.leader.broker:
            return None
        return state.leader.broker

    def _follow_replica(self, state: PartitionState, node_id: int) -> None:
        """Read a partition from the replica that its leader has named."""
        if (broker := self._find_broker(node_id)) is None:
            self._avoid_replicas()
            return
        self._move(state, broker)
        self._replicas_expire_at = min(self._replicas_expire_at, time.monotonic() + MAX_REPLICA_AGE_S)

    def _leave_old_replicas(self) -> None:
        if time.monotonic() < self._replicas_expire_at:
            return
        self._replicas_expire_at = math.inf
        for state in self._partitions.values():
            if (leader := self._bypassed_leader(state)) is not None:
                self._move(state, leader)

    def _avoid_replicas(self) -> None:
        """Read from leaders for some time. Otherwise a leader would name the same replica again."""
        self._replicas_allowed_at = time.monotonic() + REPLICA_FAILED_S

    def _move(self, state: PartitionState, broker: Broker) -> None:
        self._nodes_of[state.partition].remove(state)
        self._nodes_of[state.partition] = node = self._node(broker)
        node.add(state)

    # Callbacks of the nodes

    def _on_response(self, node: BrokerNode, response: FetchResponse) -> None:
        if not self._closed:
            self._responses.append((node, response))
            self._wakeup.set()

    def _on_error(self, node: BrokerNode, error: Exception, retry_now: bool) -> None:
        if isinstance(error, PERMANENT_ERRORS):
            self._error = report(error)
        log.info("Connection to broker %d failed: %s: %s", node.broker.node_id, type(error).__name__, error)
        self._abandon(node, retry_now)
