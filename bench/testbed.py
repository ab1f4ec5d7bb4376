"""The environment that all measurements share: a broker, a producer, clients, and the scale of the load."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
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
CATCH_UP_TIMEOUT_S = 90.0
WARM_UP_CLIENTS = 10
WARM_UP_RATE = 1_000.0
MAX_SAMPLES_PER_S = 10_000.0  # so that parsing takes the clients a few percent of a core
MAX_PROBES = 40
PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of load of one round. `quick` only tests that the benchmark works; its figures mean nothing."""

    quick: bool = False

    def clients(self, number: int) -> int:
        return min(number, 20) if self.quick else number

    def records(self, number: int) -> int:
        return min(number, 3_000) if self.quick else number

    def seconds(self, number: float) -> float:
        return number / 20 if self.quick else number


@dataclass(frozen=True, slots=True)
class Measured:
    """The records that the clients of one server received, and the CPU time of the server."""

    delivered: Delivered
    cpu_s: float
    seconds: float

    @property
    def cpu_us(self) -> float:
        """CPU time of the server per delivered record, in microseconds."""
        return self.cpu_s / self.delivered.records * 1e6 if self.delivered.records else float("nan")

    @property
    def latencies_ms(self) -> list[float]:
        return [latency / 1e6 for latency in self.delivered.latencies]


class Testbed:
    """The environment of all measurements, for the duration of a `with` block.

    Args:
        scale: the amount of load.
        missing: the baselines that cannot be measured.
    """

    def __init__(self, scale: Scale, missing: Iterable[str] = ()) -> None:
        self.scale = scale
        self.order = random.Random()
        self._missing = missing
        self._names = count()

    def __enter__(self) -> Testbed:
        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        with ExitStack() as stack:  # if this method fails, everything that it has started is stopped
            broker = stack.enter_context(EmbeddedBroker(jvm_options=BROKER_JVM_OPTIONS))
            self.bootstrap_servers = broker.bootstrap_servers
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

    @contextmanager
    def topics(self, number: int, partitions: int = PARTITIONS) -> Iterator[list[str]]:
        """Create topics with generated names. They are deleted at the end, to save disk space and broker memory."""
        names = [f"bench-{next(self._names)}" for _ in range(number)]
        options = {"num_partitions": partitions, "replication_factor": 1}
        self._admin.create_topics(dict.fromkeys(names, options), wait_for_metadata=True)
        # The metadata names a leader slightly before the leader is ready. Only a ready leader can list offsets.
        latest = {TopicPartition(name, number): OffsetSpec.LATEST for name in names for number in range(partitions)}
        self._admin.list_partition_offsets(latest)
        yield names
        self._admin.delete_topics(names)

    def shuffled(self, names: Iterable[str]) -> list[str]:
        """Return the servers that can be measured, in an order that changes from run to run."""
        possible = [name for name in names if name not in self._missing]
        return self.order.sample(possible, len(possible))

    @contextmanager
    def server(self, name: str, topics: Sequence[str], **settings: Any) -> Iterator[Server]:
        """Run a server. `name`: a baseline; or kafkasse, with any text after it."""
        if name in servers.BASELINES:
            with servers.BASELINES[name](self.bootstrap_servers, topics) as server:
                yield server
        else:
            with servers.kafkasse(self.bootstrap_servers, **settings) as server:
                yield server

    def open(self, server: Server, topics: Sequence[str], clients: int) -> None:
        """Open `clients` streams, spread over the topics, and wait until each delivers records.

        The baselines send :ok before they have found their position, so this sends probes until all clients have received
        one.
        """
        self.clients.open([server.request(f"/{topics[number % len(topics)]}") for number in range(clients)])
        for _ in range(MAX_PROBES):
            for topic in topics:
                self.producer.call("probe", topic, 0)
            if self.clients.probed(PROBE_TIMEOUT_S):
                break

    def paced(
        self,
        server: Server,
        topics: Sequence[str],
        clients: int,
        rate: float,
        seconds: float,
        size: int = RECORD_BYTES,
        personal: bool = False,
        partitions: int = PARTITIONS,
    ) -> Measured:
        """Send records at a steady rate to all partitions of all topics in turn, and measure their delivery.

        The clients are open, with as many on each topic. `personal`: each record is for one client, in turn.
        """
        share = len(topics) if not personal else clients
        records = max(1, int(rate * seconds) // share)
        seconds = records * share / rate
        deliveries_per_s = rate if personal else rate * clients / len(topics)
        self.clients.expect(records, seconds + DRAIN_TIMEOUT_S, min(1.0, MAX_SAMPLES_PER_S / deliveries_per_s))
        before_s = server.cpu_s()
        self.producer.call("pace", topics, partitions, rate, seconds, size, clients if personal else 0)
        delivered = self.clients.delivered()
        return Measured(delivered, server.cpu_s() - before_s, delivered.seconds)

    def catch_up(self, server: Server, topic: str, records: int, partitions: int = PARTITIONS) -> Measured:
        """Let one client read all stored records of a topic. The time includes connecting."""
        entries = ",".join(f'{{"topic":"{topic}","partition":{number},"offset":0}}' for number in range(partitions))
        before_s, began = server.cpu_s(), time.monotonic()
        self.one_client.open([server.request(f"/{topic}", f"Last-Event-ID: [{entries}]\r\n")])
        self.one_client.expect(records, CATCH_UP_TIMEOUT_S)
        delivered = self.one_client.delivered()
        cpu_s = server.cpu_s() - before_s
        self.one_client.close_all()
        return Measured(delivered, cpu_s, delivered.ended / 1e9 - began)

    def _warm_up(self) -> None:
        """Send some thousand records through the broker, because its JVM is slow until it has compiled its code."""
        with self.topics(1) as topics, self.server(servers.KAFKASSE, topics) as server:
            self.open(server, topics, WARM_UP_CLIENTS)
            self.paced(server, topics, WARM_UP_CLIENTS, WARM_UP_RATE, self.scale.seconds(5.0))
            self.clients.close_all()
