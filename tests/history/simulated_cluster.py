"""A Kafka cluster without sockets, greenlets or a clock: logs, leaders, metadata, and brokers that answer Fetch requests.

The objects of kafkasse.kafka.fetch_protocol are the requests and responses, so nothing is encoded but the record batches.
The rules are those of Kafka: Partition.readRecords(), LeaderEpochFileCache.endOffsetFor() and FetchSession.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from kafkasse.kafka.fetch_protocol import (
    BY_TOPIC_ID,
    FIRST_WITH_DIVERGENCE,
    NO_REPLICA,
    Broker,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    Leader,
    PartitionData,
    short_topic_id,
)
from kafkasse.kafka.old_brokers import UNKNOWN_OFFSET, is_of_another_topic
from kafkasse.log import UNKNOWN_EPOCH, OffsetRange, Partition
from tests.kafka.fake_broker import batch, batch_of

OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, SESSION_NOT_FOUND, SESSION_EPOCH, FENCED, UNKNOWN_LEADER_EPOCH, UNKNOWN_ID = (
    1, 3, 6, 70, 71, 74, 75, 100,
)  # fmt: skip
FIRST_WITH_SESSIONS, FIRST_WITH_EPOCHS = 7, 9
MAX_BATCHES = 3  # in a response, for one partition
PAYLOAD = b"x" * 20


MARKER = b""  # the value of a transaction marker


class Entry(NamedTuple):
    """A record, or a transaction marker."""

    offset: int
    epoch: int
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 1000


class PartitionLog:
    """The log of a partition. A recreated topic has other logs.

    Attributes:
        former: logs that other replicas hold, and which an unclean election may bring back.
        leader: the node ID of the leader, or None.
        behind: how many records the followers lack.
        was_restored: an election restored lost records.
    """

    def __init__(self, epoch: int, leader: int) -> None:
        self.start = 0
        self.entries: list[Entry] = []  # from offset `start` on, without holes
        self.epochs: list[tuple[int, int]] = [(epoch, 0)]
        self.former: list[tuple[list[Entry], list[tuple[int, int]], int]] = []
        self.leader: int | None = leader
        self.leader_epoch = epoch
        self.behind = 0
        self.was_restored = False

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def append(self, value: bytes | None, key: bytes | None = None, timestamp: int = 1000) -> None:
        self.entries.append(Entry(self.end, self.leader_epoch, value, key, timestamp))

    def elect(self, leader: int) -> None:
        self.leader, self.leader_epoch = leader, self.leader_epoch + 1
        self.epochs = [*self._written_epochs(), (self.leader_epoch, self.end)]

    def truncate(self, end: int) -> None:
        """Lose the records from `end` on. The caller elects a leader then, as after bring_back()."""
        self.former.append((self.entries, self.epochs, self.start))
        self.entries = self.entries[: max(0, end - self.start)]
        self.epochs = self._written_epochs()

    def _written_epochs(self) -> list[tuple[int, int]]:
        """Return the epochs that have records. Kafka forgets the others in the next election."""
        return [(epoch, start) for epoch, start in self.epochs if start < self.end]

    def bring_back(self, number: int) -> None:
        """Continue with a log that another replica still holds."""
        entries, epochs, start = self.former[number]
        self.former.append((self.entries, self.epochs, self.start))
        retained = max(start, self.start)
        self.was_restored = True
        self.entries, self.epochs, self.start = list(entries), list(epochs), start
        self.retain(min(retained, self.end))

    def retain(self, start: int) -> None:
        self.entries = self.entries[start - self.start :]
        self.start = start
        later = [(epoch, max(begin, start)) for epoch, begin in self.epochs]
        self.epochs = [begun for at, begun in enumerate(later) if at == len(later) - 1 or later[at + 1][1] > start]

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the newest epoch that is not newer than `epoch`, and its end offset."""
        if epoch > self.epochs[-1][0]:
            return UNKNOWN_EPOCH, UNKNOWN_OFFSET
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        end = next(start for known, start in self.epochs if known > epoch)
        return max((known for known, _ in self.epochs if known <= epoch), default=epoch), end

    def records(self, offset: int, end: int) -> bytes:
        """Return up to MAX_BATCHES batches from the one with `offset` on."""
        entries = self.entries[offset - self.start : end - self.start][: 2 * MAX_BATCHES]
        batches: list[list[Entry]] = []
        for entry in entries:
            last = batches[-1] if batches else []
            is_record = entry.value != MARKER and entry.offset % 2
            if is_record and last and last[-1].epoch == entry.epoch and last[-1].value != MARKER:
                last.append(entry)
            else:
                batches.append([entry])
        return b"".join(_encoded(tuple(entries)) for entries in batches[:MAX_BATCHES])


@lru_cache(4096)
def _encoded(entries: tuple[Entry, ...]) -> bytes:
    # A batch that compaction has emptied takes up its offset like a transaction marker does.
    from kafkasse.kafka import batches

    first = entries[0]
    if first.value != MARKER:
        records = [(entry.timestamp, entry.key, entry.value) for entry in entries]
        return batch_of(first.offset, records, epoch=first.epoch)
    empty = bytearray(batch(first.offset, b"", epoch=first.epoch)[: batches._HEADER_V2.size])
    empty[8:12] = (len(empty) - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = batches.crc32c(bytes(empty[21:])).to_bytes(4, "big")
    return bytes(empty)


class _Session:
    def __init__(self) -> None:
        self.epoch = 1
        self.request: FetchRequest | None = None  # the last one, which may wait for records
        self.partitions: dict[tuple[bytes, int], FetchPartition] = {}


class SimulatedBroker:
    """Answers Fetch requests."""

    def __init__(self, cluster: SimulatedCluster, broker: Broker) -> None:
        self.broker = broker
        self._cluster = cluster
        self._sessions: dict[int, _Session] = {}

    def evict_sessions(self) -> None:
        self._sessions.clear()

    def contents(self, session_id: int) -> frozenset[tuple[bytes, int]] | None:
        """Return the topics and partitions of a session, if it exists."""
        session = self._sessions.get(session_id)
        return None if session is None else frozenset(session.partitions)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        assert not {partition[:2] for partition in request.partitions} & set(request.forgotten), (
            "forgotten and requested"
        )
        session_id, epoch = request.session
        if request.version < FIRST_WITH_SESSIONS or epoch < 0:
            return self._respond(request, request.partitions, 0, is_full=True)
        if epoch == 0:
            self._sessions.pop(session_id, None)
            session_id = next(self._cluster.numbers)
            self._sessions[session_id] = session = _Session()
        elif session_id not in self._sessions:
            return FetchResponse(0, 0, SESSION_NOT_FOUND, 0, [])
        else:
            session = self._sessions[session_id]
            if session.request is not request:
                if epoch != session.epoch:
                    return FetchResponse(0, 0, SESSION_EPOCH, 0, [])
                session.epoch += 1
                session.request = request
        for name in request.forgotten:
            session.partitions.pop(name, None)
        session.partitions.update(
            {(partition.topic, partition.partition): partition for partition in request.partitions}
        )
        return self._respond(request, session.partitions.values(), session_id, is_full=epoch == 0)

    def _respond(
        self, request: FetchRequest, partitions: Iterable[FetchPartition], session_id: int, is_full: bool
    ) -> FetchResponse:
        data = [self._read(request, partition) for partition in partitions]
        changed = [
            partition
            for partition in data
            if is_full or partition.records or partition.error_code or partition.diverging or partition.replica >= 0
        ]
        return FetchResponse(0, 0, 0, session_id, changed)

    def _read(self, request: FetchRequest, wanted: FetchPartition) -> PartitionData:
        by_id = request.version >= BY_TOPIC_ID
        log = self._cluster.find(wanted.topic, wanted.partition, by_id)

        def result(
            error: int = 0,
            records: bytes = b"",
            diverging: tuple[int, int] | None = None,
            replica: int = NO_REPLICA,
        ) -> PartitionData:
            return PartitionData(wanted.topic, wanted.partition, error, memoryview(records), (), diverging, replica)

        if log is None:
            return result(UNKNOWN_ID if by_id else UNKNOWN_TOPIC)
        is_leader = log.leader == self.broker.node_id
        if not is_leader and not (self._cluster.has_replicas and log.leader is not None):
            return result(NOT_LEADER)
        if request.version >= FIRST_WITH_EPOCHS and wanted.leader_epoch != log.leader_epoch:
            return result(FENCED if wanted.leader_epoch < log.leader_epoch else UNKNOWN_LEADER_EPOCH)
        end = log.end if is_leader else max(log.start, log.end - log.behind)
        if not log.start <= wanted.fetch_offset <= end:
            # With a last epoch, Kafka first checks whether the log has diverged.
            is_after = wanted.fetch_offset > end
            if not (is_after and is_leader and self._checks_divergence(request, wanted)):
                return result(OUT_OF_RANGE)
        if self._checks_divergence(request, wanted):
            epoch, epoch_end = log.end_of(wanted.last_fetched_epoch)
            if epoch == UNKNOWN_EPOCH:
                return result(OUT_OF_RANGE)
            if epoch < wanted.last_fetched_epoch or epoch_end < wanted.fetch_offset:
                return result(diverging=(epoch, epoch_end))
        if is_leader and self._cluster.has_replicas and request.options.rack:
            return result(replica=(self.broker.node_id + 1) % len(self._cluster.brokers))
        return result(records=log.records(wanted.fetch_offset, end))

    @staticmethod
    def _checks_divergence(request: FetchRequest, wanted: FetchPartition) -> bool:
        return request.version >= FIRST_WITH_DIVERGENCE and wanted.last_fetched_epoch != UNKNOWN_EPOCH


class SimulatedCluster:
    """Implements Cluster of the core.

    Args:
        version: the newest Fetch version of the brokers.
        has_ids: topics have IDs.
        has_replicas: consumers may read from followers.

    Attributes:
        metadata: all states of the metadata so far.
        lag: how many changes behind the metadata in lookup answers is.
    """

    def __init__(self, version: int, has_ids: bool, has_replicas: bool) -> None:
        self.version = version
        self.has_replicas = has_replicas
        self.numbers = count(1)
        self.brokers = [SimulatedBroker(self, Broker(number, f"broker-{number}", 9092)) for number in range(3)]
        self.lag = 0
        self.logs: dict[Partition, PartitionLog] = {}
        self.metadata: list[dict[Partition, Leader]] = [{}]
        self._ids: dict[str, bytes] = {}
        self._has_ids = has_ids
        self._known: dict[Partition, Leader] = {}

    # Changes

    def create(self, topic: str, partitions: int, epoch: int, leader: int) -> None:
        """Create a topic, or replace one of the same name."""
        for partition in [partition for partition in self.logs if partition.topic == topic]:
            del self.logs[partition]
        self._ids[topic] = (next(self.numbers) << 96).to_bytes(16, "big") if self._has_ids else b""
        for number in range(partitions):
            self.add_partition(Partition(topic, number), epoch, leader)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}
        self.publish()

    def add_partition(self, partition: Partition, epoch: int, leader: int) -> None:
        self.logs[partition] = PartitionLog(epoch, leader)
        self.publish()

    def publish(self) -> None:
        """Add the current state to the metadata."""
        self.metadata.append(
            {
                partition: Leader(
                    self.brokers[log.leader].broker,
                    log.leader_epoch,
                    partition.topic.encode(),
                    self._ids[partition.topic],
                )
                for partition, log in self.logs.items()
                if log.leader is not None
            }
        )

    def topic_id(self, topic: str) -> str:
        """Return the ID by which the client knows the topic."""
        return short_topic_id(self._ids[topic])

    # What brokers know

    def find(self, topic: bytes, partition: int, by_id: bool) -> PartitionLog | None:
        name = (
            next((name for name, topic_id in self._ids.items() if topic_id == topic), "") if by_id else topic.decode()
        )
        return self.logs.get(Partition(name, partition))

    def held(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        return {
            partition: OffsetRange(log.start, log.end, log.leader_epoch)
            for partition in partitions
            if (log := self.logs.get(partition)) is not None
        }

    # Cluster

    def known_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        return {partition: self._known[partition] for partition in partitions if partition in self._known}

    def broker(self, node_id: int) -> Broker | None:
        return self.brokers[node_id].broker

    def reports_truncation(self, broker: Broker) -> bool:
        return self.version >= FIRST_WITH_DIVERGENCE

    def find_leaders(self, partitions: Iterable[Partition]) -> dict[Partition, Leader]:
        topics = {partition.topic for partition in partitions}
        metadata = self.metadata[max(0, len(self.metadata) - 1 - self.lag)].items()
        self._known = {partition: leader for partition, leader in self._known.items() if partition.topic not in topics}
        self._known |= {partition: leader for partition, leader in metadata if partition.topic in topics}
        return self.known_leaders(partitions)

    def find_epochs(self, epochs: Mapping[Partition, int]) -> dict[Partition, tuple[int, int] | None]:
        leaders = self.known_leaders(epochs)
        leading = {
            partition: log
            for partition in epochs
            if (log := self.logs.get(partition)) is not None
            and partition in leaders
            and log.leader == leaders[partition].broker.node_id
        }
        return {partition: log.end_of(epochs[partition]) for partition, log in leading.items()}

    def recreated(self, epochs: Mapping[Partition, int]) -> set[Partition]:
        leaders = self.find_leaders(epochs)
        suspects = {
            partition: leader for partition, leader in leaders.items() if is_of_another_topic(leader, epochs[partition])
        }
        return {
            partition
            for partition, leader in suspects.items()
            if (log := self.logs.get(partition)) is not None
            and (log.leader, log.leader_epoch) == (leader.broker.node_id, leader.epoch)
        }
