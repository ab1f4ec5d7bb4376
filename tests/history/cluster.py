"""Those who write to topics and keep what was acknowledged, and the witness who reads all of it, by kafka-python alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.history.checker import Acknowledged, Written
from tests.history.wire import Place

POLL_MS = 200
POLLS_WITHOUT_PROGRESS_MAX = 100


class Writer:
    """A producer that keeps what was acknowledged, in transactions of its own where it has an id for them.

    Attributes:
        acknowledged: what a broker has said it keeps. What a transaction wrote is here once it is committed.
        failed: how many records were refused or given up.
    """

    def __init__(self, bootstrap_servers: str, transactional_id: str | None = None, **settings: Any) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.failed = 0
        self._sent: list[tuple[Any, bytes | None, bytes | None]] = []
        more = {"transactional_id": transactional_id} if transactional_id else {}
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all", **more, **settings)
        if transactional_id:
            self._producer.init_transactions()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append a record, some time before the next flush() returns."""
        sent = self._producer.send(
            topic, value, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        self._sent.append((sent, key, value))

    def flush(self) -> None:
        """Wait until a broker has said of each record whether it keeps it."""
        self._producer.flush()
        self._keep(committed=True)

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def end(self, commit: bool) -> None:
        """Commit or abort it."""
        self._producer.flush()
        _ = self._producer.commit_transaction() if commit else self._producer.abort_transaction()
        self._keep(committed=commit)

    def close(self) -> None:
        self._producer.close()

    def _keep(self, committed: bool) -> None:
        sent, self._sent = self._sent, []
        for future, key, value in sent:
            if not future.succeeded():
                self.failed += 1
            elif committed:
                told = future.value
                self.acknowledged.append(Acknowledged(told.topic, told.partition, told.offset, key, value))


class Witness:
    """Reads topics from their first record, as anybody could who has never heard of kafkasse.

    Args:
        bootstrap_servers: the cluster.
        topics: what it reads.
        topic_id, epoch: the number under which it notes what it reads; see Written.
        isolation_level: read_committed or read_uncommitted.

    Attributes:
        written: all that it has read so far.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str],
        topic_id: int = 0,
        epoch: int = 0,
        isolation_level: str = "read_committed",
    ) -> None:
        self.written: list[Written] = []
        self._life = topic_id, epoch
        self._times: dict[tuple[Place, int], int | None] = {}
        self._topics = list(topics)
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
        )

    def read(self) -> dict[Place, int]:
        """Read on to where the topics end now. Returns these ends, by place."""
        ends = self.ends()
        missing = {TopicPartition(*place) for place in ends} - self._consumer.assignment()
        if missing:
            self._consumer.assign([*self._consumer.assignment(), *missing])
        idle = 0
        while any(self._consumer.position(TopicPartition(*place)) < end for place, end in ends.items()):
            found = self._consumer.poll(timeout_ms=POLL_MS)
            idle = 0 if found else idle + 1
            assert idle < POLLS_WITHOUT_PROGRESS_MAX, "the witness reads nothing more"
            self.written += [self._written(record) for records in found.values() for record in records]
        return ends

    def ends(self) -> dict[Place, int]:
        """Where the topics end now, by place."""
        places = [TopicPartition(topic, each) for topic in self._topics for each in self._partitions(topic)]
        return {(place.topic, place.partition): end for place, end in self._consumer.end_offsets(places).items()}

    def firsts(self) -> dict[Place, int]:
        """Where they begin now, by place."""
        places = [TopicPartition(topic, each) for topic in self._topics for each in self._partitions(topic)]
        return {(place.topic, place.partition): at for place, at in self._consumer.beginning_offsets(places).items()}

    def first_at(self, place: Place, timestamp: int) -> int | None:
        """The first offset of a place at or after a time, in milliseconds, or None where there is none."""
        if (place, timestamp) not in self._times:
            found = self._consumer.offsets_for_times({TopicPartition(*place): timestamp})[TopicPartition(*place)]
            self._times[place, timestamp] = found.offset if found else None
        return self._times[place, timestamp]

    def close(self) -> None:
        self._consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        return sorted(self._consumer.partitions_for_topic(topic) or ())

    def _written(self, record: Any) -> Written:
        where = record.topic, record.partition, record.offset, record.timestamp
        return Written(*where, record.key, record.value, tuple(record.headers), *self._life)
