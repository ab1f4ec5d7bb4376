"""What tests do to a cluster: make, fill, grow and remove topics, and be sure that it has happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import gevent
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, UnknownBrokerIdError, UnknownTopicOrPartitionError

from tests.support.waiting import LOOK_AGAIN_S, PATIENCE_S

REQUEST_TIMEOUT_MS = 20_000


Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer], error: type[KafkaError] = KafkaError) -> Answer:
    """What Kafka answers, as soon as it does: a client that comes upon a dead node first says that there is no Kafka.

    Args:
        ask: may be called again, and is, for as long as it raises `error`.
        error: no other one is waited for.
    """
    with gevent.Timeout(PATIENCE_S):
        while True:
            try:
                return ask()
            except error:
                gevent.sleep(LOOK_AGAIN_S)


class Cluster:
    """Writes to the cluster at `bootstrap_servers`. Every call returns when the broker has done it."""

    def __init__(self, bootstrap_servers: str | list[str], **settings: Any) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._settings = {"bootstrap_servers": bootstrap_servers, "request_timeout_ms": REQUEST_TIMEOUT_MS, **settings}
        self._admin = KafkaAdminClient(**self._settings)
        self._producer = KafkaProducer(**self._settings, linger_ms=0, metadata_max_age_ms=500)

    def create(self, topic: str, partitions: int = 1, replicas: int = 1, **configs: str) -> str:
        """Make a topic; underscores in setting names stand for dots. Returns its name."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        options = {"num_partitions": partitions, "replication_factor": replicas, "configs": named}
        _with_a_controller(lambda: self._admin.create_topics({topic: options}, wait_for_metadata=True))
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
        """Append records. Returns their offsets."""
        rest = {"key": key, "partition": partition, "timestamp_ms": timestamp_ms, "headers": list(headers)}
        sent = [self._producer.send(topic, value, **rest) for value in values]
        self._producer.flush()
        return [each.get().offset for each in sent]

    def transaction(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Append records in a transaction of their own, and a marker that commits or aborts it."""
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
        """Let a topic have more partitions."""
        _with_a_controller(lambda: self._admin.create_partitions({topic: partitions}))
        while self._partitions(topic) != partitions:
            pass
        _with_a_controller(lambda: self._admin.wait_for_topics([topic]))

    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """What retention does: offsets before `offset` are gone."""
        _with_a_controller(lambda: self._admin.delete_records({TopicPartition(topic, partition): offset}))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        _with_a_controller(lambda: self._admin.delete_topics([topic]))
        while self._partitions(topic):
            pass

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def _partitions(self, topic: str) -> int:
        try:
            return len(_with_a_controller(lambda: self._admin.describe_topics([topic]))[0]["partitions"])
        except UnknownTopicOrPartitionError:
            return 0


def _with_a_controller(ask: Callable[[], Answer]) -> Answer:
    """The answer. Where the controller has just died, the client knows none for a moment, and asks nobody."""
    return patiently(ask, UnknownBrokerIdError)
