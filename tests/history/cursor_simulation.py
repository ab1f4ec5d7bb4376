"""A Kafka cursor's core in a simulated cluster: each request, response, lookup and failure is one step.

The client does what KafkaCursor and a feed do: it executes the actions of the core, and continues after gaps. No greenlet
runs and no clock is read. The client remembers the records that it has, and compares them with the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kafkasse.log import Batch, OffsetOutOfRange, Partition
from tests.history.draws import Draws
from tests.history.simulated_cluster import (
    FIRST_WITH_EPOCHS,
    Entry,
    PartitionLog,
    SimulatedCluster,
)
from tests.history.simulated_cursor import MAX_LAG, CursorDriver

TOPICS = "a", "b"
MAX_PARTITIONS = 3
MAX_ROUNDS = 200  # until the client must have read everything, once nothing fails any more


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
        self.now = 100.0
        self._truncates, self._recreates = truncates, recreates
        self._has_ids = has_ids
        version = draws.choice([*versions])
        self.cluster = SimulatedCluster(version, has_ids, has_replicas)
        self._driver = CursorDriver(self, is_tail=draws.chance(6))
        self._core = self._driver.core
        self._numbers = 0
        self._views: dict[Partition, View] = {}
        self._unnoticed: set[Partition] = set()  # recreated without an ID; no election until the client has noticed
        self._written: dict[bytes, tuple[PartitionLog, int]] = {}
        for topic in TOPICS:
            self.cluster.create(topic, 2, epoch=3, leader=draws.below(3))
        for partition in self.cluster.logs:
            self._start(partition)
        self.note(f"Fetch version {version}, {'a tail' if self._driver.is_tail else 'a catch-up'}")

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
        driver = self._driver
        moves += [
            self.grow,
            self.recreate,
            self.evict_sessions,
            self.wait,
            driver.disconnect,
            driver.fail_lookup,
            self.lag,
        ]
        steps_of_cursor = [driver.act, driver.send, driver.respond, driver.look_up, self.decode, self.read]
        moves += [self.seek, self.leave, *steps_of_cursor * 6]
        named = {move.__name__: move for move in moves}
        for name in self.draws.moves(steps, [move.__name__ for move in moves]):
            self.now += 0.02
            named[name]()
            if self._violations:
                return self._violations
        return self._settle()

    def note(self, event: str) -> None:
        self.events.append(f"{self.now:7.2f} {event}")

    def report(self, violation: str) -> None:
        self.note(f"VIOLATION: {violation}")
        self._violations.append(violation)

    # The cluster

    def _any(self) -> tuple[Partition, PartitionLog]:
        partition = self.draws.choice([*self.cluster.logs])
        return partition, self.cluster.logs[partition]

    def append(self) -> None:
        partition, log = self._any()
        if log.leader is not None:
            for _ in range(self.draws.between(1, 8)):
                self._numbers += 1
                value = b"%d" % self._numbers
                self._written[value] = log, log.end
                log.append(value)
            log.behind = self.draws.below(3)
            self.note(f"{_name(partition)} is written up to {log.end}")

    def mark(self) -> None:
        partition, log = self._any()
        if log.leader is not None:
            log.append(b"")
            self.note(f"{_name(partition)} has a marker before {log.end}")

    def elect(self) -> None:
        partition, log = self._any()
        self._elect(partition, log)

    def _elect(self, partition: Partition, log: PartitionLog) -> None:
        leader = self.draws.below(3)
        if partition in self._unnoticed:
            return
        if self.cluster.version < FIRST_WITH_EPOCHS and leader == log.leader:
            leader = (leader + 1) % 3  # such brokers do not notice that a request is from an earlier epoch
        log.elect(leader)
        self.cluster.publish()
        self.note(f"broker {leader} leads {_name(partition)} in epoch {log.leader_epoch} from {log.end}")

    def lose_leader(self) -> None:
        partition, log = self._any()
        log.leader = None
        self.cluster.publish()
        self.note(f"{_name(partition)} has no leader")

    def truncate(self) -> None:
        partition, log = self._any()
        if partition in self._unnoticed or not self._truncates:
            return
        if log.former and self.draws.chance(3):
            log.bring_back(self.draws.below(len(log.former)))
            self.note(f"{_name(partition)} continues with an earlier log up to {log.end}")
        else:
            log.truncate(max(log.start, log.end - self.draws.below(12)))
            self.note(f"{_name(partition)} is truncated to {log.end}")
        view = self._views[partition]
        if log.end < view.position and view.position - 1 not in view.epochs:
            # Without an epoch, nobody notices this once the log is longer again. See docs/kafka-services.md.
            view.first = view.position
        self._elect(partition, log)

    def retain(self) -> None:
        partition, log = self._any()
        log.retain(min(log.end, log.start + self.draws.below(10)))
        self.note(f"{_name(partition)} starts at {log.start}")

    def grow(self) -> None:
        topic = self.draws.choice(TOPICS)
        number = sum(partition.topic == topic for partition in self.cluster.logs)
        if number < MAX_PARTITIONS:
            self.cluster.add_partition(Partition(topic, number), 3, self.draws.below(3))
            self._start(Partition(topic, number))

    def recreate(self) -> None:
        topic = self.draws.choice(TOPICS)
        partitions = [partition for partition in self.cluster.logs if partition.topic == topic]
        # Without an ID, only an older epoch shows that it is another topic.
        known: Any = [self._core._partitions[partition] for partition in partitions]
        is_recognizable = self._has_ids or all(state.position.leader.epoch > 0 for state in known)
        if not self._recreates or self._unnoticed or not is_recognizable or self.draws.chance(7):
            return
        self.note(f"topic {topic} is recreated")
        self.reached["recreated"] += 1
        self.cluster.create(topic, len(partitions), epoch=0, leader=self.draws.below(3))
        if self._has_ids:
            return
        for partition in partitions:
            self._unnoticed.add(partition)
        for partition in partitions:
            if not self._views[partition].position:  # nothing shows that it is another topic
                self._forget(partition)
                break

    def evict_sessions(self) -> None:
        broker = self.draws.choice(self.cluster.brokers)
        broker.evict_sessions()
        self.note(f"broker {broker.broker.node_id} evicts all sessions")

    def wait(self) -> None:
        self.now += self.draws.choice([0.1, 1.0, 6.0, 40.0, 400.0])

    def lag(self) -> None:
        """Let the metadata be published again, so that earlier states are older."""
        self.cluster.publish()

    # The client

    def _start(self, partition: Partition) -> None:
        log = self.cluster.logs[partition]
        self.cluster.lag = 0
        self.cluster.find_leaders([partition])  # a stream describes its topics before it opens
        self._views[partition] = View(log, log.end)
        self._core.seek({partition: log.end}, {}, {partition.topic: self.cluster.topic_id(partition.topic)})
        self.note(f"the cursor reads {_name(partition)} from {log.end}")

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
        self.note(f"the client moves {_name(partition)} to {offset}, after epoch {epoch}")
        self.reached["seek"] += 1

    def _forget(self, partition: Partition) -> None:
        """Start again without history. If the topic was recreated, start all its partitions again, as feeds do."""
        is_current = self._views[partition].log is self.cluster.logs[partition]
        partitions = [partition] if is_current else [at for at in self._views if at.topic == partition.topic]
        self._core.remove(partitions)
        for at in partitions:
            self._unnoticed.discard(at)
            self._start(at)

    def leave(self) -> None:
        """Remove a partition, and add it again at the end of the log."""
        partition = self.draws.choice([*self._views])
        self.note(f"the client leaves {_name(partition)}")
        self._forget(partition)

    def decode(self) -> None:
        """Decode some records, as poll() does before others get their turn."""
        for _ in range(self.draws.between(1, 4)):
            self._core.decode_run()

    def read(self) -> None:
        """Return the decoded records, or handle an error, as poll() and its caller do."""
        for batch in self._core.take_batches():
            self._receive(batch)
        if self._core.undecoded or (error := self._core.next_error(self.now)) is None:
            return
        if not isinstance(error, OffsetOutOfRange):
            self.report(f"poll() raises {type(error).__name__}")
        elif self.draws.chance(7):  # otherwise the log does not answer
            self._resume(error)

    def _resume(self, error: OffsetOutOfRange) -> None:
        held = self.cluster.held(error.partitions)
        resumption = error.resume({partition: self._views[partition].position for partition in error.partitions}, held)
        for partition in self._unnoticed & {*error.partitions}:
            self.reached["recreated topic noticed"] += partition in error.diverged_at
            self._unnoticed.discard(partition)
            self._views[partition] = View(self.cluster.logs[partition], self._views[partition].position)
        for gap in resumption.gaps:
            view = self._views[gap.partition]
            self.note(f"gap in {_name(gap.partition)}: {gap.start} to {gap.end}, {gap.reason}")
            self.reached["truncation" if gap.is_truncation else "retention"] += 1
            if gap.is_truncation:
                common, resumes_at = self._common_end(gap.partition), resumption.offsets[gap.partition]
                if view.sought <= resumes_at < common and not view.log.was_restored:
                    self.report(f"{_name(gap.partition)} is read again from {resumes_at}, but agrees up to {common}")
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
        view, log = self._views[partition], self.cluster.logs[partition]
        if view.log is not log:
            return 0
        differing = [entry.offset for entry in log.entries if entry.offset in view.epochs and not _agrees(view, entry)]
        return min([*differing, log.end, view.position])

    def _receive(self, batch: Batch) -> None:
        partition = batch.partition
        view = self._views[partition]
        self.note(f"read {_name(partition)} up to {batch.next_offset} in epoch {batch.leader_epoch}")
        for record in batch.records:
            value = bytes(record.value or b"")
            log, offset = self._written[value]
            if record.offset < view.position:
                self.report(f"{_name(partition)}: record {record.offset} is repeated or out of order")
            if offset != record.offset:
                self.report(f"{_name(partition)}: record {record.offset} was altered")
            if log is not view.log and partition not in self._unnoticed:
                self.report(f"{_name(partition)}: record {record.offset} is of a recreated topic")
            view.records[record.offset] = value
            view.position = record.offset + 1
        if batch.next_offset < view.position:
            self.report(f"{_name(partition)}: the position moves back to {batch.next_offset}")
        for offset in range(max(view.sought, batch.next_offset - 20), batch.next_offset):
            view.epochs.setdefault(offset, batch.leader_epoch)
        view.position = batch.next_offset

    # The end

    def _settle(self) -> list[str]:
        """Let nothing fail any more. The client must read everything that the log holds."""
        self.draws.settle()
        self.note("from now on, nothing fails")
        for partition, log in self.cluster.logs.items():
            if log.leader is None:
                self._elect_in_the_end(partition, log)
            log.behind = 0
        for _ in range(MAX_LAG):
            self.cluster.publish()
        if self._has_ids:
            for partition, view in list(self._views.items()):
                if view.log is not self.cluster.logs.get(partition):  # the feed notices it
                    self._forget(partition)
        for _ in range(MAX_ROUNDS):
            if not self._violations and any(self._missing(partition) for partition in self._views):
                self.now += 0.3
                self.run_all()
        for partition in self._views:
            if missing := self._missing(partition):
                self.report(missing)
        return self._violations

    def _elect_in_the_end(self, partition: Partition, log: PartitionLog) -> None:
        if partition in self._unnoticed:
            log.leader = 0
        else:
            self._elect(partition, log)

    def run_all(self) -> None:
        """Let everything that is in flight arrive, and read it."""
        self._driver.act()
        for _ in range(3):
            self._driver.look_up()
        for _ in range(3 * len(self.cluster.brokers)):
            self._driver.send()
            self._driver.respond()
        for _ in range(4):
            self.decode()
            self.read()

    def _missing(self, partition: Partition) -> str:
        """Return why the client does not have what the log holds, or ""."""
        view, log = self._views[partition], self.cluster.logs[partition]
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
