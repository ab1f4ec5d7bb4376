"""Opens a KafkaLog with the settings that a test cares about and defaults for all others, writes to it and reads it."""

from __future__ import annotations

from typing import Any

import gevent
from kafka.errors import TopicAlreadyExistsError

from kafkasse.errors import KafkasseError
from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, Cursor, OffsetOutOfRange, Partition, PartitionsFailed
from kafkasse.settings import KafkaSettings
from tests.kafka.fake_broker import FakeBroker, PartitionData
from tests.support.kafka import Cluster, retry

DEFAULTS: dict[str, Any] = {
    "kafka": {},
    "kafka_timeout_s": 5.0,
    "topic_prefix": "",
    "isolation_level": "read_committed",
    "client_rack": "",
    "max_fetch_bytes": 1_048_576,
    "max_decompressed_bytes": 16_777_216,
    "clusters": {},
}


def open_log(bootstrap_servers: str, client: dict[str, Any] | None = None, **settings: Any) -> KafkaLog:
    """Open a log."""
    return KafkaLog(
        KafkaSettings(**{**DEFAULTS, **settings}), {"bootstrap_servers": bootstrap_servers, **(client or {})}
    )


POLL_TIMEOUT_S = 120.0  # turns a hang into a failure


class KafkaWriter(Cluster):
    def create(self, topic: str, partitions: int = 1, replicas: int = 1, **configs: str) -> str:
        # With ZooKeeper, a deleted topic exists a little longer in the background.
        return retry(
            lambda: super(KafkaWriter, self).create(topic, partitions, replicas, **configs), TopicAlreadyExistsError
        )

    def skip(self, topic: str) -> None:
        """Write an aborted transaction and its marker, which take up offsets but are not returned."""
        self.transaction(topic, b"aborted", commit=False)


def take(cursor: Cursor, count: int) -> list[Batch]:
    """Poll until the batches hold `count` records."""
    batches: list[Batch] = []
    with gevent.Timeout(POLL_TIMEOUT_S):
        while sum(len(batch.records) for batch in batches) < count:
            batches += cursor.poll(1)
    return batches


def values(batches: list[Batch], partition: int = 0) -> list[bytes | None]:
    return [record.value for batch in batches if batch.partition.partition == partition for record in batch.records]


def at(number: int) -> Partition:
    return Partition("t", number)


def start_poll(cursor: KafkaCursor) -> gevent.Greenlet:
    """Start a poll(). The value of the greenlet is what it returns or raises."""

    def poll() -> list[Batch] | Exception:
        try:
            return cursor.poll(POLL_TIMEOUT_S)
        except (KafkasseError, OffsetOutOfRange, PartitionsFailed) as error:
            return error

    return gevent.spawn(poll)


def exchange(cursor: KafkaCursor, broker: FakeBroker, *partitions: PartitionData, **rest: Any) -> Any:
    """Poll once, and respond with these partitions. Return what poll() returns or raises."""
    poll = start_poll(cursor)
    broker.respond(*partitions, **rest)
    return poll.get()


def offsets(batches: list[Batch], number: int = 0) -> list[int]:
    return [record.offset for batch in batches if batch.partition == at(number) for record in batch.records]
