"""Write the status of a pipeline to a compacted topic, with one record for each pipeline. Off by default.

The producer belongs to the Kafka client in Spark's JVM, so it has the settings of --kafka-config. While there is no JVM, the
topic keeps the previous status; the field `updated` shows its age. An error of this topic never stops the pipeline.
"""

from __future__ import annotations

import json
import logging

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import SparkSession

from kafkasse.pipelines.kafka.admin import COMPACTED, Admin
from kafkasse.pipelines.observe.status import Status
from kafkasse.pipelines.spark import private_spark

# At its end, a pipeline waits until its last status is sent. With Kafka's defaults, it could wait for two minutes.
LIMITS = {"max.block.ms": "5000", "request.timeout.ms": "4000", "delivery.timeout.ms": "5000", "linger.ms": "0"}
SERIALIZER = "org.apache.kafka.common.serialization.StringSerializer"

logger = logging.getLogger("kafkasse.pipeline")


class StatusTopic:
    """The status topic, through the JVM of one session. The topic is created if it does not exist."""

    def __init__(self, spark: SparkSession, kafka: dict[str, str], topic: str) -> None:
        jvm = private_spark.java(spark)
        self._jvm, self._topic = jvm, topic
        with Admin(spark, kafka) as admin:
            fix = "allow the pipeline to create it, or create it with cleanup.policy=compact"
            admin.create(topic, fix, COMPACTED, partitions=1)
        settings = {"key.serializer": SERIALIZER, "value.serializer": SERIALIZER}
        properties = private_spark.properties(spark, kafka | settings | LIMITS)
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(properties)

    def write(self, status: Status, *, wait: bool = False) -> None:
        """Write the status. With `wait`, return only when Kafka has acknowledged it."""
        text = json.dumps(status.record(), ensure_ascii=False)
        try:
            record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(self._topic, status.pipeline, text)
            self._producer.send(record)
            if wait:
                self._producer.flush()
        except (Py4JError, OSError) as error:  # usually the JVM has ended, which the supervisor reports
            logger.debug("the status is not in the topic %s: %s", self._topic, str(error)[:300])
