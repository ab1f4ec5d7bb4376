"""Measure the latency from a country's record in Kafka to the Top 3 in Kafka, and the start of the pipeline.

    .venv/bin/python -m tests.pipelines.latency [UPDATES] [PAUSE_S]

Runs an embedded broker and `kafkasse pipeline run topn`. Each update makes a country the largest of its continent. The
latency is the time until the sink contains the new Top 3; only then the next update is sent.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkasse.broker import EmbeddedBroker
from tests.pipelines.countries import country
from tests.support.kafka import Cluster

SOURCE, SINK, SOURCE_PARTITIONS = "countries", "topn", 3
WARM_UP = 20
RESULT_TIMEOUT_MS = 30_000
CONTINENTS = ("Africa", "Antarctica", "Asia", "Europe", "North America", "Oceania", "South America")


def main(updates: int, pause_s: float) -> None:
    """Measure and print the latencies."""
    with EmbeddedBroker() as broker:
        cluster = Cluster(broker.bootstrap_servers)
        cluster.create(SOURCE, SOURCE_PARTITIONS)
        cluster.create(SINK)
        began_s = time.perf_counter()
        words = ["pipeline", "run", "topn", "--bootstrap-servers", broker.bootstrap_servers]
        with subprocess.Popen(
            [sys.executable, "-m", "kafkasse", *words], stdout=subprocess.PIPE, text=True
        ) as pipeline:
            assert pipeline.stdout
            pipeline.stdout.readline()
            print(f"ready after {time.perf_counter() - began_s:.1f} s")
            measured_ms = list(latencies_ms(broker.bootstrap_servers, updates + WARM_UP, pause_s))
            print(f"first update: {measured_ms[0]:.0f} ms")
            print_percentiles(sorted(measured_ms[WARM_UP:]))
            pipeline.terminate()


def latencies_ms(servers: str, updates: int, pause_s: float) -> Iterator[float]:
    """Yield the latency of each update in milliseconds."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0)
    consumer = KafkaConsumer(bootstrap_servers=servers, consumer_timeout_ms=RESULT_TIMEOUT_MS)
    consumer.assign([TopicPartition(SINK, 0)])
    consumer.seek_to_beginning()
    for size in range(1, updates + 1):
        key, value = country(f"C{size % 250}", size, CONTINENTS[size % len(CONTINENTS)])
        mark = f'"size":{size},'.encode()
        sent_s = time.perf_counter()
        producer.send(SOURCE, key=key, value=value)
        assert any(record.value and mark in record.value for record in consumer), f"no Top 3 with {mark!r}"
        yield (time.perf_counter() - sent_s) * 1000
        time.sleep(pause_s)


def print_percentiles(sorted_ms: list[float]) -> None:
    """Print the median, p90, p99 and the maximum."""
    percentiles = {
        name: sorted_ms[int(len(sorted_ms) * share)] for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    print(
        f"{len(sorted_ms)} updates:",
        *(f"{name} {ms:.0f} ms," for name, ms in percentiles.items()),
        f"max {sorted_ms[-1]:.0f} ms",
    )


if __name__ == "__main__":
    main(int((sys.argv[1:2] or ["500"])[0]), float((sys.argv[2:3] or ["0.02"])[0]))
