"""Measure how fast one client reads the stored records of a topic, and the CPU time of the server."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, TopicPartition

from bench.figures import Figures, Row
from bench.remote import Remote
from bench.testbed import PARTITIONS, RECORD_BYTES, Measured, Testbed
from kafkasse.kafka.batches import CompiledDecoder

BASELINE_SHARE = 10  # the HTTP baselines are so slow that they read only one tenth of the records
ALL_FROM_0 = dict.fromkeys(range(PARTITIONS), 0)


class PollLoop:
    """A loop over KafkaConsumer.poll() with kafka-python's default settings. It discards the records."""

    def read(self, bootstrap_servers: str, topic: str, records: int) -> tuple[float, float]:
        """Read `records` records from the beginning. Returns seconds and CPU seconds, including the connection."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers)
        partitions = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while records > 0:
            records -= sum(map(len, consumer.poll(1_000).values()))
        took = time.monotonic() - began_s, time.process_time() - began_cpu_s
        consumer.close()
        return took


def measure(testbed: Testbed) -> Figures:
    """Rows: records per second and CPU per record, compared with the poll loop and the other servers."""
    topic = testbed.topic()
    count = testbed.producer.call("fill", topic, PARTITIONS, testbed.scale.catch_up_records, RECORD_BYTES)
    with Remote(PollLoop) as loop:
        poll_s, poll_cpu_s = loop.call("read", testbed.bootstrap_servers, topic, count)
    with testbed.kafkasse() as server:
        # Discard the first run, which includes the server's first connection to Kafka.
        testbed.catch_up(server, topic, ALL_FROM_0, count)
        run = testbed.catch_up(server, topic, ALL_FROM_0, count)
    decoder = "compiled decoder" if CompiledDecoder else "pure Python decoder, because aiokafka is not installed"
    limit = f"one core: fetch, decode ({decoder}), format IDs, write; the client is faster"
    rows = [
        Row("catch_up.rate", "catch-up, 1 client", _rate(run), "records/s", count / poll_s, "poll loop",
            200_000, limit),
        Row("catch_up.cpu", "catch-up, 1 client: CPU per record", run.cpu_us, "µs", poll_cpu_s / count * 1e6,
            "poll loop", 2.5, limit),
    ]  # fmt: skip
    rows += _against_servers(testbed, topic, count, run)
    testbed.drop(topic)
    return Figures(rows)


def _against_servers(testbed: Testbed, topic: str, count: int, own: Measured) -> list[Row]:
    rows = []
    few = count // BASELINE_SHARE // PARTITIONS * PARTITIONS
    offsets = dict.fromkeys(range(PARTITIONS), (count - few) // PARTITIONS)
    for name, running in testbed.baselines().items():
        with running() as server:
            other = testbed.catch_up(server, topic, offsets, few)
        rows += [
            Row(f"catch_up.rate.{name}", "catch-up, 1 client", _rate(own), "records/s", _rate(other), name),
            Row(f"catch_up.cpu.{name}", "catch-up, 1 client: CPU per record", own.cpu_us, "µs", other.cpu_us, name),
        ]
    return rows


def _rate(run: Measured) -> float:
    return run.delivered.records / run.seconds
