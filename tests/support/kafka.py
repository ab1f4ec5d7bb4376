"""Create, fill, grow and delete topics. Each call returns when the cluster has applied the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gevent
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, UnknownBrokerIdError, UnknownTopicOrPartitionError

from tests.support.waiting import POLL_S, TIMEOUT_S

REQUEST_TIMEOUT_MS = 20_000

Result = TypeVar("Result")


def retry(operation: Callable[[], Result], error: type[KafkaError] = KafkaError) -> Result:
    """Call `operation` until it does not raise `error`, for at most TIMEOUT_S seconds, and return its result.

    kafka-python's client fails if the first node that it tries is down.
    """
    with gevent.Timeout(TIMEOUT_S):
        while True:
            try:
                return operation()
            except error:
                gevent.sleep(POLL_S)


class Cluster:
    """Changes the cluster at `bootstrap_servers`. `settings` are settings of kafka-python's clients."""

    def __init__(self, bootstrap_servers: str | list[str], **settings: Any) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._settings = {"bootstrap_servers": bootstrap_servers, "request_timeout_ms": REQUEST_TIMEOUT_MS, **settings}
        self._admin = KafkaAdminClient(**self._settings)
        self._producer = KafkaProducer(**self._settings, linger_ms=0, metadata_max_age_ms=500)

    def create(self, topic: str, partitions: int = 1, replicas: int = 1, **configs: str) -> str:
        """Create a topic and return its name. In the names of `configs`, underscores stand for dots."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": named}
        self._with_controller(lambda admin: admin.create_topics({topic: options}, wait_for_metadata=True))
        return topic

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
        return [each.get().offset for each in sent]

    def produce(self, topic: str, value: bytes, partition: int = 0) -> None:
        """Send a record, without waiting for the broker's acknowledgment."""
        self._producer.send(topic, value, partition=partition)

    def transaction(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Append records in one transaction, and commit or abort it."""
        producer = KafkaProducer(**self._settings, transactional_id=f"{topic}-writer")
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()
        _ = producer.commit_transaction() if commit else producer.abort_transaction()
        producer.close()

    def compressed(self, topic: str, codec: str, *values: bytes) -> None:
        """Append records in one compressed batch."""
        producer = KafkaProducer(**self._settings, compression_type=codec, linger_ms=1000)
        for value in values:
            producer.send(topic, value, partition=0)
        producer.close()

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number."""
        self._with_controller(lambda admin: admin.create_partitions({topic: partitions}))
        while self._partitions(topic) != partitions:
            pass
        self._with_controller(lambda admin: admin.wait_for_topics([topic]))

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Delete the records before `offset`, as retention does."""
        self._with_controller(lambda admin: admin.delete_records({TopicPartition(topic, partition): offset}))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._with_controller(lambda admin: admin.delete_topics([topic]))
        while self._partitions(topic):
            pass

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def _with_controller(self, operation: Callable[[KafkaAdminClient], Result]) -> Result:
        """Call `operation` with the admin client, and retry with a new client while it knows no controller.

        After a controller has died, an old client may keep its outdated metadata.
        """
        with gevent.Timeout(TIMEOUT_S):
            while True:
                try:
                    return operation(self._admin)
                except UnknownBrokerIdError:
                    gevent.sleep(POLL_S)
                    self._admin.close()
                    self._admin = retry(lambda: KafkaAdminClient(**self._settings))

    def _partitions(self, topic: str) -> int:
        try:
            return len(self._with_controller(lambda admin: admin.describe_topics([topic]))[0]["partitions"])
        except UnknownTopicOrPartitionError:
            return 0
