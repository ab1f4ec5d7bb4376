"""The lag of a pipeline: how many records of its sources it has not processed, and how old the oldest of them is.

Only the record itself contains its timestamp. So Kafka's consumer in Spark's JVM reads the first of these records of each
partition. It does not join a group and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from kafkasse.pipelines.kafka.admin import CONSUMER
from kafkasse.pipelines.next_offsets import NextOffsets
from kafkasse.pipelines.spark import private_spark

TIMEOUT_S = 2.0  # for the first records of all partitions
POLL_MS = 200
SETTINGS = CONSUMER | {
    "auto.offset.reset": "earliest",  # Kafka may have deleted the record at the position
    "max.partition.fetch.bytes": "16384",  # one record is enough; a larger one is read anyway
    "default.api.timeout.ms": "5000",
}


class Lag(NamedTuple):
    """The records that are not processed."""

    # How many offsets the sources have from the first of these records. They include markers of transactions.
    records: int
    oldest_ms: int | None  # the timestamp of the oldest record in milliseconds since the epoch; None: unknown


class LagReader:
    """Reads the lag, with a consumer that it keeps open."""

    def __init__(self, spark: SparkSession, kafka: Mapping[str, str]) -> None:
        jvm = private_spark.java(spark)
        kafka_classes = jvm.org.apache.kafka
        # Py4J asks the JVM for each part of a name, so each class is looked up once.
        self._partition_type = kafka_classes.common.TopicPartition
        self._poll_time = jvm.java.time.Duration.ofMillis(POLL_MS)
        self._consumer: Any = kafka_classes.clients.consumer.KafkaConsumer(
            private_spark.properties(spark, {**kafka, **SETTINGS})
        )

    def check(self, position: NextOffsets) -> None:
        """Raise the exception of Kafka's client if Kafka does not answer."""
        if position:
            self._consumer.endOffsets([self._partition_type(*partition) for partition in position])
        else:
            self._consumer.listTopics()

    def read(self, position: NextOffsets) -> Lag:
        """Return the lag of a pipeline that has processed all records before `position`.

        Records of open transactions do not count.
        """
        partitions = {partition: self._partition_type(*partition) for partition in position}
        ends = self._consumer.endOffsets(list(partitions.values()))
        unread = {
            partition: end for partition in position if (end := int(ends[partitions[partition]])) > position[partition]
        }
        if not unread:
            return Lag(0, None)
        self._consumer.unsubscribe()  # otherwise, partitions stay paused
        self._consumer.assign([partitions[partition] for partition in unread])
        for partition in unread:
            self._consumer.seek(partitions[partition], position[partition])
        return self._first_records(position, partitions, unread)

    def _first_records(self, position: NextOffsets, partitions: Mapping[Any, Any], unread: dict[Any, int]) -> Lag:
        records = 0
        oldest_ms: int | None = None
        deadline_s = time.monotonic() + TIMEOUT_S
        while unread and time.monotonic() < deadline_s:
            polled = self._consumer.poll(self._poll_time)
            for partition, end in list(unread.items()):
                of_partition = polled.records(partitions[partition])
                if not of_partition.isEmpty():
                    first = of_partition.get(0)
                    records += end - int(first.offset())
                    oldest_ms = min(int(first.timestamp()), oldest_ms or int(first.timestamp()))
                elif int(self._consumer.position(partitions[partition])) < end:
                    continue
                self._consumer.pause([partitions[partition]])
                del unread[partition]
        return Lag(records + sum(end - position[partition] for partition, end in unread.items()), oldest_ms)
