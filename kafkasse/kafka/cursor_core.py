"""The core of a cursor: the states of its partitions, and what it does next. No I/O, no clock, no kafka-python.

    seek() ─▶ next_lookup(), end_lookup() ─▶ fetches(), request() ─▶ on_response() ─▶ decode_run() ─▶ take_batches()
                   ▲                                                          │
                   └─────────── leader moved, broker unavailable ◀────────────┘

KafkaCursor (cursor.py) executes the lookups and the fetches, and passes in what they return, and the time.
partition_states.py describes the states.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from kafkasse.errors import KafkasseError, Unavailable
from kafkasse.kafka import old_brokers
from kafkasse.kafka.batches import BatchTooLarge, RecordRun
from kafkasse.kafka.compression import LargeBlock
from kafkasse.kafka.decoding import MAX_SMALL_BYTES, DecodingQueue, is_large
from kafkasse.kafka.fetch_position import NO_LEADER, FetchPosition
from kafkasse.kafka.fetch_protocol import (
    NO_REPLICA,
    Broker,
    FetchOptions,
    FetchRequest,
    FetchResponse,
    Leader,
    PartitionData,
    short_topic_id,
)
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.kafka.partition_states import (
    NEXT_STATES,
    Added,
    Decoding,
    Deferred,
    Failed,
    Fetching,
    FetchState,
    NeedsLeader,
    Stopped,
    Validating,
)
from kafkasse.log import (
    RECREATED_AT,
    UNKNOWN_EPOCH,
    Batch,
    Epochs,
    OffsetOutOfRange,
    Offsets,
    Partition,
    PartitionsFailed,
)

OUT_OF_RANGE_REPEAT_S = 0.5
MAX_REPLICA_AGE_S = 300.0  # after this time, ask the leader again which replica is the nearest
DECODING_REPLICA_S = 1.0  # a partition whose records are being decoded keeps its replica for this much longer
REPLICA_FAILED_S = 30.0  # after a replica failed, read from leaders for this long
MAX_UNDECODED_FETCHES = 6  # times max_fetch_bytes: while its undecoded responses are larger, a cursor fetches nothing
DEFER_ABOVE_FETCHES = 2  # times max_fetch_bytes: while its undecoded responses are larger, a tail defers large records
MIN_FETCH_BYTES = 1 << 20  # what both count if max_fetch_bytes is smaller
MAX_BACKLOG_WAIT_MS = 10  # deferred partitions wait for the request in flight
BATCH_TOO_LARGE = "too large when decompressed"

_SUCCESS, _OFFSET_OUT_OF_RANGE = 0, 1  # Kafka's error codes
_SESSION_ERRORS = (70, 71, 106)  # the broker has evicted the session, or does not accept its epoch or its topic IDs


class CursorOptions(NamedTuple):
    """How a cursor reads."""

    fetch: FetchOptions  # the fields that all its Fetch requests share
    # The cursor stays at the end of its partitions. It uses fetch sessions, and fetches only while it is polled, so that
    # records accumulate in between. Other cursors fetch ahead while responses are large.
    tail: bool
    timeout_s: float  # how long to wait for a response, in addition to `fetch.max_wait_ms`
    max_decompressed_bytes: int  # the maximum decompressed size of a batch. Larger batches are reported as unreadable.


class Cluster(Protocol):
    """A cluster. The last three methods may wait, and raise Unavailable. Only lookups call them."""

    def known_leaders(self, partitions: Iterable[Partition]) -> Mapping[Partition, Leader]:
        """Return the last known leaders of those partitions that have one."""

    def broker(self, node_id: int) -> Broker | None:
        """Return the broker with a node ID, if it is in the last metadata."""

    def reports_truncation(self, broker: Broker) -> bool:
        """Return whether a broker's Fetch responses report a truncated log, as far as is known."""

    def find_leaders(self, partitions: Iterable[Partition]) -> Mapping[Partition, Leader | KafkasseError]:
        """Return the current leaders of those partitions that have one, and an error for those that we may not read."""

    def find_epochs(self, epochs: Epochs) -> Mapping[Partition, tuple[int, int] | None]:
        """Return the newest epoch in each log that is not newer than the given one, and the offset at which it ends.

        If the log has only older epochs, the offset is UNKNOWN_OFFSET. The value is None if the leader does not answer such
        questions. Partitions about which it cannot answer now are absent.
        """

    def recreated(self, epochs: Epochs) -> Set[Partition]:
        """As log.Log.recreated()."""


class Errors(Protocol):
    """What Kafka's errors mean. The module kafkasse.kafka.errors implements it."""

    def name_of(self, code: int) -> str:
        """Return the name of an error code."""

    def is_temporary(self, code: int) -> bool:
        """Return whether a partition with this error code can be read again later."""

    def rejected(self, topic: str, code: int) -> KafkasseError:
        """Return the error of partitions that a broker rejects with this code, and report it to operators."""

    def unreadable(self, partition: Partition, error: Exception) -> KafkasseError:
        """Return the error of a partition whose records cannot be decoded, and report it to operators."""

    def withheld(self, partition: Partition, offset: int, end: int) -> KafkasseError:
        """Return the error of a partition whose records the broker does not return, and report it to operators."""


class EventLog(Protocol):
    """Receives what happens, for operators. A logging.Logger implements it."""

    def info(self, text: str, *values: object) -> None:
        """Add an event."""

    def error(self, text: str, *values: object) -> None:
        """Add an event that an operator must know."""


class FindLeaders(NamedTuple):
    """Find the leaders of these partitions."""

    partitions: Sequence[Partition]

    def ask(self, cluster: Cluster) -> Mapping[Partition, Leader | KafkasseError]:
        return cluster.find_leaders(self.partitions)


class FindEpochs(NamedTuple):
    """Find where the last epoch of these partitions ends."""

    states: Mapping[Partition, Validating]

    def ask(self, cluster: Cluster) -> Mapping[Partition, tuple[int, int] | None]:
        return cluster.find_epochs({partition: state.position.last_epoch for partition, state in self.states.items()})


class FindRecreated(NamedTuple):
    """Ask the leaders whether their epoch is really older than the last known one. If it is, the topic was recreated."""

    states: Mapping[Partition, NeedsLeader]

    def ask(self, cluster: Cluster) -> Set[Partition]:
        # The log may be longer than before, so only an older epoch is suspicious.
        return cluster.recreated(
            {partition: state.position.leader.epoch - 1 for partition, state in self.states.items()}
        )


CursorLookup = FindLeaders | FindEpochs | FindRecreated


class CursorCore:
    """Reads partitions, each from a given offset.

    Args:
        cluster: the cluster. The core calls only the methods that do not wait.
        errors: what Kafka's errors mean.
        log: receives what happens.

    Attributes:
        undecoded: the partitions with records to decode.
        decoded: what take_batches() returns.
        large_block: see decode_run().
    """

    def __init__(self, cluster: Cluster, options: CursorOptions, errors: Errors, log: EventLog) -> None:
        self._cluster = cluster
        self._options = options
        self._errors = errors
        self._log = log
        self._partitions: dict[Partition, FetchState] = {}
        self._sessions: dict[Broker, FetchSession] = {}
        self._topic_ids: dict[str, bytes] = {}  # a recreated topic has another ID, and is not read
        self._expected_ids: dict[str, str] = {}  # the first characters, if the caller knows them
        self.undecoded = DecodingQueue(bool(options.fetch.isolation_level), options.max_decompressed_bytes)
        self.large_block: LargeBlock | None = None
        self.decoded: list[Batch] = []
        self._error: Exception | None = None  # ends the cursor
        self._report_at = math.inf  # when next_error() looks for partitions that have stopped or failed
        self._is_looking_up = False
        self._more_lookups: deque[CursorLookup] = deque()  # that continue the last one
        self._next_lookup_at = math.inf
        self._replicas_expire_at = math.inf
        self._replicas_allowed_at = 0.0
        self._fetches_ahead = False
        self._defers = False  # discard large records from the response to the request in flight
        self._has_backlog = False  # `undecoded` was that large since it was empty: fetch little, and do not wait long
        self._backlog_fetch = options.fetch.limited(MAX_BACKLOG_WAIT_MS, MAX_SMALL_BYTES)

    # The partitions

    def seek(self, offsets: Offsets, epochs: Epochs, topic_ids: Mapping[str, str]) -> None:
        """See log.Cursor.seek()."""
        self._discard_records(offsets)
        states = {partition: self._partitions.setdefault(partition, Added()) for partition in offsets}
        for topic in {partition.topic for partition, state in states.items() if isinstance(state, Added)}:
            if topic_ids.get(topic):
                self._expected_ids.setdefault(topic, topic_ids[topic])
        known = self._cluster.known_leaders(
            [partition for partition, state in states.items() if isinstance(state, Added | Failed)]
        )
        for partition, offset in offsets.items():
            state = states[partition]
            position = FetchPosition(partition) if isinstance(state, Added | Failed) else state.position
            if partition in epochs or not (isinstance(state, Stopped) and position.may_return_to(offset)):
                position.seek(offset, epochs.get(partition, UNKNOWN_EPOCH))
            if isinstance(state, Fetching) and not self._must_validate(position, position.leader):
                self._start_epochs(position)
                state.session.offset_changed(position)
                continue
            retry_at = state.retry_at if isinstance(state, NeedsLeader) else 0.0
            self._enter(partition, NeedsLeader(position, retry_at))
            leader = known.get(partition)
            if leader is not None and not self._is_recreated(partition.topic, leader):
                if self._must_validate(position, leader):
                    continue  # the known leader may be outdated, so a lookup follows
                self._leader_found(position, leader)

    def remove(self, partitions: Iterable[Partition]) -> None:
        """See log.Cursor.remove()."""
        removed = self._partitions.keys() & set(partitions)
        self._discard_records(removed)
        for partition in removed:
            state = self._partitions.pop(partition)
            if isinstance(state, Fetching):
                state.session.remove(state.position)
        for topic in {partition.topic for partition in removed} - {partition.topic for partition in self._partitions}:
            self._topic_ids.pop(topic, None)
            self._expected_ids.pop(topic, None)

    def _enter(self, partition: Partition, state: FetchState) -> None:
        former = self._partitions[partition]
        if type(state) not in NEXT_STATES[type(former)]:
            raise RuntimeError(f"A partition cannot change from {type(former).__name__} to {type(state).__name__}.")
        self._partitions[partition] = state
        if isinstance(state, Decoding):
            state.session.pause(state.position)
            return
        if isinstance(state, Deferred):
            state.session.defer(state.position)
            return
        if isinstance(former, Decoding | Deferred) and isinstance(state, Fetching):
            state.session.resume(state.position)
            return
        if isinstance(former, Decoding | Deferred | Fetching):
            former.session.remove(former.position)
        if isinstance(state, Fetching):
            state.session.add(state.position)
        elif isinstance(state, NeedsLeader):
            self._next_lookup_at = min(self._next_lookup_at, state.retry_at)
        elif isinstance(state, Stopped | Failed):
            self._report_at = 0.0

    def close(self) -> None:
        """Free the records and buffers at once, without a garbage collection."""
        self.undecoded.clear()
        self.decoded.clear()
        self.large_block = None
        self._partitions.clear()
        for session in self._sessions.values():
            session.clear()
        self._sessions.clear()

    def next_error(self, now: float) -> Exception | None:
        """Return what poll() raises now, or None. Records of other partitions may still be undecoded."""
        if self._error is not None:
            error, self._error = self._error, None
            return error
        if now < self._report_at:
            return None
        failed = {partition: state.error for partition, state in self._partitions.items() if isinstance(state, Failed)}
        if failed:
            self.remove(failed)
            return PartitionsFailed(failed)
        stopped = {partition: state for partition, state in self._partitions.items() if isinstance(state, Stopped)}
        # Repeat it, because the caller may have failed to find an offset at which to continue.
        self._report_at = now + OUT_OF_RANGE_REPEAT_S if stopped else math.inf
        if not stopped:
            return None
        return OffsetOutOfRange(
            stopped,
            {partition: state.diverged_at for partition, state in stopped.items() if state.diverged_at is not None},
            {partition: state.unreadable for partition, state in stopped.items() if state.unreadable is not None},
        )

    # Lookups

    @property
    def wake_at(self) -> float:
        """When to call next_lookup(); inf if nothing must be looked up."""
        return math.inf if self._is_looking_up else self._next_lookup_at

    def next_lookup(self, now: float) -> CursorLookup | None:
        """Return the lookup to start now. The next one follows after end_lookup() or lookup_failed()."""
        if self._is_looking_up:
            return None
        if self._more_lookups:
            self._is_looking_up = True
            return self._more_lookups.popleft()
        if now < self._next_lookup_at:
            return None
        due = [partition for partition, state in self._waiting() if state.retry_at <= now]
        self._is_looking_up = bool(due)
        self._plan_lookup()
        return FindLeaders(due) if due else None

    def _waiting(self) -> Iterable[tuple[Partition, NeedsLeader]]:
        return ((partition, state) for partition, state in self._partitions.items() if isinstance(state, NeedsLeader))

    def _plan_lookup(self) -> None:
        self._next_lookup_at = min((state.retry_at for _, state in self._waiting()), default=math.inf)

    def end_lookup(self, now: float, lookup: CursorLookup, answer: Any) -> None:
        """Continue with what CursorLookup.ask() has returned. Back off where there is no answer."""
        self._is_looking_up = False
        if isinstance(lookup, FindLeaders):
            self._leaders_found(now, lookup, answer)
        elif isinstance(lookup, FindEpochs):
            self._epochs_found(now, lookup, answer)
        else:
            self._recreated_found(lookup, answer)
        self._plan_lookup()

    def lookup_failed(self, now: float, lookup: CursorLookup, error: Exception) -> None:
        """Retry later, or end the cursor if retrying cannot help."""
        if isinstance(error, KafkasseError) and isinstance(lookup, FindLeaders) and not isinstance(error, Unavailable):
            self.end(error)
        self.end_lookup(now, lookup, {})

    def _leaders_found(
        self, now: float, lookup: FindLeaders, leaders: Mapping[Partition, Leader | KafkasseError]
    ) -> None:
        for partition, leader in leaders.items():
            state = self._partitions.get(partition)
            if not isinstance(state, NeedsLeader):
                continue
            if isinstance(leader, KafkasseError):
                self._enter(partition, Failed(leader))
            elif self._is_recreated(partition.topic, leader):
                continue
            elif leader.epoch < state.position.leader.epoch:
                state.older_epoch_since = min(state.older_epoch_since, now)
            else:
                self._leader_found(state.position, leader)
        states = {
            partition: state
            for partition in lookup.partitions
            if (state := self._partitions.get(partition)) is not None
        }
        if validating := {partition: state for partition, state in states.items() if isinstance(state, Validating)}:
            self._more_lookups.append(FindEpochs(validating))
        waiting = {partition: state for partition, state in states.items() if isinstance(state, NeedsLeader)}
        if suspects := {
            partition: state for partition, state in waiting.items() if old_brokers.may_be_recreated(state, now)
        }:
            self._more_lookups.append(FindRecreated(suspects))
        for state in waiting.values():
            state.retry_at = state.position.back_off(now)

    def _is_recreated(self, topic: str, leader: Leader) -> bool:
        """Return whether the leader is that of another topic with the same name."""
        expected = self._expected_ids.get(topic, "")
        has_other_start = expected and short_topic_id(leader.topic_id) not in ("", expected)
        return bool(has_other_start) or self._topic_ids.get(topic, b"") not in (b"", leader.topic_id)

    def _leader_found(self, position: FetchPosition, leader: Leader) -> None:
        self._topic_ids[position.partition.topic] = leader.topic_id
        position.leader = leader
        if self._must_validate(position, leader):
            self._enter(position.partition, Validating(position))
        else:
            self._fetch_from_leader(position)

    def _epochs_found(self, now: float, lookup: FindEpochs, ends: Mapping[Partition, tuple[int, int] | None]) -> None:
        for partition, state in lookup.states.items():
            if self._partitions.get(partition) is not state:
                continue
            position, end = state.position, ends.get(partition)
            if partition not in ends:
                self._need_leader(position, position.back_off(now))
            elif end is not None and old_brokers.is_divergence(position, *end):
                self._enter(partition, Stopped(position, old_brokers.diverged_at(position, *end)))
            else:
                position.valid_at = position.leader
                self._fetch_from_leader(position)

    def _recreated_found(self, lookup: FindRecreated, recreated: Container[Partition]) -> None:
        for partition, state in lookup.states.items():
            if self._partitions.get(partition) is state and partition in recreated:
                state.position.leader = NO_LEADER
                self._enter(partition, Stopped(state.position, RECREATED_AT))

    def _must_validate(self, position: FetchPosition, leader: Leader) -> bool:
        """Return whether the leader's log may have been truncated, and its Fetch responses would not report that."""
        return not (self._cluster.reports_truncation(leader.broker) or old_brokers.is_valid(position, leader))

    # Fetches

    def fetches(self, now: float) -> Iterator[FetchSession]:
        """Yield the sessions of which to send a request(), as soon as there is a connection to their broker.

        The cursor may be closed, and sessions may end, after each of them.
        """
        if now >= self._replicas_expire_at:
            self._leave_old_replicas(now)
        max_bytes = max(self._options.fetch.max_bytes, MIN_FETCH_BYTES)
        undecoded_bytes = self.undecoded.response_bytes if self.undecoded else 0
        self._defers = self._options.tail and undecoded_bytes > DEFER_ABOVE_FETCHES * max_bytes
        self._has_backlog = self._defers or (self._has_backlog and bool(self.undecoded))
        if undecoded_bytes > MAX_UNDECODED_FETCHES * max_bytes:
            return
        for session in list(self._sessions.values()):
            if session.is_open and not session.is_fetching:
                if session.deferred:
                    self._end_deferrals(session)
                if session.positions:
                    session.is_fetching = True
                    yield session

    def _end_deferrals(self, session: FetchSession) -> None:
        """Fetch all partitions again, or one during a backlog: then a response contains only one large batch."""
        # If only small records are undecoded, there is room for a large one. Otherwise, they could keep it out forever.
        has_room = not self._defers or not self.undecoded.has_large
        count = 1 if self._has_backlog else len(session.deferred)
        for position in list(session.deferred)[: count * has_room]:
            self._enter(position.partition, Fetching(position, session))

    def request(self, now: float, session: FetchSession, newest_version: int) -> FetchRequest:
        """Return the next request to a broker that supports this version of the Fetch request."""
        may_redirect = now >= self._replicas_allowed_at
        fetch = self._backlog_fetch if self._has_backlog else self._options.fetch
        return session.request(newest_version, fetch.for_request(may_redirect, self._max_bytes_per_broker()))

    def _max_bytes_per_broker(self) -> int:
        """Return the maximum size of a response: all brokers that the cursor reads from share `fetch.max_bytes`."""
        brokers = len([session for session in self._sessions.values() if session.has_partitions])
        return self._options.fetch.max_bytes // max(1, brokers)

    def on_response(self, now: float, session: FetchSession, response: FetchResponse) -> bool:
        """Take the response to the last request. Return False if the session has ended, so that its node must be closed."""
        if not session.is_open:
            return False
        results = session.receive(response)
        if response.error_code != _SUCCESS:
            name = self._errors.name_of(response.error_code)
            self._log.info("Broker %d rejects a fetch: %s", session.broker.node_id, name)
            if response.error_code not in _SESSION_ERRORS or not session.restart():
                self._abandon(now, session)
            return session.is_open
        # After a large response there are probably more records. At the end of the log, do not fetch ahead: if no request is
        # in flight when the cursor is closed, its connection can be reused at once.
        if not self._options.tail:
            record_bytes = sum(len(data.records) for data in response.partitions)
            self._fetches_ahead = record_bytes > self._max_bytes_per_broker() // 2
        withheld: dict[FetchPosition, int] = {}
        rejected: defaultdict[tuple[str, int], list[Partition]] = defaultdict(list)
        for position, data in results:
            if data.error_code != _SUCCESS or data.diverging is not None:
                if not self._handle_error(now, position, session, data):
                    rejected[position.partition.topic, data.error_code].append(position.partition)
            elif data.replica not in (NO_REPLICA, session.broker.node_id):
                self._follow_replica(now, position, data.replica)
            elif data.records:
                position.fetched(has_records=True)
                if self._defers and is_large(data.records) and self.undecoded.has_large:
                    self._enter(position.partition, Deferred(position, session))
                else:
                    self.undecoded.append(position, data)
                    self._enter(position.partition, Decoding(position, session, is_large(data.records)))
            else:
                position.fetched(has_records=False)
                if data.stable_end > position.offset:
                    withheld[position] = data.stable_end
        if withheld and not any(data.records for data in response.partitions):  # there was room for them
            self._records_withheld(now, withheld)
        for (topic, code), partitions in rejected.items():
            self._fail(partitions, self._errors.rejected(topic, code))
        return True

    def _handle_error(self, now: float, position: FetchPosition, session: FetchSession, data: PartitionData) -> bool:
        """Stop a partition, or find its leader. Return False if the partition cannot be read any more."""
        code, partition = data.error_code, position.partition
        if session.broker != position.leader.broker:
            name = self._errors.name_of(code)
            self._log.info("%s/%d cannot be read from the nearest replica now: %s", *partition, name)
            self._avoid_replicas(now)
            self._fetch_from(position, position.leader.broker)  # the replica may lag behind, so the leader decides
        elif data.diverging is not None or code == _OFFSET_OUT_OF_RANGE:
            diverged_at = None if data.diverging is None else position.diverged_at(*data.diverging)
            is_other = old_brokers.was_recreated(position)
            self._enter(partition, Stopped(position, RECREATED_AT if is_other else diverged_at))
        elif self._errors.is_temporary(code):
            self._log.info("%s/%d cannot be read now: %s", *partition, self._errors.name_of(code))
            self._need_leader(position, position.back_off(now))
        else:
            return False
        return True

    def _records_withheld(self, now: float, ends: Mapping[FetchPosition, int]) -> None:
        """Fail the partitions whose records the broker has not returned for too long, although it reports no error.

        For example, a batch with a damaged length would end after its segment.
        """
        for position, end in ends.items():
            position.withheld_since = min(position.withheld_since, now)
            if now - position.withheld_since >= self._options.timeout_s / 2:  # before finite reads time out
                self._fail([position.partition], self._errors.withheld(position.partition, position.offset, end))

    def connection_failed(self, now: float, session: FetchSession, retry_now: bool) -> None:
        """Find the leaders of the session's partitions: at once if `retry_now` is set, else after a backoff."""
        if session.is_open:
            self._abandon(now, session, retry_now)

    def end(self, error: KafkasseError) -> None:
        """Let poll() raise this error, because retrying cannot help."""
        self._error = error

    def _abandon(self, now: float, session: FetchSession, retry_now: bool = False) -> None:
        session.is_open = False
        del self._sessions[session.broker]
        if session.reads_replica:
            self._avoid_replicas(now)
        for position in (*session.positions, *session.deferred):
            self._need_leader(position, 0.0 if retry_now else position.back_off(now))

    def _need_leader(self, position: FetchPosition, retry_at: float) -> None:
        self._enter(position.partition, NeedsLeader(position, retry_at))

    def _fetch_from_leader(self, position: FetchPosition) -> None:
        self._start_epochs(position)
        self._fetch_from(position, position.leader.broker)

    def _start_epochs(self, position: FetchPosition) -> None:
        """Remember the leader's epoch at a position at which nothing has been read."""
        if self._options.tail and position.first_epoch == UNKNOWN_EPOCH:
            position.first_epoch = position.leader.epoch
        if position.last_epoch == UNKNOWN_EPOCH:
            position.valid_at = position.leader  # all records will come from this leader

    def _fetch_from(self, position: FetchPosition, broker: Broker) -> None:
        self._enter(position.partition, Fetching(position, self._session(broker)))

    def _session(self, broker: Broker) -> FetchSession:
        if broker not in self._sessions:
            self._sessions[broker] = FetchSession(broker, use_session=self._options.tail)
        return self._sessions[broker]

    def _fail(self, partitions: Iterable[Partition], error: KafkasseError) -> None:
        for partition in partitions:
            self._enter(partition, Failed(error))

    # Replicas

    def _follow_replica(self, now: float, position: FetchPosition, node_id: int) -> None:
        """Read a partition from the replica that its leader has named."""
        if (broker := self._cluster.broker(node_id)) is None:
            self._avoid_replicas(now)
            return
        self._fetch_from(position, broker)
        self._replicas_expire_at = min(self._replicas_expire_at, now + MAX_REPLICA_AGE_S)

    def _leave_old_replicas(self, now: float) -> None:
        self._replicas_expire_at = math.inf
        for state in list(self._partitions.values()):
            if (
                isinstance(state, Fetching | Decoding | Deferred)
                and state.session.broker != state.position.leader.broker
            ):
                if isinstance(state, Fetching):
                    self._fetch_from(state.position, state.position.leader.broker)
                else:
                    self._replicas_expire_at = now + DECODING_REPLICA_S

    def _avoid_replicas(self, now: float) -> None:
        """Read from leaders for some time. Otherwise a leader would name the same replica again."""
        self._replicas_allowed_at = now + REPLICA_FAILED_S

    # Records

    @property
    def fetches_ahead(self) -> bool:
        """Whether to fetch before the caller has processed the records that were decoded."""
        return self._fetches_ahead and not self.undecoded

    def decode_run(self) -> int:
        """Decode some of the records, for about a millisecond. Return their cost. The partitions take turns.

        If `large_block` is then not None, let a thread decompress it first, because the next call would take longer.
        """
        self.large_block = None
        if (result := self.undecoded.next_run()) is None:
            return 0
        position, run = result
        if not isinstance(run, RecordRun):
            self._stop_at_unreadable(position, run)
            return 0
        cost, self.large_block = 0, run.block
        if run.next_offset > position.offset:
            position.advance(run)
            self.decoded.append(Batch(position.partition, run.records, run.next_offset, run.epoch))
            cost = run.cost
        if run.is_last:
            self._end_decoding(position)
        return cost

    def take_batches(self) -> list[Batch]:
        """Return what was decoded since the last call."""
        decoded, self.decoded = self.decoded, []
        return decoded

    def _end_decoding(self, position: FetchPosition) -> None:
        state = self._partitions[position.partition]
        assert isinstance(state, Decoding)  # noqa: S101 - it is in the queue
        if not state.session.is_open:
            self._need_leader(position, 0.0)
        elif state.is_large and any(session.deferred for session in self._sessions.values()):
            self._enter(position.partition, Deferred(position, state.session))  # the others have waited longer
        else:
            self._enter(position.partition, Fetching(position, state.session))

    def _discard_records(self, partitions: Collection[Partition]) -> None:
        """Discard the records of these partitions that take_batches() has not returned. No deferral remains."""
        for position in self.undecoded.discard(partitions):
            self._end_decoding(position)
        for partition in partitions:
            if isinstance(state := self._partitions.get(partition), Deferred):
                self._enter(partition, Fetching(state.position, state.session))
        self.large_block = None
        self.decoded = [batch for batch in self.decoded if batch.partition not in partitions]

    def _stop_at_unreadable(self, position: FetchPosition, error: Exception) -> None:
        partition = position.partition
        if not isinstance(error, BatchTooLarge):
            self._fail([partition], self._errors.unreadable(partition, error))
            return
        self._log.error(
            "%s/%d: the batch before offset %d is %s, so its records are skipped."
            " Increase max_decompressed_bytes to read such batches.",
            *partition,
            error.next_offset,
            BATCH_TOO_LARGE,
        )
        self._enter(partition, Stopped(position, unreadable=(error.next_offset, BATCH_TOO_LARGE)))
