"""How fast one client reads what a topic holds, and what it costs the server."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, TopicPartition

from bench.figures import Figures, Row
from bench.remote import Remote
from bench.setting import PARTITIONS, RECORD_BYTES, Measured, Setting, middle
from kafkasse.kafka.batches import CompiledDecoder

SLOW_SHARE = 10  # the baselines that serve HTTP read one tenth: they are that much slower
ALL_FROM_0 = dict.fromkeys(range(PARTITIONS), 0)


class BareLoop:
    """kafka-python's own poll loop, as it comes, which does nothing with what it gets."""

    def read(self, bootstrap_servers: str, topic: str, records: int) -> tuple[float, float]:
        """Read so many records from the beginning. Returns seconds and seconds of CPU time, connecting included."""
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


def measure(setting: Setting) -> Figures:
    """Rows: messages a second and CPU per message, against the bare loop and the other servers."""
    topic = setting.topic()
    count = setting.producer.call("fill", topic, PARTITIONS, setting.scale.catch_up_records, RECORD_BYTES)
    with Remote(BareLoop) as loop:
        bare = [loop.call("read", setting.bootstrap_servers, topic, count) for _ in range(setting.scale.repeats)]
    bare_rate, bare_cpu_us = middle([count / took for took, _ in bare]), middle([cpu / count * 1e6 for _, cpu in bare])
    with setting.kafkasse() as server:
        # The first one also pays for the server's first connection to Kafka.
        runs = [setting.catch_up(server, topic, ALL_FROM_0, count) for _ in range(setting.scale.repeats + 1)][1:]
    rate, cpu_us = middle([_rate(run) for run in runs]), middle([run.cpu_us for run in runs])
    decoder = "compiled decoder" if CompiledDecoder else "plain decoder: aiokafka is not installed"
    limit = f"one core: fetching, decoding ({decoder}), ids, writing; the reader takes more than it gets"
    against = "kafka-python's bare poll loop"
    target = "200,000; twice the bare loop"
    rows = [
        Row("catch_up.rate", "catch-up, 1 client", rate, "messages/s", bare_rate, against, target, limit),
        Row("catch_up.cpu", "the same: CPU per message", cpu_us, "µs", bare_cpu_us, against, "5 µs", limit),
    ]
    rows += _against_servers(setting, topic, count, rate, cpu_us)
    setting.drop(topic)
    return Figures(rows)


def _against_servers(setting: Setting, topic: str, count: int, rate: float, cpu_us: float) -> list[Row]:
    rows = []
    few = count // SLOW_SHARE // PARTITIONS * PARTITIONS
    offsets = dict.fromkeys(range(PARTITIONS), (count - few) // PARTITIONS)
    for running in setting.baselines():
        with running() as server:
            run = setting.catch_up(server, topic, offsets, few)
            name = f"catch-up, 1 client, beside {server.name}"
            rows += [
                Row(f"catch_up.rate.{server.name}", name, rate, "messages/s", _rate(run), server.name),
                Row(f"catch_up.cpu.{server.name}", "the same: CPU per message", cpu_us, "µs", run.cpu_us, server.name),
            ]
    return rows


def _rate(run: Measured) -> float:
    return run.delivered.records / run.seconds
