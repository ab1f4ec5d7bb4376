"""Producers that keep what was acknowledged, and an independent consumer. Both use only kafka-python."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import gevent
from gevent.lock import RLock
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from tests.history.checker import Acknowledged, Bounds, StoredRecord
from tests.history.wire import Partition

POLL_MS = 200
MAX_POLLS_WITHOUT_PROGRESS = 100
WATCH_EVERY_S = 0.2
WATCH_TIMEOUT_S = 10.0
METADATA_MAX_AGE_MS = 500  # so that a watch sees new partitions


class Writer:
    """A producer that keeps the acknowledged records. With a transactional ID it writes in transactions.

    Attributes:
        acknowledged: the acknowledged records. Those of a transaction are added after its commit.
    """

    def __init__(self, bootstrap_servers: str, transactional_id: str | None = None, **settings: Any) -> None:
        self.acknowledged: list[Acknowledged] = []
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
        """Append a record, at the latest during the next flush()."""
        sent = self._producer.send(
            topic, value, key=key, partition=partition, headers=list(headers), timestamp_ms=timestamp_ms
        )
        self._sent.append((sent, key, value))

    def flush(self) -> None:
        self._producer.flush()
        self._keep(committed=True)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def end(self, commit: bool) -> None:
        self._producer.flush()
        _ = self._producer.commit_transaction() if commit else self._producer.abort_transaction()
        self._keep(committed=commit)

    def close(self) -> None:
        self._producer.close()

    def _keep(self, committed: bool) -> None:
        sent, self._sent = self._sent, []
        for future, key, value in sent:
            if committed and future.succeeded():
                sent_to = future.value
                where = sent_to.topic, sent_to.partition, sent_to.offset
                self.acknowledged.append(Acknowledged(*where, key, value, at=time.monotonic()))


class Witness:
    """An independent consumer that reads topics from the start.

    Args:
        topics: the topics to read. More may be added to this list.
        topic_id, epoch: the version under which it stores the records; see StoredRecord.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        topics: Sequence[str],
        topic_id: int = 0,
        epoch: int = 0,
        isolation_level: str = "read_committed",
    ) -> None:
        self.stored: list[StoredRecord] = []
        self._version = topic_id, epoch
        self._times: dict[tuple[Partition, int], int | None] = {}
        self._topics = topics
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation_level,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    def read(self) -> dict[Partition, int]:
        """Read up to the current ends of the topics. Return these ends by partition."""
        ends = self.ends()
        missing = {TopicPartition(*partition) for partition in ends} - self._consumer.assignment()
        if missing:
            self._consumer.assign([*self._consumer.assignment(), *missing])
        idle = 0
        while any(self._consumer.position(TopicPartition(*partition)) < end for partition, end in ends.items()):
            batches = self._consumer.poll(timeout_ms=POLL_MS)
            idle = 0 if batches else idle + 1
            assert idle < MAX_POLLS_WITHOUT_PROGRESS, "the independent consumer is stuck"
            self.stored += [self._stored_record(record) for records in batches.values() for record in records]
        return ends

    def ends(self) -> dict[Partition, int]:
        return self._offsets(self._consumer.end_offsets)

    def firsts(self) -> dict[Partition, int]:
        return self._offsets(self._consumer.beginning_offsets)

    def _offsets(self, ask: Callable[[list[TopicPartition]], dict[TopicPartition, int]]) -> dict[Partition, int]:
        partitions = [
            TopicPartition(topic, partition) for topic in self._topics for partition in self._partitions(topic)
        ]
        try:
            return {(partition.topic, partition.partition): offset for partition, offset in ask(partitions).items()}
        except KeyError as error:  # kafka-python looks up a partition that the response lacks
            raise KafkaTimeoutError(f"no offset of {error}") from error

    def first_at(self, partition: Partition, timestamp: int) -> int | None:
        """Return the first offset of a partition at or after a timestamp in milliseconds, or None."""
        if (partition, timestamp) not in self._times:
            first = self._consumer.offsets_for_times({TopicPartition(*partition): timestamp})[
                TopicPartition(*partition)
            ]
            self._times[partition, timestamp] = first.offset if first else None
        return self._times[partition, timestamp]

    def close(self) -> None:
        self._consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        return sorted(self._consumer.partitions_for_topic(topic) or ())

    def _stored_record(self, record: Any) -> StoredRecord:
        where = record.topic, record.partition, record.offset, record.timestamp
        return StoredRecord(*where, record.key, record.value, tuple(record.headers), *self._version)


class Watch:
    """Records the bounds of topics until it is closed. While Kafka does not answer, it records nothing.

    Attributes:
        topics: the topics. Those that do not exist are ignored.
    """

    def __init__(self, bootstrap_servers: str | list[str], topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self.bounds: defaultdict[Partition, list[Bounds]] = defaultdict(list)
        self._bootstrap_servers = bootstrap_servers
        self._witness: Witness | None = None
        self._lock = RLock()
        self._watching = gevent.spawn(self._watch)

    def now(self) -> None:
        """Record the bounds now."""
        with self._lock, gevent.Timeout(WATCH_TIMEOUT_S, KafkaTimeoutError):
            try:
                self._record()
            except KafkaError:
                self._forget_witness()
                raise

    def close(self) -> None:
        self._watching.kill()
        self._forget_witness()

    def _watch(self) -> None:
        while True:
            with suppress(KafkaError):
                self.now()
            gevent.sleep(WATCH_EVERY_S)

    def _record(self) -> None:
        self._witness = witness = self._witness or Witness(self._bootstrap_servers, self.topics)
        asked = time.monotonic()
        firsts, ends = witness.firsts(), witness.ends()
        for partition in firsts.keys() & ends.keys():
            self.bounds[partition].append(Bounds(asked, time.monotonic(), firsts[partition], ends[partition]))

    def _forget_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()
