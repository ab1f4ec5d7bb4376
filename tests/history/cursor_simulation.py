"""A Kafka cursor's core in a simulated cluster: each request, response, lookup and failure is one step.

The client does what KafkaCursor and a feed do: it executes the actions of the core, and continues after gaps. No greenlet
runs and no clock is read. The client remembers the records that it has, and compares them with the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafkasse.errors import KafkaUnavailable
from kafkasse.kafka import errors
from kafkasse.kafka.cursor_core import CursorCore, CursorOptions, FindEpochs, Lookup
from kafkasse.kafka.fetch_protocol import FetchOptions, FetchRequest, FetchResponse
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.log import Batch, OffsetOutOfRange, Partition
from tests.history.draws import Draws
from tests.history.simulated_cluster import (
    FIRST_WITH_EPOCHS,
    NOT_LEADER,
    SESSION_NOT_FOUND,
    Entry,
    PartitionLog,
    SimulatedCluster,
)

TOPICS = "a", "b"
MAX_PARTITIONS = 3
MAX_LAG = 3  # changes of the metadata
MAX_ROUNDS = 200  # until the client must have read everything, once nothing fails any more
TOPIC_ID_BYTES = 16


class Connection(NamedTuple):
    """What is in flight between the core and one broker: a request, then its response."""

    session: FetchSession
    request: FetchRequest
    response: FetchResponse | None = None


class View:
    """The client's copy of one partition.

    Attributes:
        log: the log that the client reads: that of a recreated topic is another one.
        epochs: the leader epoch of each record that was read, and of the markers, by offset.
        sought: the offset of the last seek(); epochs are known from there on.
    """

    def __init__(self, log: PartitionLog, offset: int) -> None:
        self.log = log
        self.first = self.position = self.sought = offset
        self.records: dict[int, bytes] = {}
        self.epochs: dict[int, int] = {}

    def rewind(self, offset: int) -> None:
        for at in [at for at in self.records if at >= offset]:
            del self.records[at]
        self.epochs = {at: epoch for at, epoch in self.epochs.items() if at < offset}
        self.position = offset


class CursorSimulation:
    """One world.

    Attributes:
        events: what happened, for people.
        reached: how often the situations occurred that a world of this kind must contain.
    """

    def __init__(
        self,
        draws: Draws,
        versions: Iterable[int],
        has_ids: bool,
        truncates: bool = True,
        recreates: bool = False,
        has_replicas: bool = False,
    ) -> None:
        self.draws = draws
        self.events: list[str] = []
        self.reached: Counter[str] = Counter()
        self._violations: list[str] = []
        self._now = 100.0
        self._truncates, self._recreates = truncates, recreates
        self._has_ids = has_ids
        version = draws.choice([*versions])
        self._cluster = SimulatedCluster(version, has_ids, has_replicas)
        self._tail = draws.chance(6)
        fetch = FetchOptions(100, 1 << 20, 1 << 20, 0, "zone" if has_replicas else "")
        self._core = CursorCore(self._cluster, CursorOptions(fetch, self._tail, 5.0, 1 << 20), errors, self)
        self._connections: dict[FetchSession, Connection] = {}
        self._lookup: Lookup | None = None
        self._answer: Any = None
        self._numbers = 0
        self._views: dict[Partition, View] = {}
        self._unnoticed: set[Partition] = set()  # recreated without an ID; no election until the client has noticed
        self._written: dict[bytes, tuple[PartitionLog, int]] = {}
        for topic in TOPICS:
            self._cluster.create(topic, 2, epoch=3, leader=draws.below(3))
        for partition in self._cluster.logs:
            self._start(partition)
        self._note(f"Fetch version {version}, {'a tail' if self._tail else 'a catch-up'}")

    def play(self, steps: int) -> list[str]:
        """Run this many steps, or the recorded ones. Return the violations."""
        moves = [
            self.append,
            self.append,
            self.append,
            self.run_all,
            self.run_all,
            self.mark,
            self.elect,
            self.lose_leader,
            self.truncate,
            self.retain,
        ]
        moves += [self.grow, self.recreate, self.evict_sessions, self.wait, self.disconnect, self.fail_lookup, self.lag]
        moves += [self.seek, self.leave, *[self.act, self.send, self.respond, self.look_up, self.decode, self.read] * 6]
        named = {move.__name__: move for move in moves}
        for name in self.draws.moves(steps, [move.__name__ for move in moves]):
            self._now += 0.02
            named[name]()
            if self._violations:
                return self._violations
        return self._settle()

    def _note(self, event: str) -> None:
        self.events.append(f"{self._now:7.2f} {event}")

    def info(self, text: str, *values: object) -> None:
        """Implements EventLog of the core."""
        self._note(text % values)

    error = info

    def _report(self, violation: str) -> None:
        self._note(f"VIOLATION: {violation}")
        self._violations.append(violation)

    # The cluster

    def _any(self) -> tuple[Partition, PartitionLog]:
        partition = self.draws.choice([*self._cluster.logs])
        return partition, self._cluster.logs[partition]

    def append(self) -> None:
        partition, log = self._any()
        if log.leader is not None:
            for _ in range(self.draws.between(1, 8)):
                self._numbers += 1
                value = b"%d" % self._numbers
                self._written[value] = log, log.end
                log.append(value)
            log.behind = self.draws.below(3)
            self._note(f"{_name(partition)} is written up to {log.end}")

    def mark(self) -> None:
        partition, log = self._any()
        if log.leader is not None:
            log.append(b"")
            self._note(f"{_name(partition)} has a marker before {log.end}")

    def elect(self) -> None:
        partition, log = self._any()
        self._elect(partition, log)

    def _elect(self, partition: Partition, log: PartitionLog) -> None:
        leader = self.draws.below(3)
        if partition in self._unnoticed:
            return
        if self._cluster.version < FIRST_WITH_EPOCHS and leader == log.leader:
            leader = (leader + 1) % 3  # such brokers do not notice that a request is from an earlier epoch
        log.elect(leader)
        self._cluster.publish()
        self._note(f"broker {leader} leads {_name(partition)} in epoch {log.leader_epoch} from {log.end}")

    def lose_leader(self) -> None:
        partition, log = self._any()
        log.leader = None
        self._cluster.publish()
        self._note(f"{_name(partition)} has no leader")

    def truncate(self) -> None:
        partition, log = self._any()
        if partition in self._unnoticed or not self._truncates:
            return
        if log.former and self.draws.chance(3):
            log.bring_back(self.draws.below(len(log.former)))
            self._note(f"{_name(partition)} continues with an earlier log up to {log.end}")
        else:
            log.truncate(max(log.start, log.end - self.draws.below(12)))
            self._note(f"{_name(partition)} is truncated to {log.end}")
        view = self._views[partition]
        if log.end < view.position and view.position - 1 not in view.epochs:
            # Without an epoch, nobody notices this once the log is longer again. See docs/kafka-services.md.
            view.first = view.position
        self._elect(partition, log)

    def retain(self) -> None:
        partition, log = self._any()
        log.retain(min(log.end, log.start + self.draws.below(10)))
        self._note(f"{_name(partition)} starts at {log.start}")

    def grow(self) -> None:
        topic = self.draws.choice(TOPICS)
        number = sum(partition.topic == topic for partition in self._cluster.logs)
        if number < MAX_PARTITIONS:
            self._cluster.add_partition(Partition(topic, number), 3, self.draws.below(3))
            self._start(Partition(topic, number))

    def recreate(self) -> None:
        topic = self.draws.choice(TOPICS)
        partitions = [partition for partition in self._cluster.logs if partition.topic == topic]
        # Without an ID, only an older epoch shows that it is another topic.
        known: Any = [self._core._partitions[partition] for partition in partitions]
        is_recognizable = self._has_ids or all(state.position.leader.epoch > 0 for state in known)
        if not self._recreates or self._unnoticed or not is_recognizable or self.draws.chance(7):
            return
        self._note(f"topic {topic} is recreated")
        self.reached["recreated"] += 1
        self._cluster.create(topic, len(partitions), epoch=0, leader=self.draws.below(3))
        if self._has_ids:
            return
        for partition in partitions:
            self._unnoticed.add(partition)
        for partition in partitions:
            if not self._views[partition].position:  # nothing shows that it is another topic
                self._forget(partition)
                break

    def evict_sessions(self) -> None:
        broker = self.draws.choice(self._cluster.brokers)
        broker.evict_sessions()
        self._note(f"broker {broker.broker.node_id} evicts all sessions")

    def wait(self) -> None:
        self._now += self.draws.choice([0.1, 1.0, 6.0, 40.0, 400.0])

    def lag(self) -> None:
        """Let the metadata be published again, so that earlier states are older."""
        self._cluster.publish()

    # The client

    def _start(self, partition: Partition) -> None:
        log = self._cluster.logs[partition]
        self._cluster.lag = 0
        self._cluster.find_leaders([partition])  # a stream describes its topics before it opens
        self._views[partition] = View(log, log.end)
        self._core.seek({partition: log.end}, {}, {partition.topic: self._cluster.topic_id(partition.topic)})
        self._note(f"the cursor reads {_name(partition)} from {log.end}")

    def seek(self) -> None:
        """Move to a record that was read, with the epoch of the record before: a client has returned with its event ID."""
        partition = self.draws.choice([*self._views])
        view = self._views[partition]
        offsets = [read + 1 for read in view.epochs if read + 1 >= view.log.start]
        if not offsets:
            return
        offset = self.draws.choice(offsets)
        epoch = view.epochs[offset - 1]
        view.rewind(offset)
        view.sought = offset
        self._core.seek({partition: offset}, {partition: epoch}, {})
        self._note(f"the client moves {_name(partition)} to {offset}, after epoch {epoch}")
        self.reached["seek"] += 1

    def _forget(self, partition: Partition) -> None:
        """Start again without history. If the topic was recreated, start all its partitions again, as feeds do."""
        is_current = self._views[partition].log is self._cluster.logs[partition]
        partitions = [partition] if is_current else [at for at in self._views if at.topic == partition.topic]
        self._core.remove(partitions)
        for at in partitions:
            self._unnoticed.discard(at)
            self._start(at)

    def leave(self) -> None:
        """Remove a partition, and add it again at the end of the log."""
        partition = self.draws.choice([*self._views])
        self._note(f"the client leaves {_name(partition)}")
        self._forget(partition)

    def act(self) -> None:
        """Start lookups and fetches, as KafkaCursor does if it has nothing to decode, or within a large response."""
        if self._core.undecoded and not self._tail:
            return
        if self._lookup is None:
            self._lookup = self._core.next_lookup(self._now)
            self._answer = None
        for session in self._core.fetches(self._now):
            self._connections[session] = Connection(session, None)  # type: ignore[arg-type]  # not connected yet

    def _any_connection(self) -> Connection | None:
        return self.draws.choice([*self._connections.values()]) if self._connections else None

    def send(self) -> None:
        connection = self._any_connection()
        if connection is not None and connection.request is None:
            session = connection.session
            request = self._core.request(self._now, session, self._cluster.version)
            self._connections[session] = connection._replace(request=request)

    def respond(self) -> None:
        """Let a broker respond, or the response arrive."""
        connection = self._any_connection()
        if connection is None or connection.request is None:
            return
        session = connection.session
        if connection.response is None:
            response = self._cluster.brokers[session.broker.node_id].fetch(connection.request)
            if response.partitions or response.error_code or self.draws.chance(3):
                self._connections[session] = connection._replace(response=response)
        else:
            del self._connections[session]
            self._describe(connection, connection.response)
            self._core.on_response(self._now, session, connection.response)

    def _describe(self, connection: Connection, response: FetchResponse) -> None:
        node_id = connection.session.broker.node_id
        self.reached["session evicted"] += response.error_code == SESSION_NOT_FOUND
        for data in response.partitions:
            if data.error_code or data.diverging:
                what = f"diverged {data.diverging}" if data.diverging else f"error {data.error_code}"
                topic = data.topic.decode() if len(data.topic) < TOPIC_ID_BYTES else f"topic {data.topic[3]}"
                self._note(f"broker {node_id} responds for {topic}/{data.partition}: {what}")
            self.reached["leader moved"] += data.error_code == NOT_LEADER
            self.reached["diverging"] += data.diverging is not None
            self.reached["replica"] += data.replica >= 0

    def disconnect(self) -> None:
        connection = self._any_connection()
        if connection is not None:
            del self._connections[connection.session]
            self._note(f"the connection to broker {connection.session.broker.node_id} breaks")
            self.reached["connection lost"] += 1
            retry_now = self.draws.chance(3)
            self._core.connection_failed(self._now, connection.session, retry_now)

    def look_up(self) -> None:
        """Let the cluster answer a lookup, or the answer arrive."""
        lookup = self._lookup
        if lookup is None:
            return
        if self._answer is None:
            self._cluster.lag = self.draws.below(MAX_LAG)
            self._answer = lookup.ask(self._cluster)
            return
        self.reached["validated"] += isinstance(lookup, FindEpochs)
        self._core.end_lookup(self._now, lookup, self._answer)
        self._next_lookup()

    def _next_lookup(self) -> None:
        self._lookup, self._answer = self._core.next_lookup(self._now), None

    def fail_lookup(self) -> None:
        if self._lookup is not None:
            self._note(f"{type(self._lookup).__name__} fails")
            self._core.lookup_failed(self._now, self._lookup, KafkaUnavailable("no answer"))
            self._next_lookup()

    def decode(self) -> None:
        """Decode some records, as poll() does before others get their turn."""
        for _ in range(self.draws.between(1, 4)):
            self._core.decode_run()

    def read(self) -> None:
        """Return the decoded records, or handle an error, as poll() and its caller do."""
        for batch in self._core.take_batches():
            self._receive(batch)
        if self._core.undecoded or (error := self._core.next_error(self._now)) is None:
            return
        if not isinstance(error, OffsetOutOfRange):
            self._report(f"poll() raises {type(error).__name__}")
        elif self.draws.chance(7):  # otherwise the log does not answer
            self._resume(error)

    def _resume(self, error: OffsetOutOfRange) -> None:
        held = self._cluster.held(error.partitions)
        resumption = error.resume({partition: self._views[partition].position for partition in error.partitions}, held)
        for partition in self._unnoticed & {*error.partitions}:
            self.reached["recreated topic noticed"] += partition in error.diverged_at
            self._unnoticed.discard(partition)
            self._views[partition] = View(self._cluster.logs[partition], self._views[partition].position)
        for gap in resumption.gaps:
            view = self._views[gap.partition]
            self._note(f"gap in {_name(gap.partition)}: {gap.start} to {gap.end}, {gap.reason}")
            self.reached["truncation" if gap.is_truncation else "retention"] += 1
            if gap.is_truncation:
                common = self._common_end(gap.partition)
                if view.sought <= gap.end < common and not view.log.was_restored:
                    self._report(f"{_name(gap.partition)} is read again from {gap.end}, but agrees up to {common}")
                view.rewind(gap.end)
                # If nothing shows where the log differs, the client continues at its end. A client that has returned does
                # not know the epochs of what it read before.
                is_known = gap.partition in error.diverged_at and gap.end >= view.sought
                view.first = min(view.first, gap.end) if is_known else gap.end
            view.position = gap.end
        for partition, offset in resumption.offsets.items():
            self._views[partition].sought = offset
        self._core.seek(resumption.offsets, resumption.epochs, {})

    def _common_end(self, partition: Partition) -> int:
        """Return the first offset at which the client's records differ from the log."""
        view, log = self._views[partition], self._cluster.logs[partition]
        if view.log is not log:
            return 0
        differing = [entry.offset for entry in log.entries if entry.offset in view.epochs and not _agrees(view, entry)]
        return min([*differing, log.end, view.position])

    def _receive(self, batch: Batch) -> None:
        partition = batch.partition
        view = self._views[partition]
        self._note(f"read {_name(partition)} up to {batch.next_offset} in epoch {batch.leader_epoch}")
        for record in batch.records:
            value = bytes(record.value or b"")
            log, offset = self._written[value]
            if record.offset < view.position:
                self._report(f"{_name(partition)}: record {record.offset} is repeated or out of order")
            if offset != record.offset:
                self._report(f"{_name(partition)}: record {record.offset} was altered")
            if log is not view.log and partition not in self._unnoticed:
                self._report(f"{_name(partition)}: record {record.offset} is of a recreated topic")
            view.records[record.offset] = value
            view.position = record.offset + 1
        if batch.next_offset < view.position:
            self._report(f"{_name(partition)}: the position moves back to {batch.next_offset}")
        for offset in range(max(view.sought, batch.next_offset - 20), batch.next_offset):
            view.epochs.setdefault(offset, batch.leader_epoch)
        view.position = batch.next_offset

    # The end

    def _settle(self) -> list[str]:
        """Let nothing fail any more. The client must read everything that the log holds."""
        self.draws.settle()
        self._note("from now on, nothing fails")
        for partition, log in self._cluster.logs.items():
            if log.leader is None:
                self._elect_in_the_end(partition, log)
            log.behind = 0
        for _ in range(MAX_LAG):
            self._cluster.publish()
        if self._has_ids:
            for partition, view in list(self._views.items()):
                if view.log is not self._cluster.logs.get(partition):  # the feed notices it
                    self._forget(partition)
        for _ in range(MAX_ROUNDS):
            if not self._violations and any(self._missing(partition) for partition in self._views):
                self._now += 0.3
                self.run_all()
        for partition in self._views:
            if missing := self._missing(partition):
                self._report(missing)
        return self._violations

    def _elect_in_the_end(self, partition: Partition, log: PartitionLog) -> None:
        if partition in self._unnoticed:
            log.leader = 0
        else:
            self._elect(partition, log)

    def run_all(self) -> None:
        """Let everything that is in flight arrive, and read it."""
        self.act()
        for _ in range(3):
            self.look_up()
        for _ in range(3 * len(self._connections)):
            self.send()
            self.respond()
        for _ in range(4):
            self.decode()
            self.read()

    def _missing(self, partition: Partition) -> str:
        """Return why the client does not have what the log holds, or ""."""
        view, log = self._views[partition], self._cluster.logs[partition]
        if view.position != log.end or partition in self._unnoticed:
            state = type(self._core._partitions[partition]).__name__
            return f"{_name(partition)} is stuck in {state} at {view.position} of {log.end}"
        for entry in log.entries:
            if entry.offset >= view.first and not _agrees(view, entry):
                has = view.records.get(entry.offset)
                return f"{_name(partition)}: the client has {has} at {entry.offset} instead of {entry.value}"
        return ""


def _agrees(view: View, entry: Entry) -> bool:
    return view.records.get(entry.offset, b"") == entry.value and view.epochs.get(entry.offset) == entry.epoch


def _name(partition: Partition) -> str:
    return f"{partition.topic}/{partition.partition}"
