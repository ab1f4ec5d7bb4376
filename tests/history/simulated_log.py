"""A log behind the brokers of a simulated cluster. Its cursors fetch, look up leaders and back off as Kafka cursors do.

Without faults, whatever a cursor requests arrives before poll() returns. A list of faults decides what happens instead in
the next calls of poll(): a request or a response stays in flight, the metadata is outdated, or the connections break.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import NamedTuple

import gevent

from kafkasse.errors import TopicNotAvailable
from kafkasse.kafka.old_brokers import UNKNOWN_OFFSET
from kafkasse.log import Batch, OffsetAndEpoch, OffsetRange, Partition, Topic
from tests.history.draws import Draws
from tests.history.simulated_cluster import MARKER, PartitionLog, SimulatedCluster
from tests.history.simulated_cursor import MAX_LAG, CursorDriver

FIRST_EPOCH = 3
MAX_ROUNDS = 30  # of requests and responses in one call of poll()


class ClusterType(NamedTuple):
    """The newest Fetch version, whether topics have IDs, and whether consumers may read from followers."""

    version: int
    has_ids: bool
    has_replicas: bool


CLUSTERS_WITH_IDS = ClusterType(13, True, False), ClusterType(17, True, False), ClusterType(13, True, True)
CLUSTERS = *CLUSTERS_WITH_IDS, ClusterType(12, False, False), ClusterType(9, False, False), ClusterType(11, False, True)


class SimulatedLog:
    """Implements log.Log. Writers call the methods that MemoryLog has, too.

    Args:
        draws: draws the new leaders.
        cluster_type: what the brokers support.
        reached: see Simulation.
        note: adds an event, for people.

    Attributes:
        violations: what the cursors do wrong.
        faults: the names of what happens in the next calls of poll(), in this order. After the last one, there are none.
        while_closing: called whenever a cursor closes.
        before_lookup: called once, before the next lookup of offsets.
    """

    def __init__(
        self, draws: Draws, cluster_type: ClusterType, reached: Counter[str], note: Callable[[str], None]
    ) -> None:
        self.draws, self.reached, self.note = draws, reached, note
        self.cluster = SimulatedCluster(*cluster_type)
        self.now = 100.0
        self.violations: list[str] = []
        self.report = self.violations.append
        self.faults: deque[str] = deque()
        self.while_closing: Callable[[], None] = lambda: None
        self.before_lookup: Callable[[], None] = lambda: None

    # Writers

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, or add partitions to it."""
        existing = self._count(topic)
        if not existing:
            self.cluster.create(topic, partitions, FIRST_EPOCH, leader=0)
        for number in range(existing, partitions if existing else 0):
            self.cluster.add_partition(Partition(topic, number), FIRST_EPOCH, number % len(self.cluster.brokers))

    def delete(self, topic: str) -> None:
        self.cluster.delete(topic)

    def append(
        self, topic: str, value: bytes | None, partition: int = 0, key: bytes | None = None, timestamp: int = 1000
    ) -> int:
        log = self._writable(topic, partition)
        log.append(value, key, timestamp)
        return log.end - 1

    def append_marker(self, topic: str, partition: int = 0) -> None:
        self._writable(topic, partition).append(MARKER)

    def _writable(self, topic: str, partition: int) -> PartitionLog:
        log = self._log(topic, partition)
        if log.leader is None:
            self.elect_leader(topic, partition)
        return log

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        self._log(topic, partition).retain(offset)

    def truncate(self, topic: str, offset: int, partition: int = 0) -> None:
        self._log(topic, partition).truncate(offset)
        self.elect_leader(topic, partition)

    def elect_leader(self, topic: str, partition: int = 0, leader: int | None = None) -> None:
        log = self._log(topic, partition)
        log.elect(((log.leader or 0) + 1) % len(self.cluster.brokers) if leader is None else leader)
        self.cluster.publish()
        self.note(f"broker {log.leader} leads {topic}/{partition} in epoch {log.leader_epoch} from {log.end}")

    def lose_leader(self, topic: str, partition: int = 0) -> None:
        self._log(topic, partition).leader = None
        self.cluster.publish()
        self.note(f"{topic}/{partition} has no leader")

    def calm(self) -> None:
        """Let there be no faults, and leaders that all followers have caught up with."""
        self.faults.clear()
        for partition, log in self.cluster.logs.items():
            log.behind = 0
            if log.leader is None:
                self.elect_leader(*partition)

    def _log(self, topic: str, partition: int) -> PartitionLog:
        return self.cluster.logs[Partition(topic, partition)]

    def _count(self, topic: str) -> int:
        return sum(partition.topic == topic for partition in self.cluster.logs)

    def bounds(self, partition: Partition) -> OffsetRange:
        """Return the offsets that a partition holds, even if it has no leader."""
        return self.cluster.held([partition])[partition]

    # log.Log

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        names = [topic for topic in dict.fromkeys(topics) if self._count(topic)]
        self.cluster.find_leaders([partition for partition in self.cluster.logs if partition.topic in names])
        return {name: Topic(self._count(name), self.cluster.topic_id(name)) for name in names}

    def topic_names(self) -> set[str]:
        return {partition.topic for partition in self.cluster.logs}

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        before_lookup, self.before_lookup = self.before_lookup, lambda: None
        before_lookup()
        return self.cluster.held(self._with_leaders(partitions))

    def offsets_at(self, timestamps: Mapping[Partition, int]) -> dict[Partition, int]:
        logs = {partition: self.cluster.logs[partition] for partition in self._with_leaders(timestamps)}
        return {
            partition: next(
                (at.offset for at in log.entries if at.value != MARKER and at.timestamp >= timestamps[partition]),
                log.end,
            )
            for partition, log in logs.items()
        }

    def _with_leaders(self, partitions: Iterable[Partition]) -> list[Partition]:
        wanted = list(partitions)
        if not self.cluster.logs.keys() >= set(wanted):
            raise TopicNotAvailable("A topic of this stream no longer exists, or the server may no longer read it.")
        return [partition for partition in wanted if self.cluster.logs[partition].leader is not None]

    def epoch_ends(self, epochs: Mapping[Partition, int]) -> dict[Partition, OffsetAndEpoch]:
        self.cluster.lag = 0  # kafkasse.kafka.log looks the leaders up again if they do not answer
        self.cluster.find_leaders(epochs)
        ends = self.cluster.find_epochs(epochs)
        return {
            partition: OffsetAndEpoch(end[1], end[0])
            for partition, end in ends.items()
            if end is not None and end[1] != UNKNOWN_OFFSET
        }

    def recreated(self, epochs: Mapping[Partition, int]) -> Set[Partition]:
        return self.cluster.recreated(epochs)

    def cursor(
        self,
        offsets: Mapping[Partition, int],
        tail: bool = False,
        epochs: Mapping[Partition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> SimulatedCursor:
        if len(self.cluster.known_leaders(offsets)) < len(offsets):
            self.cluster.find_leaders(offsets)
        cursor = SimulatedCursor(self, tail)
        cursor.seek(offsets, epochs, topic_ids)
        return cursor

    @property
    def recent(self) -> SimulatedLog:
        return self

    def totals(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


class SimulatedCursor:
    """Implements log.Cursor."""

    def __init__(self, log: SimulatedLog, tail: bool) -> None:
        self._log = log
        self._driver = CursorDriver(log, tail)
        self._core = self._driver.core

    def seek(
        self,
        offsets: Mapping[Partition, int],
        epochs: Mapping[Partition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._core.seek(offsets, epochs or {}, topic_ids or {})

    def remove(self, partitions: Iterable[Partition]) -> None:
        self._core.remove(partitions)

    def poll(self, timeout_s: float) -> list[Batch]:
        self._log.now += 0.02
        if self._log.faults:
            FAULTS[self._log.faults.popleft()](self._driver)
            return self._take()
        has_moved = True
        for _ in range(MAX_ROUNDS):
            if (batches := self._take()) or not has_moved:
                break
            has_moved = self._driver.run_all()
        if not batches and timeout_s:
            gevent.sleep(0)  # a greenlet that waits for records must not keep the others from making them readable
        return batches

    def _take(self) -> list[Batch]:
        batches = self._core.take_batches()
        if not (batches or self._core.undecoded) and (error := self._core.next_error(self._log.now)) is not None:
            raise error
        return batches

    def close(self) -> None:
        self._core.close()
        self._log.while_closing()


def _decode_one(driver: CursorDriver) -> None:
    """Let everything arrive, but decode only some of it."""
    driver.send_all()
    driver.respond_all()
    driver.receive_all()
    driver.core.decode_run()


FAULTS: Mapping[str, Callable[[CursorDriver], object]] = {
    "the requests stay in flight": CursorDriver.send_all,
    "the responses stay in flight": CursorDriver.respond_all,
    "some records are decoded": _decode_one,
    "the metadata is outdated": lambda driver: (driver.act(), driver.look_up_all(lag=MAX_LAG - 1)),
    "the lookup fails": lambda driver: (driver.act(), driver.fail_lookup()),
    "all connections break": CursorDriver.disconnect_all,
    "nothing arrives": lambda driver: None,
}
