"""A source topic and a sink topic for a test of a pipeline, and countries as records. This module does not import Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.kafka import Cluster

Record = tuple[bytes | None, bytes | None]

READ_TIMEOUT_MS = 120_000
PARTITIONS = 3


class Topics:
    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.kafka = {"bootstrap.servers": broker.bootstrap_servers}
        self.cluster = Cluster(broker.bootstrap_servers)
        self.source = self.cluster.create(f"{name}-source", PARTITIONS)
        self.sink = self.cluster.create(f"{name}-sink")
        self._reader = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, consumer_timeout_ms=READ_TIMEOUT_MS)
        self._reader.assign([TopicPartition(self.sink, 0)])
        self._reader.seek_to_beginning()

    def send(self, *records: Record, timestamp_ms: int | None = None) -> None:
        """Append records. The key determines the partition, as with Kafka's own clients."""
        for key, value in records:
            self.cluster.send(self.source, value, key=key, partition=_partition(key), timestamp_ms=timestamp_ms)

    def transaction(self, record: Record, commit: bool) -> None:
        """Append a record in a transaction, which is committed or aborted."""
        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers, transactional_id=self.source)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.source, key=record[0], value=record[1], partition=_partition(record[0]))
        producer.flush()
        _ = producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()

    def read(self, until: Callable[[dict[str, bytes | None]], bool]) -> list[tuple[str, bytes | None]]:
        """Read the sink until the latest values by key satisfy the condition. Returns the records read by this call."""
        latest: dict[str, bytes | None] = {}
        records = []
        for record in self._reader:
            latest[record.key.decode()] = record.value
            records.append((record.key.decode(), record.value))
            if until(latest):
                return records
        raise AssertionError(f"the condition was not met within {READ_TIMEOUT_MS} ms; the latest values: {latest}")

    def close(self) -> None:
        self._reader.close()
        self.cluster.close()


def read(topics: Topics, topic: str, count: int) -> list[Any]:
    """Return the first records of a topic as soon as it contains `count` of them."""
    consumer = KafkaConsumer(bootstrap_servers=topics.cluster.bootstrap_servers, auto_offset_reset="earliest")
    records: list[Any] = []
    deadline_s = time.monotonic() + READ_TIMEOUT_MS / 1000
    while time.monotonic() < deadline_s and len(records) < count:
        if not consumer.assignment():
            partitions = consumer.partitions_for_topic(topic) or ()
            consumer.assign([TopicPartition(topic, partition) for partition in partitions])
            time.sleep(0.1)
            continue
        records += [record for polled in consumer.poll(500).values() for record in polled]
    consumer.close()
    assert len(records) >= count, records
    return records


def _partition(key: bytes | None) -> int:
    return sum(key or b"") % PARTITIONS


@pytest.fixture
def topics(broker: EmbeddedBroker, fresh_name: str) -> Iterator[Topics]:
    """A source and a sink that no other test uses."""
    topics = Topics(broker, fresh_name)
    yield topics
    topics.close()


def country(code: str, size: int, continent: str = "Europe") -> Record:
    """A country's record, as `kafkasse load` creates it from countries.csv."""
    return code.encode(), json.dumps(fields(code, size, continent), ensure_ascii=False).encode()


def fields(code: str, size: int, continent: str = "Europe") -> dict[str, Any]:
    return {"name": f"Land of {code}", "code": code, "continent": continent, "population": 1000, "size": size}


def tombstone(code: str) -> Record:
    return code.encode(), None


def top(value: str | bytes | None) -> list[str]:
    """The country codes in a Top 3, the largest first; empty for a tombstone."""
    return [entry["code"] for entry in json.loads(value)["nrs"]] if value else []
