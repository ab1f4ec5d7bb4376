"""Measure how fast one client reads a topic from an archive, compared with the same records in Kafka.

The files are written as `kafkasse archive run` writes them, but without Spark.
"""

from __future__ import annotations

import base64
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from bench.figures import Figures, Row
from bench.remote import Remote
from bench.servers import KAFKASSE
from bench.testbed import PARTITIONS, RECORD_BYTES, Testbed
from kafkasse.archive import parquet
from kafkasse.archive.directory import ArchiveDirectory, TopicDirectory
from kafkasse.archive.manifest import Entry

DAY = "2026-11-22"
POLL_MS = 10_000
RECORDS = 60_000
LIMIT = "one core: check, decompress, create the records, format IDs, write"


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
    """Rows: records per second and CPU per record, from Kafka and from the archive."""
    with (
        testbed.topics(1) as (topic,),
        tempfile.TemporaryDirectory(prefix="kafkasse-bench-") as directory,
        testbed.server(KAFKASSE, [topic], archive=directory) as server,
    ):
        wanted = testbed.scale.records(RECORDS)
        records = testbed.producer.call("fill", topic, PARTITIONS, wanted, RECORD_BYTES)
        testbed.catch_up(server, topic, records)  # discard the first run
        runs = {"Kafka": testbed.catch_up(server, topic, records)}
        with Remote(Archiver) as archiver:
            archiver.call("move", testbed.bootstrap_servers, topic, records // PARTITIONS, directory)
        testbed.catch_up(server, topic, records)
        runs[KAFKASSE] = testbed.catch_up(server, topic, records)
    figures: Figures = []
    for name, run in runs.items():
        what, rate = "an archive, 1 client", run.delivered.records / run.seconds
        figures += [
            Row("archive.rate", name, what, rate, "records/s", limit=LIMIT),
            Row("archive.cpu", name, f"{what}: CPU per record", run.cpu_us, "µs", limit=LIMIT),
        ]
    return figures
