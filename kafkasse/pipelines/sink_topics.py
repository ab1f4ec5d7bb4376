"""What Kafka knows about the topics that a pipeline writes: the size of their records, and their newest records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines import private_spark
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.topics import SHORT_TIMEOUTS

DEFAULT_MAX_BYTES = 1_048_588  # of a topic, unless its broker has another default
DEFAULT_BUFFER_BYTES = 33_554_432  # the producer's buffer.memory
LETTER_OVERHEAD_BYTES = 65_536  # a dead letter has more headers than its record


def dead_letters_of(pipeline: Pipeline) -> str:
    """Return the topic for the dead letters of a pipeline: `<topic of the first sink>.dead-letters` by default."""
    return pipeline.dead_letters or f"{next(iter(pipeline.sinks.values())).topic}.dead-letters"


class SinkTopics:
    """Asks Kafka about topics: `with SinkTopics(spark, kafka) as topics`.

    Args:
        spark: the session whose JVM contains Kafka's client.
        kafka: settings of the Kafka clients, including `bootstrap.servers`.
    """

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str]) -> None:
        self._kafka = dict(kafka)
        self._jvm = jvm = _jvm(spark)
        properties = jvm.java.util.Properties()
        for name, value in (self._kafka | SHORT_TIMEOUTS).items():
            properties.setProperty(name, value)
        self._admin: Any = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def __enter__(self) -> SinkTopics:
        return self

    def __exit__(self, *error: object) -> None:
        self._admin.close()

    def max_bytes(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the size of the largest record that Kafka accepts, for each topic.

        This is the smallest of the topic's `max.message.bytes` and the producer's `max.request.size` and `buffer.memory`.
        """
        own = int(self._kafka.get("buffer.memory", DEFAULT_BUFFER_BYTES))
        if "max.request.size" in self._kafka:
            own = min(own, int(self._kafka["max.request.size"]))
        type_ = self._jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC
        return {topic: min(own, self._max_message_bytes(type_, topic)) for topic in topics}

    def _max_message_bytes(self, type_: Any, topic: str) -> int:
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource(type_, topic)
        try:
            config = self._admin.describeConfigs([resource]).values()[resource].get()
        except Py4JJavaError:  # the user may not read the settings of topics
            return DEFAULT_MAX_BYTES
        return int(config.get("max.message.bytes").value())

    def create_dead_letters(self, topic: str, max_bytes: int) -> None:
        """Create the topic of dead letters if it does not exist, for records of up to `max_bytes` bytes.

        Raises:
            CommandError: the topic does not exist and cannot be created.
        """
        optional = self._jvm.java.util.Optional.empty()
        created = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional, optional).configs(
            {"max.message.bytes": str(max_bytes + LETTER_OVERHEAD_BYTES)}
        )
        if topic in set(self._admin.listTopics().names().get()):
            return
        try:
            self._admin.createTopics([created]).all().get()
        except Py4JJavaError as error:
            cause = error.java_exception.getCause()
            if cause.getClass().getSimpleName() != "TopicExistsException":
                raise CommandError(
                    f"the topic {topic} for dead letters does not exist and cannot be created ({cause.getMessage()});"
                    " create it, or set dead_letters= of the pipeline to another topic"
                ) from error

    def create_compacted(self, topic: str) -> None:
        """Create a compacted topic with one partition, if it does not exist.

        Raises:
            CommandError: the topic cannot be created.
        """
        optional = self._jvm.java.util.Optional
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(1), optional.empty())
        if topic in set(self._admin.listTopics().names().get()):
            return
        try:
            self._admin.createTopics([new.configs({"cleanup.policy": "compact"})]).all().get()
        except Py4JJavaError as error:
            reason = error.java_exception.getCause().getMessage()
            raise CommandError(
                f"the topic {topic} cannot be created ({reason}); allow it, or create it with cleanup.policy=compact"
            ) from error

    def create_like(self, topic: str, copy: str) -> None:
        """Create a compacted topic with the partitions of another one, if it does not exist.

        Raises:
            CommandError: the topic cannot be created.
        """
        partitions = self._jvm.java.util.Optional.of(len(self.offsets(topic)))
        configs = {"max.message.bytes": str(self.max_bytes([topic])[topic]), "cleanup.policy": "compact"}
        optional = self._jvm.java.util.Optional.empty()
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(copy, partitions, optional).configs(configs)
        if copy in set(self._admin.listTopics().names().get()):
            return
        try:
            self._admin.createTopics([new]).all().get()
        except Py4JJavaError as error:
            reason = error.java_exception.getCause().getMessage()
            raise CommandError(
                f"the topic {copy} for the rebuild cannot be created ({reason}); allow it, or create it with the "
                f"partitions of {topic} and cleanup.policy=compact"
            ) from error

    def delete(self, topics: Iterable[str]) -> None:
        """Delete those of the topics that exist, as far as the user may delete them."""
        existing = set(self._admin.listTopics().names().get())
        for future in (
            self._admin.deleteTopics([each for each in topics if each in existing]).topicNameValues().values()
        ):
            with suppress(Py4JJavaError):
                future.get()

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of each partition of a topic."""
        kafka = self._jvm.org.apache.kafka
        described = self._admin.describeTopics([topic]).topicNameValues()[topic].get()
        partitions = [kafka.common.TopicPartition(topic, each.partition()) for each in described.partitions()]
        first, end = (
            self._admin.listOffsets(dict.fromkeys(partitions, spec)).all().get()
            for spec in (kafka.clients.admin.OffsetSpec.earliest(), kafka.clients.admin.OffsetSpec.latest())
        )
        return {each.partition(): (first[each].offset(), end[each].offset()) for each in partitions}


def _jvm(spark: SparkSession) -> Any:
    return private_spark.java(spark)
