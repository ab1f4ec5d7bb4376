"""Catch-up: how fast one client reads the stored records of a topic, and the CPU time of the server.

Every server reads the same records twice, and the second time is measured. The topic contains only large batches: records
that were sent one by one have a batch each, which costs more than the record. The poll loop shows how fast kafka-python
alone can read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

from kafka import KafkaConsumer, TopicPartition

from bench.figures import Figures, Row
from bench.remote import Remote
from bench.servers import CONFLUENT, KAFKA_SSE, KAFKASSE
from bench.testbed import PARTITIONS, RECORD_BYTES, Testbed

POLL_LOOP = "poll loop of kafka-python"
RECORDS = 100_000
LIMIT = "one core: fetch, decode, format IDs, write"
MANY_PARTITIONS = 500
CPU_GOAL_US, RATIO_GOAL = 2.5, 3.0


class PollLoop:
    """A loop over KafkaConsumer.poll() with kafka-python's default settings. It discards the records."""

    def read(self, bootstrap_servers: str, topic: str, partitions: int, records: int) -> tuple[float, float]:
        """Read `records` records from the beginning. Returns seconds and CPU seconds, without connecting."""
        consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers)
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(assigned)
        consumer.seek_to_beginning()
        for partition in assigned:
            consumer.position(partition)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        while records > 0:
            records -= sum(map(len, consumer.poll(1_000).values()))
        took = time.monotonic() - began_s, time.process_time() - began_cpu_s
        consumer.close()
        return took


def measurements() -> Iterator[tuple[str, partial[Figures]]]:
    """Yield the name and the function of each measurement."""
    yield "catch_up", partial(_catch_up, key="catch_up")
    for id_frequency in ("event", "run"):  # with an ID in every event, or in the last of a run of events
        key = f"catch_up.{MANY_PARTITIONS}.{id_frequency}"
        yield key, partial(_catch_up, key=key, partitions=MANY_PARTITIONS, id_frequency=id_frequency)


def _catch_up(testbed: Testbed, key: str, partitions: int = PARTITIONS, id_frequency: str = "") -> Figures:
    figures = Figures()
    what = f"catch-up, 1 client, {partitions} partitions" + f", ID in every {id_frequency}" * bool(id_frequency)
    rates: dict[str, float] = {}
    with testbed.topics(1, partitions) as topics:
        wanted = testbed.scale.records(RECORDS)
        records = testbed.producer.call("fill", topics[0], partitions, wanted, RECORD_BYTES)
        settings = {"id_frequency": id_frequency} if id_frequency else {}
        others = () if id_frequency else (CONFLUENT, KAFKA_SSE)
        for name in testbed.shuffled((KAFKASSE, POLL_LOOP, *others)):
            if name == POLL_LOOP:
                seconds, cpu_s = _poll_loop(testbed, topics[0], partitions, records)
            else:
                with testbed.server(name, topics, **settings) as server:
                    testbed.catch_up(server, topics[0], records, partitions)
                    run = testbed.catch_up(server, topics[0], records, partitions)
                seconds, cpu_s = run.seconds if run.delivered.complete else math.nan, run.cpu_s
            rates[name] = records / seconds
            goal = CPU_GOAL_US if name == KAFKASSE and not id_frequency else math.nan
            figures += [
                Row(f"{key}.rate", name, what, rates[name], "records/s", limit=LIMIT),
                Row(f"{key}.cpu", name, f"{what}: CPU per record", cpu_s / records * 1e6, "µs", goal, LIMIT),
            ]
    if not id_frequency:
        ratio = rates[KAFKASSE] / rates[POLL_LOOP]
        what += ": compared with the poll loop"
        figures.append(Row(f"{key}.ratio", KAFKASSE, what, ratio, "times as fast", RATIO_GOAL, LIMIT))
    return figures


def _poll_loop(testbed: Testbed, topic: str, partitions: int, records: int) -> tuple[float, float]:
    with Remote(PollLoop) as loop:
        loop.call("read", testbed.bootstrap_servers, topic, partitions, records)
        seconds, cpu_s = loop.call("read", testbed.bootstrap_servers, topic, partitions, records)
    return seconds, cpu_s
