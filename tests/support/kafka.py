"""Create, fill, grow and delete topics. Each call returns when the cluster has applied the change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

import gevent
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, UnknownBrokerIdError, UnknownTopicOrPartitionError

from tests.support.waiting import POLL_S, TIMEOUT_S, wait_until

REQUEST_TIMEOUT_MS = 20_000
RETRY_BACKOFF_MS = 10  # a producer waits so long before it requests the metadata of a new topic again

Result = TypeVar("Result")


def retry(operation: Callable[[], Result], error: type[Exception] = KafkaError) -> Result:
    """Call `operation` until it does not raise `error`, and return its result. After TIMEOUT_S seconds, raise the error.

    kafka-python's client fails if the first node that it tries is down.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return operation()
        except error:
            if time.monotonic() > deadline:
                raise
        gevent.sleep(POLL_S)


class Admin:
    """An admin client of kafka-python with these settings, which is replaced if it knows no controller.

    After a controller has died, a client may keep its outdated metadata.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._client = KafkaAdminClient(**settings)

    def run(
        self, operation: Callable[[KafkaAdminClient], Result], error: type[KafkaError] = UnknownBrokerIdError
    ) -> Result:
        """Call `operation` with the client, like retry(), until it does not raise `error`."""

        def attempt() -> Result:
            try:
                return operation(self._client)
            except UnknownBrokerIdError:
                self._client.close()
                self._client = retry(lambda: KafkaAdminClient(**self._settings))
                raise

        return retry(attempt, error)

    def close(self) -> None:
        self._client.close()


class Cluster:
    """Changes the cluster at `bootstrap_servers`. `settings` are settings of kafka-python's clients."""

    def __init__(self, bootstrap_servers: str | list[str], **settings: Any) -> None:
        self.bootstrap_servers = bootstrap_servers
        defaults = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "retry_backoff_ms": RETRY_BACKOFF_MS}
        self._settings = {"bootstrap_servers": bootstrap_servers, **defaults, **settings}
        self._admin = Admin(**self._settings)
        self._producer = KafkaProducer(**self._settings, linger_ms=0, metadata_max_age_ms=500)

    def create(self, topic: str, partitions: int = 1, replicas: int = 1, **configs: str) -> str:
        """Create a topic and return its name. In the names of `configs`, underscores stand for dots."""
        return self.create_all([topic], partitions, replicas, **configs)[0]

    def create_all(self, topics: list[str], partitions: int = 1, replicas: int = 1, **configs: str) -> list[str]:
        """Create topics with the same settings and return their names."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": named}
        self._admin.run(lambda admin: admin.create_topics(dict.fromkeys(topics, options)))
        wait_until(lambda: self._have_leaders(topics))
        return topics

    def send(
        self,
        topic: str,
        *values: bytes | None,
        partition: int = 0,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> list[int]:
        """Append records and return their offsets."""
        rest = {"key": key, "partition": partition, "timestamp_ms": timestamp_ms, "headers": list(headers)}
        sent = [self._producer.send(topic, value, **rest) for value in values]
        self._producer.flush()
        return [future.get().offset for future in sent]

    def produce(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Send a record, without waiting for the broker's acknowledgment."""
        self._producer.send(topic, value, partition=partition)

    def records(self, topic: str, partitions: int = 1) -> list[Any]:
        """Return all committed records that a topic contains."""
        assigned, records = [TopicPartition(topic, partition) for partition in range(partitions)], []
        reading = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        with closing(KafkaConsumer(**self._settings, **reading)) as consumer:
            consumer.assign(assigned)
            ends = consumer.end_offsets(assigned)
            while any(consumer.position(partition) < ends[partition] for partition in assigned):
                records += [record for polled in consumer.poll(500).values() for record in polled]
        return records

    def transaction(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Append records in one transaction, and commit or abort it."""
        producer = self._transactional_producer(topic)
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()
        _ = producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()
        # Kafka answers before it has written the marker, but accepts the next producer only afterwards.
        self._transactional_producer(topic).close()

    def _transactional_producer(self, topic: str) -> KafkaProducer:
        producer = KafkaProducer(**self._settings, transactional_id=f"{topic}-writer")
        producer.init_transactions()
        return producer

    def compressed(self, topic: str, codec: str, *values: bytes) -> None:
        """Append records in one compressed batch."""
        producer = KafkaProducer(**self._settings, compression_type=codec, linger_ms=1000)
        for value in values:
            producer.send(topic, value, partition=0)
        producer.close()

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number."""
        self._admin.run(lambda admin: admin.create_partitions({topic: partitions}))
        while self._partitions(topic) != partitions:
            pass
        wait_until(lambda: self._have_leaders([topic]))

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete the records before `offset`, as retention does."""
        self._admin.run(lambda admin: admin.delete_records({TopicPartition(topic, partition): offset}))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.run(lambda admin: admin.delete_topics([topic]))
        while self._partitions(topic):
            pass

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def _have_leaders(self, topics: list[str]) -> bool:
        with suppress(KafkaError):  # a node may not know a new topic yet
            described = self._admin.run(lambda admin: admin.describe_topics(topics))
            return all(
                topic["partitions"] and all(partition["leader_id"] >= 0 for partition in topic["partitions"])
                for topic in described
            )
        return False

    def _partitions(self, topic: str) -> int:
        try:
            return len(self._admin.run(lambda admin: admin.describe_topics([topic]))[0]["partitions"])
        except UnknownTopicOrPartitionError:
            return 0
