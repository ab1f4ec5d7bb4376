"""Kafka's Java admin client, which Spark's connector loads into the JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.spark import failures, private_spark
from kafkasse.pipelines.supervisor import DependencyUnavailable

TIMEOUTS = {"request.timeout.ms": "10000", "default.api.timeout.ms": "10000"}
COMPACTED = {"cleanup.policy": "compact"}
BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
# For a consumer that looks at committed records, joins no group and commits nothing.
CONSUMER = {
    "isolation.level": "read_committed",
    "key.deserializer": BYTES,
    "value.deserializer": BYTES,
    "enable.auto.commit": "false",
}
DEFAULT_MAX_BYTES = 1_048_588  # of a topic, unless its broker has another default
DEFAULT_BUFFER_BYTES = 33_554_432  # the producer's buffer.memory


class Admin:
    """Describes, creates and deletes topics: `with Admin(spark, kafka) as admin`.

    Args:
        spark: the session whose JVM contains Kafka's client.
        kafka: settings of the Kafka clients, including `bootstrap.servers`.
    """

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str]) -> None:
        self._kafka = dict(kafka)
        self._jvm = private_spark.java(spark)
        properties = private_spark.properties(spark, self._kafka | TIMEOUTS)
        self._admin: Any = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *error: object) -> None:
        self._admin.close()

    def names(self) -> set[str]:
        """Return the names of all topics except Kafka's internal topics."""
        return {str(name) for name in self._admin.listTopics().names().get()}

    def topic_ids(self, sources: Iterable[str], sinks: Collection[str] = ()) -> list[str]:
        """Return Kafka's topic IDs (22 characters each), first of the sources. A recreated topic has a new ID.

        Raises:
            CommandError: a topic does not exist, or Kafka rejects the request.
            DependencyUnavailable: Kafka does not respond.
        """
        topics = [*sources, *sinks]
        described = self._admin.describeTopics(topics).topicNameValues()
        return [str(_description(topic, described[topic], is_sink=topic in sinks).topicId()) for topic in topics]

    def check_access(self, sources: Iterable[str], sinks: Iterable[str]) -> None:
        """Check that the user may read the sources and write the sinks. Brokers before Kafka 2.3 do not report this.

        Raises:
            CommandError: a permission is missing.
        """
        operations = dict.fromkeys(sources, "READ") | dict.fromkeys(sinks, "WRITE")
        options = self._jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
        described = self._admin.describeTopics(list(operations), options).topicNameValues()
        for topic, operation in operations.items():
            allowed = {str(acl.name()) for acl in _description(topic, described[topic]).authorizedOperations() or ()}
            if "DESCRIBE" in allowed and operation not in allowed:
                raise CommandError(
                    f"the Kafka user has no {operation} permission for the topic {topic}; add an ACL for the user in "
                    "--kafka-config"
                )

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition of a topic."""
        kafka = self._jvm.org.apache.kafka
        described = self._admin.describeTopics([topic]).topicNameValues()[topic].get()
        partitions = [kafka.common.TopicPartition(topic, info.partition()) for info in described.partitions()]
        first, end = (
            self._admin.listOffsets(dict.fromkeys(partitions, spec)).all().get()
            for spec in (kafka.clients.admin.OffsetSpec.earliest(), kafka.clients.admin.OffsetSpec.latest())
        )
        return {at.partition(): (first[at].offset(), end[at].offset()) for at in partitions}

    def ends(self, topics: Iterable[str]) -> NextOffsets:
        """Return the end of each partition of the topics."""
        return {(topic, partition): end for topic in topics for partition, (_, end) in self.offsets(topic).items()}

    def max_bytes(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the size of the largest record that Kafka accepts, for each topic.

        This is the smallest of the topic's `max.message.bytes` and the producer's `max.request.size` and `buffer.memory`.
        """
        of_producer = int(self._kafka.get("buffer.memory", DEFAULT_BUFFER_BYTES))
        if "max.request.size" in self._kafka:
            of_producer = min(of_producer, int(self._kafka["max.request.size"]))
        return {topic: min(of_producer, self._max_message_bytes(topic)) for topic in topics}

    def _max_message_bytes(self, topic: str) -> int:
        resource_type = self._jvm.org.apache.kafka.common.config.ConfigResource
        resource = resource_type(resource_type.Type.TOPIC, topic)
        try:
            config = self._admin.describeConfigs([resource]).values()[resource].get()
        except Py4JJavaError:  # the user may not read the settings of topics
            return DEFAULT_MAX_BYTES
        return int(config.get("max.message.bytes").value())

    def create(self, topic: str, fix: str, settings: Mapping[str, str], partitions: int | None = None) -> None:
        """Create a topic if it does not exist.

        Args:
            fix: the end of the error message: what the user can do.
            partitions: the number of partitions, or None for the brokers' default.

        Raises:
            CommandError: the topic does not exist and cannot be created.
        """
        if topic in self.names():
            return
        optional = self._jvm.java.util.Optional
        number = optional.empty() if partitions is None else optional.of(partitions)
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, number, optional.empty())
        try:
            self._admin.createTopics([new.configs(dict(settings))]).all().get()
        except Py4JJavaError as error:
            cause = error.java_exception.getCause()
            if cause.getClass().getSimpleName() != "TopicExistsException":  # else another process has created it
                raise CommandError(
                    f"the topic {topic} does not exist and cannot be created ({cause.getMessage()}); {fix}"
                ) from error

    def delete(self, topics: Iterable[str]) -> None:
        """Delete the topics that exist. A topic that the user may not delete is left."""
        existing = self.names()
        deleted = self._admin.deleteTopics([topic for topic in topics if topic in existing])
        for future in deleted.topicNameValues().values():
            with suppress(Py4JJavaError):
                future.get()


def _description(topic: str, future: Any, *, is_sink: bool = False) -> Any:
    try:
        return future.get()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause()
        if cause.getClass().getSimpleName() == "UnknownTopicOrPartitionException":
            raise failures.missing_topic(topic, is_sink=is_sink) from error
        reason = f"Kafka cannot describe the topic {topic}: {cause.getMessage()}"
        is_temporary = "RetriableException" in _class_names(cause) and "Authentication" not in cause.toString()
        raise (DependencyUnavailable(reason) if is_temporary else CommandError(reason)) from error


def _class_names(exception: Any) -> set[str]:
    """Return the names of the exception's class and its base classes."""
    names, class_ = set(), exception.getClass()
    while class_ is not None:
        names.add(str(class_.getSimpleName()))
        class_ = class_.getSuperclass()
    return names
