"""One Spark for all tests of the pipelines, and topics of their own for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from kafkasse.broker import EmbeddedBroker
from kafkasse.pipelines.session import session
from tests.pipelines.kit import Record
from tests.support.kafka import Cluster

ANSWER_TIMEOUT_MS = 60_000
PARTITIONS = 3


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session as `kafkasse pipeline run` has it."""
    with session("kafkasse tests") as running:
        yield running


class Topics:
    """A source to write to and a sink to read from."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.kafka = {"bootstrap.servers": broker.bootstrap_servers}
        self.cluster = Cluster(broker.bootstrap_servers)
        self.source = self.cluster.create(f"{name}-source", PARTITIONS)
        self.sink = self.cluster.create(f"{name}-sink")
        self._reader = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, consumer_timeout_ms=ANSWER_TIMEOUT_MS)
        self._reader.assign([TopicPartition(self.sink, 0)])
        self._reader.seek_to_beginning()

    def send(self, *records: Record) -> None:
        """To the partition that the key says, as Kafka's own clients do."""
        for key, value in records:
            self.cluster.send(self.source, value, key=key, partition=_partition(key))

    def transaction(self, record: Record, commit: bool) -> None:
        """Send it in a transaction that is committed or aborted."""
        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers, transactional_id=self.source)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.source, key=record[0], value=record[1], partition=_partition(record[0]))
        producer.flush()
        _ = producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()

    def read(self, enough: Callable[[dict[str, bytes | None]], bool]) -> list[tuple[str, bytes | None]]:
        """What comes out from here on, until the newest value of each key is as wanted."""
        newest: dict[str, bytes | None] = {}
        seen = []
        for record in self._reader:
            newest[record.key.decode()] = record.value
            seen.append((record.key.decode(), record.value))
            if enough(newest):
                return seen
        raise AssertionError(f"waited {ANSWER_TIMEOUT_MS} ms and had no more than {newest}")

    def close(self) -> None:
        self._reader.close()
        self.cluster.close()


def _partition(key: bytes | None) -> int:
    return sum(key or b"") % PARTITIONS


@pytest.fixture
def topics(broker: EmbeddedBroker, fresh_name: str) -> Iterator[Topics]:
    """Two topics that no other test uses."""
    made = Topics(broker, fresh_name)
    yield made
    made.close()
