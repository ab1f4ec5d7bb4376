"""Measure how fast one client reads a topic from an archive, compared with the same records in Kafka.

The files are written as `kafkasse archive run` writes them, but without Spark.
"""

from __future__ import annotations

import base64
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from bench.catch_up import ALL_FROM_0
from bench.figures import Figures, Row
from bench.remote import Remote
from bench.testbed import PARTITIONS, RECORD_BYTES, Testbed
from kafkasse.archive import parquet
from kafkasse.archive.directory import ArchiveDirectory, TopicDirectory
from kafkasse.archive.manifest import Entry

DAY = "2026-11-22"
POLL_MS = 10_000


class Archiver:
    """Moves the records of a topic from Kafka to an archive."""

    def move(self, bootstrap_servers: str, topic: str, count: int, path: str) -> None:
        """Move the first `count` records of each partition, and keep one later record in Kafka."""
        admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
        topic_id = uuid.UUID(str(admin.describe_topics([topic])[0]["topic_id"]))
        root = ArchiveDirectory(path)
        root.create()
        directory = root.topic(topic, base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("="))
        entries = [self._copy(bootstrap_servers, directory, topic, each, count) for each in range(PARTITIONS)]
        directory.commit(directory.read().append(entries))
        admin.delete_records({TopicPartition(topic, each): count for each in range(PARTITIONS)})
        admin.close()

    def _copy(self, servers: str, directory: TopicDirectory, topic: str, partition: int, count: int) -> Entry:
        path = directory.new_path(DAY, partition, 0)
        directory.staging.mkdir(parents=True, exist_ok=True)
        staged = directory.staging / "file.parquet"
        parquet.write(staged, _tables(servers, TopicPartition(topic, partition), count))
        first, _, records, newest = parquet.describe(staged)
        size = staged.stat().st_size
        directory.add_file(staged, path)
        return Entry(partition, 0, count, 0, DAY, first, records, newest, size, path)


def _tables(servers: str, partition: TopicPartition, count: int) -> Iterator[pa.Table]:
    """Yield the first `count` records of a partition."""
    consumer = KafkaConsumer(bootstrap_servers=servers)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    while count > 0:
        records = [each for some in consumer.poll(POLL_MS).values() for each in some][:count]
        count -= len(records)
        yield pa.Table.from_pylist([_row(each) for each in records], schema=parquet.SCHEMA)
    consumer.close()


def _row(record: Any) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": 0,
        "timestamp": record.timestamp * 1000,
        "timestamp_type": 0,
        "key": record.key,
        "value": record.value,
        "headers": [],
    }


def measure(testbed: Testbed) -> Figures:
    """Rows: records per second and CPU per record, compared with Kafka."""
    topic = testbed.topic()
    count = testbed.producer.call("fill", topic, PARTITIONS, testbed.scale.catch_up_records, RECORD_BYTES)
    with (
        tempfile.TemporaryDirectory(prefix="kafkasse-bench-") as directory,
        testbed.kafkasse(archive=directory) as server,
    ):
        testbed.catch_up(server, topic, ALL_FROM_0, count)  # discard the first run
        kafka = testbed.catch_up(server, topic, ALL_FROM_0, count)
        with Remote(Archiver) as archiver:
            archiver.call("move", testbed.bootstrap_servers, topic, count // PARTITIONS, directory)
        size = sum(each.stat().st_size for each in Path(directory).rglob("*.parquet"))
        testbed.catch_up(server, topic, ALL_FROM_0, count)  # discard the first run
        archive = testbed.catch_up(server, topic, ALL_FROM_0, count)
    testbed.drop(topic)
    limit = "one core: check, decompress, create the records, format IDs, write"
    rates = archive.delivered.records / archive.seconds, kafka.delivered.records / kafka.seconds
    return Figures([
        Row("archive.rate", "an archive, 1 client", rates[0], "records/s", rates[1], "Kafka", limit=limit),
        Row("archive.cpu", "an archive, 1 client: CPU per record", archive.cpu_us, "µs", kafka.cpu_us, "Kafka"),
        Row("archive.size", "an archive: size per record of 1 KiB; this load's are equal", size / count, "bytes"),
    ])  # fmt: skip
