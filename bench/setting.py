"""What all measurements share: the broker, who writes to it, who reads from servers, and how much of everything."""

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
from kafkasse.broker import EmbeddedBroker

PARTITIONS = 3
RECORD_BYTES = 1024
SLACK_S = 20.0  # how long after the last record was sent readers are waited for
BURST_S_MAX = 45.0
CATCH_UP_S_MAX = 60.0
PROBES_MAX = 40
PROBE_S = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Full takes some ten minutes, quick finds out whether it works."""

    catch_up_records: int = 300_000
    fan_out_clients: tuple[int, ...] = (1, 10, 100, 500, 1000)
    baseline_clients: tuple[int, ...] = (1, 10, 100)
    paced_s: float = 10.0
    growth_s: float = 5.0
    burst_records: int = 5_000
    opening_clients: tuple[int, ...] = (1, 100, 500, 1000)
    first_events: int = 30
    idle_clients: int = 1000
    idle_baseline_clients: int = 50
    idle_s: float = 10.0
    partitions: tuple[int, ...] = (1, 10, 100, 500)
    growth_records: int = 60_000
    topics: tuple[int, ...] = (1, 10, 50)
    sizes: tuple[int, ...] = (100, 1024, 102_400)
    repeats: int = 3
    cold_starts: int = 3


QUICK = Scale(
    catch_up_records=6_000,
    fan_out_clients=(1, 10),
    baseline_clients=(1, 2),
    paced_s=1.0,
    growth_s=1.0,
    burst_records=300,
    opening_clients=(1, 20),
    first_events=3,
    idle_clients=20,
    idle_baseline_clients=3,
    idle_s=1.0,
    partitions=(1, 10),
    growth_records=3_000,
    topics=(1, 3),
    sizes=(100, 10_240),
    repeats=1,
    cold_starts=1,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out at one server, and what it cost there and at the broker."""

    delivered: Delivered
    cpu_s: float
    seconds: float
    broker_cpu_s: float

    @property
    def cpu_us(self) -> float:
        """CPU time of the server for each record that a client received, in microseconds."""
        return self.cpu_s / self.delivered.records * 1e6 if self.delivered.records else float("nan")

    @property
    def cores(self) -> float:
        """Share of one core that the server used."""
        return self.cpu_s / self.seconds

    @property
    def broker_cores(self) -> float:
        """Share of one core that the broker used."""
        return self.broker_cpu_s / self.seconds


class Setting:
    """See the module. Use it in a `with` block.

    Args:
        scale: how much.
        kafka_sse: a folder where npm has built KafkaSSE, or None.
    """

    def __init__(self, scale: Scale, kafka_sse: Path | None) -> None:
        self.scale = scale
        self._kafka_sse = kafka_sse
        self._names = count()
        self._stack = ExitStack()

    def __enter__(self) -> Setting:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        broker = self._stack.enter_context(EmbeddedBroker())
        self.bootstrap_servers = broker.bootstrap_servers
        self._broker = Server("broker", 0, (broker.pid,), b"")
        self.broker_port = int(self.bootstrap_servers.rpartition(":")[2])
        self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        self._stack.callback(self._admin.close)
        self.producer = self._stack.enter_context(Remote(Producer, self.bootstrap_servers))
        self.clients = self._stack.enter_context(Clients())
        self.one_client = self._stack.enter_context(Clients(1))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def topic(self, partitions: int = PARTITIONS) -> str:
        """A new topic's name."""
        return self.topic_named(f"bench-{next(self._names)}", partitions)

    def topic_named(self, name: str, partitions: int = PARTITIONS) -> str:
        """A new topic of this name."""
        options = {"num_partitions": partitions, "replication_factor": 1}
        self._admin.create_topics({name: options}, wait_for_metadata=True)
        # Metadata tells of leaders a moment before these know it themselves; offsets are told by a leader that does.
        each = {TopicPartition(name, at): OffsetSpec.LATEST for at in range(partitions)}
        self._admin.list_partition_offsets(each)
        return name

    def drop(self, *topics: str) -> None:
        """Delete topics, so that disk and broker stay small."""
        self._admin.delete_topics(list(topics))

    def kafkasse(self, workers: int = 1, **settings: str) -> AbstractContextManager[Server]:
        """See servers.kafkasse; all clients come from one address here, which must not be what bounds them."""
        return servers.kafkasse(self.bootstrap_servers, workers, max_streams_per_client="1000000", **settings)

    def baselines(self) -> list[Callable[[], AbstractContextManager[Server]]]:
        """What there is to compare kafkasse with."""
        there: list[Callable[[], AbstractContextManager[Server]]] = [lambda: servers.naive(self.bootstrap_servers)]
        if (modules := self._kafka_sse) is not None:
            there.append(lambda: servers.kafka_sse(self.bootstrap_servers, modules))
        return there

    def open(self, server: Server, topics: list[str], clients: int) -> list[float]:
        """Open `clients` streams, spread over the topics; returns once a record would reach each of them.

        Returns the seconds until each was open. KafkaSSE has not found its place yet when it says :ok; so probes are sent.
        """
        took = self.clients.open([server.place(f"/{topics[at % len(topics)]}") for at in range(clients)])
        for _ in range(PROBES_MAX):
            for topic in topics:
                self.producer.call("probe", topic, 0)
            if self.clients.probed(PROBE_S):
                break
        return took

    def paced(self, server: Server, topics: list[str], rate: float, seconds: float, size: int) -> Measured:
        """Records at `rate` to the clients that are open, in turn to all partitions of all topics."""
        records = int(rate * seconds / len(topics))
        return self._delivered(server, records, seconds + SLACK_S, "pace", topics, PARTITIONS, rate, seconds, size)

    def paced_in(
        self, server: Server, topic: str, partitions: int, rate: float, seconds: float, slack_s: float = SLACK_S
    ) -> Measured:
        """As paced(), in a topic of so many partitions. What comes later than `slack_s` would be counted the next time."""
        records = int(rate * seconds)
        return self._delivered(
            server, records, seconds + slack_s, "pace", [topic], partitions, rate, seconds, RECORD_BYTES
        )

    def burst(self, server: Server, topic: str, records: int, within_s: float = BURST_S_MAX) -> Measured:
        """Records all at once to the clients that are open; what has come after `within_s` seconds."""
        even = records // PARTITIONS * PARTITIONS
        return self._delivered(server, even, within_s, "burst", topic, PARTITIONS, records, RECORD_BYTES)

    def catch_up(self, server: Server, topic: str, offsets: dict[int, int], records: int) -> Measured:
        """One client that reads `records` stored records from `offsets` on. Time counts from its connecting."""
        entries = ",".join(f'{{"topic":"{topic}","partition":{each},"offset":{at}}}' for each, at in offsets.items())
        before_s, broker_before_s, began = server.cpu_s(), self._broker.cpu_s(), time.monotonic()
        self.one_client.open([server.place(f"/{topic}", f"Last-Event-ID: [{entries}]\r\n")])
        self.one_client.expect(records, CATCH_UP_S_MAX)
        delivered = self.one_client.delivered()
        cpu_s, broker_cpu_s = server.cpu_s() - before_s, self._broker.cpu_s() - broker_before_s
        self.one_client.close_all()
        return Measured(delivered, cpu_s, delivered.ended / 1e9 - began, broker_cpu_s)

    def _delivered(self, server: Server, records: int, within_s: float, how: str, *args: object) -> Measured:
        self.clients.expect(records, within_s, True)
        before_s, broker_before_s = server.cpu_s(), self._broker.cpu_s()
        self.producer.call(how, *args)
        delivered = self.clients.delivered()
        cpu_s, broker_cpu_s = server.cpu_s() - before_s, self._broker.cpu_s() - broker_before_s
        return Measured(delivered, cpu_s, delivered.seconds, broker_cpu_s)


def middle(values: list[float]) -> float:
    """The median; NaN where there is none."""
    return median(values) if values else float("nan")
