"""The environment that all measurements share: a broker, a producer, clients, and the scale of the load."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import OffsetSpec

from bench import servers
from bench.clients import Clients, Delivered
from bench.records import Producer
from bench.remote import Remote
from bench.servers import Server
from kafkasse.tools.broker import EmbeddedBroker

PARTITIONS = 3
# As in Kafka's start script. With other settings, collections of garbage dominate the 99th percentiles.
BROKER_JVM_OPTIONS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
RECORD_BYTES = 1024
DRAIN_TIMEOUT_S = 20.0  # how long clients may still receive after the last record was sent
BURST_TIMEOUT_S = 45.0
CATCH_UP_TIMEOUT_S = 60.0
WARM_UP_CLIENTS = 10
WARM_UP_RATE = 1_000.0
MAX_PROBES = 40
PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of load of one round. QUICK only tests that the benchmark works."""

    catch_up_records: int = 300_000
    fan_out_clients: tuple[int, ...] = (1, 10, 100, 1000)
    baseline_clients: tuple[int, ...] = (1, 10, 100)
    crowd_clients: int = 10_000
    returning_clients: tuple[int, ...] = (100, 1000, 3000)
    missed_records: int = 100
    personal_clients: tuple[int, ...] = (1000, 10_000)
    personal_s: float = 10.0
    paced_s: float = 5.0
    growth_s: float = 4.0
    burst_records: int = 5_000
    opening_clients: tuple[int, ...] = (1, 100, 500, 1000)
    first_events: int = 30
    idle_clients: tuple[int, ...] = (50, 1000)
    idle_s: float = 10.0
    partitions: tuple[int, ...] = (1, 10, 100, 500)
    growth_records: int = 60_000
    topics: tuple[int, ...] = (1, 10, 50)
    sizes: tuple[int, ...] = (100, 1024, 102_400)
    state_keys: tuple[int, ...] = (10_000, 1_000_000)
    state_updates: int = 600
    warm_up_s: float = 5.0


QUICK = Scale(
    catch_up_records=6_000,
    fan_out_clients=(1, 10),
    baseline_clients=(1, 2),
    crowd_clients=30,
    returning_clients=(2, 10),
    missed_records=9,
    personal_clients=(10, 50),
    personal_s=0.5,
    paced_s=0.5,
    growth_s=0.3,
    burst_records=300,
    opening_clients=(1, 20),
    first_events=3,
    idle_clients=(3, 20),
    idle_s=1.0,
    partitions=(1, 10),
    growth_records=3_000,
    topics=(1, 3),
    sizes=(100, 10_240),
    warm_up_s=0.2,
    state_keys=(100, 200),
    state_updates=10,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The records that the clients of one server received, and the CPU time of the server and the broker."""

    delivered: Delivered
    cpu_s: float
    seconds: float
    broker_cpu_s: float

    @property
    def cpu_us(self) -> float:
        """CPU time of the server per delivered record, in microseconds."""
        return self.cpu_s / self.delivered.records * 1e6 if self.delivered.records else float("nan")

    @property
    def cores(self) -> float:
        """The share of one core that the server used."""
        return self.cpu_s / self.seconds

    @property
    def broker_cores(self) -> float:
        """The share of one core that the broker used."""
        return self.broker_cpu_s / self.seconds


Starter = Callable[[], AbstractContextManager[Server]]


class Testbed:
    """The environment of all measurements, for the duration of a `with` block.

    Args:
        scale: the amount of load.
        kafka_sse: the folder in which npm has built KafkaSSE, or None.
    """

    def __init__(self, scale: Scale, kafka_sse: Path | None) -> None:
        self.scale = scale
        self._kafka_sse = kafka_sse
        self._names = count()

    def __enter__(self) -> Testbed:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        with ExitStack() as stack:  # if this method fails, everything that it has started is stopped
            broker = stack.enter_context(EmbeddedBroker(jvm_options=BROKER_JVM_OPTIONS))
            self.bootstrap_servers = broker.bootstrap_servers
            self._broker = Server("broker", 0, (broker.pid,), b"")
            self.broker_port = int(self.bootstrap_servers.rpartition(":")[2])
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
            stack.callback(self._admin.close)
            self.producer = stack.enter_context(Remote(Producer, self.bootstrap_servers))
            self.clients = stack.enter_context(Clients())
            self.one_client = stack.enter_context(Clients(1))
            self._warm_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def topic(self, partitions: int = PARTITIONS) -> str:
        """Create a topic with a generated name. Returns the name."""
        name = f"bench-{next(self._names)}"
        options = {"num_partitions": partitions, "replication_factor": 1}
        self._admin.create_topics({name: options}, wait_for_metadata=True)
        # The metadata names a leader slightly before the leader is ready. Only a ready leader can list offsets.
        latest = {TopicPartition(name, at): OffsetSpec.LATEST for at in range(partitions)}
        self._admin.list_partition_offsets(latest)
        return name

    def drop(self, *topics: str) -> None:
        """Delete topics to save disk space and broker memory."""
        self._admin.delete_topics(list(topics))

    def kafkasse(self, workers: int = 1, **settings: str) -> AbstractContextManager[Server]:
        """See servers.kafkasse. All clients have the same address here, so the limit per client is raised."""
        return servers.kafkasse(self.bootstrap_servers, workers, max_streams_per_client="1000000", **settings)

    def baselines(self) -> dict[str, Starter]:
        """Return functions that start the servers to compare kafkasse with, by name."""
        starters: dict[str, Starter] = {
            servers.CONSUMER_PER_CLIENT: lambda: servers.consumer_per_client(self.bootstrap_servers),
            servers.CONFLUENT: lambda: servers.confluent(self.bootstrap_servers),
        }
        if (modules := self._kafka_sse) is not None:
            starters[servers.NODE] = lambda: servers.kafka_sse(self.bootstrap_servers, modules)
        return starters

    def open(self, server: Server, topics: list[str], clients: int) -> list[float]:
        """Open `clients` streams, spread over the topics, and wait until each delivers records.

        Returns the seconds until each stream was open. KafkaSSE sends :ok before it has found its position, so this sends
        probes until all clients have received one.
        """
        took = self.clients.open([server.request(f"/{topics[at % len(topics)]}") for at in range(clients)])
        for _ in range(MAX_PROBES):
            for topic in topics:
                self.producer.call("probe", topic, 0)
            if self.clients.probed(PROBE_TIMEOUT_S):
                break
        return took

    def paced(self, server: Server, topics: list[str], rate: float, seconds: float, size: int) -> Measured:
        """Send records at a steady rate to all partitions of all topics in turn, and measure their delivery."""
        records = int(rate * seconds / len(topics))
        return self._delivered(
            server, records, seconds + DRAIN_TIMEOUT_S, "pace", topics, PARTITIONS, rate, seconds, size
        )

    def paced_in(
        self,
        server: Server,
        topic: str,
        partitions: int,
        rate: float,
        seconds: float,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
    ) -> Measured:
        """As paced(), for one topic with `partitions` partitions.

        Records that arrive later than `drain_timeout_s` would be counted by the next call.
        """
        records = int(rate * seconds)
        return self._delivered(
            server, records, seconds + drain_timeout_s, "pace", [topic], partitions, rate, seconds, RECORD_BYTES
        )

    def personal(self, server: Server, topic: str, clients: int, rate: float, seconds: float) -> Measured:
        """As paced(), with the key of one client after another. All clients together receive each record once."""
        records = int(rate * seconds) // clients
        seconds = records * clients / rate
        return self._delivered(
            server, records, seconds + DRAIN_TIMEOUT_S,
            "pace", [topic], PARTITIONS, rate, seconds, RECORD_BYTES, clients,
        )  # fmt: skip

    def burst(self, server: Server, topic: str, records: int, within_s: float = BURST_TIMEOUT_S) -> Measured:
        """Send all records at once, and measure what is delivered within `within_s` seconds."""
        even = records // PARTITIONS * PARTITIONS
        return self._delivered(server, even, within_s, "burst", topic, PARTITIONS, records, RECORD_BYTES)

    def catch_up(self, server: Server, topic: str, offsets: dict[int, int], records: int) -> Measured:
        """Let one client read `records` stored records from `offsets` on. The time includes connecting."""
        entries = ",".join(f'{{"topic":"{topic}","partition":{each},"offset":{at}}}' for each, at in offsets.items())
        before_s, broker_before_s, began = server.cpu_s(), self._broker.cpu_s(), time.monotonic()
        self.one_client.open([server.request(f"/{topic}", f"Last-Event-ID: [{entries}]\r\n")])
        self.one_client.expect(records, CATCH_UP_TIMEOUT_S)
        delivered = self.one_client.delivered()
        cpu_s, broker_cpu_s = server.cpu_s() - before_s, self._broker.cpu_s() - broker_before_s
        self.one_client.close_all()
        return Measured(delivered, cpu_s, delivered.ended / 1e9 - began, broker_cpu_s)

    def _warm_up(self) -> None:
        """Send some thousand records through the broker.

        The broker's JVM is slow until it has compiled its code. Without this, a measurement that runs first, as with
        `--only latency`, would have a wrong 99th percentile.
        """
        topic = self.topic()
        with self.kafkasse() as server:
            self.open(server, [topic], WARM_UP_CLIENTS)
            self.paced(server, [topic], WARM_UP_RATE, self.scale.warm_up_s, RECORD_BYTES)
            self.clients.close_all()
        self.drop(topic)

    def _delivered(self, server: Server, records: int, within_s: float, method: str, *args: object) -> Measured:
        self.clients.expect(records, within_s, True)
        before_s, broker_before_s = server.cpu_s(), self._broker.cpu_s()
        self.producer.call(method, *args)
        delivered = self.clients.delivered()
        cpu_s, broker_cpu_s = server.cpu_s() - before_s, self._broker.cpu_s() - broker_before_s
        return Measured(delivered, cpu_s, delivered.seconds, broker_cpu_s)


def median_or_nan(values: list[float]) -> float:
    """Return the median, or NaN if there are no values."""
    return median(values) if values else float("nan")
