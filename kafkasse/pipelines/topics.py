"""The topics at both ends of a query. Nothing else in the pipelines knows that there is a cluster or a checkpoint.

The client is the Java one that Spark's connector has brought into the JVM.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.errors import CommandError

# Real-time mode handles a record when it comes, and commits when this has passed. It is how much is done again after a
# restart, how long a complaint about a record takes, and, by the 0.2 s of each commit, how much is a little late.
BATCH_S = 10
CONNECT_TIMEOUT_S = 5.0
ANSWER_SOON = {"request.timeout.ms": "10000", "default.api.timeout.ms": "10000"}


def reach(bootstrap_servers: str) -> None:
    """See whether anybody listens there, which takes Spark a minute to give up on.

    Raises:
        CommandError: none of them does.
    """
    for server in bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            return
        except ValueError:
            raise CommandError(f"bootstrap servers are written HOST:PORT,HOST:PORT, not {bootstrap_servers}") from None
        except OSError:
            continue
    raise CommandError(
        f"no Kafka answers at {bootstrap_servers}: start one (kafkasse broker), or say --bootstrap-servers"
    )


def settings(spark: SparkSession, properties: str, bootstrap_servers: str) -> dict[str, str]:
    """Settings of Kafka's clients: the text of a file of Java properties, as Kafka's own tools take it, and the servers."""
    jvm: Any = spark._jvm
    read = jvm.java.util.Properties()
    read.load(jvm.java.io.StringReader(properties))
    return {name: read.getProperty(name) for name in read.stringPropertyNames()} | {
        "bootstrap.servers": bootstrap_servers
    }


def ids(spark: SparkSession, kafka: dict[str, str], topics: Iterable[str]) -> list[str]:
    """Kafka's own ids of these topics, 22 characters each, which no two topics ever share.

    Raises:
        CommandError: one does not exist, or Kafka does not tell.
    """
    jvm: Any = spark._jvm
    properties = jvm.java.util.Properties()
    for name, value in (kafka | ANSWER_SOON).items():
        properties.setProperty(name, value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        described = admin.describeTopics(list(topics)).topicNameValues()
        return [str(_answer(topic, described[topic]).topicId()) for topic in topics]
    finally:
        admin.close()


def _answer(topic: str, future: Any) -> Any:
    try:
        return future.get()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause()
        if cause.getClass().getSimpleName() == "UnknownTopicOrPartitionException":
            raise CommandError(f"there is no topic {topic}: create it first") from error
        raise CommandError(f"Kafka does not tell about topic {topic}: {cause.getMessage()}") from error


def read(spark: SparkSession, kafka: Mapping[str, str], topic: str) -> DataFrame:
    """All records of the topic from its start, or from where the checkpoint says; none of a transaction that failed."""
    reader = spark.readStream.format("kafka").options(**_connector({"isolation.level": "read_committed", **kafka}))
    return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()


def write(rows: DataFrame, kafka: Mapping[str, str], topic: str, checkpoint: str) -> StreamingQuery:
    """Start the query that puts these rows of `key` and `value` into the topic, each as soon as it is known.

    What is read after the last commit is read and written again when the query goes on from its checkpoint: at least
    once, so values must be absolute.
    """
    trigger: dict[str, Any] = {"realTime": f"{BATCH_S} seconds"}  # PySpark's own overloads have not heard of it
    writer = rows.writeStream.format("kafka").options(**_connector(kafka)).option("topic", topic)
    return writer.option("checkpointLocation", checkpoint).outputMode("update").trigger(**trigger).start()


def _connector(kafka: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in kafka.items()}
