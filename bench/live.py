"""Live delivery: how many clients receive how many records per second, with which latency, at which CPU cost.

All loads and all servers are measured in the same way: the topics have records, the clients are open, records were sent at
the same rate for a while, then the measurement begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from bench.figures import Figures, Latencies, Row
from bench.servers import CONFLUENT, GO, KAFKA_SSE, KAFKASSE, STARLETTE, Server
from bench.testbed import RECORD_BYTES, Measured, Testbed

TWO_WORKERS = "kafkasse, 2 workers"
SHARED = (KAFKASSE, GO, STARLETTE)
WARM_UP_S = 2.0
NEW_TOPICS_S = 8.0


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that receive all records of their topic, or with `personal`, the records with their key.

    Attributes:
        clients: the number of clients of all topics together.
        rate: records per second in all topics together.
        servers: which servers are measured.
        seconds: for how long; together with the runs, long enough for the 99th percentile if possible.
        goals: by the end of the key.
        limit: what limits the cost.
    """

    clients: int
    rate: float
    servers: tuple[str, ...] = SHARED
    seconds: float = 8.0
    topics: int = 1
    size: int = RECORD_BYTES
    personal: bool = False
    goals: dict[str, float] = field(default_factory=dict)
    limit: str = "a system call for each write"

    def __str__(self) -> str:
        clients = f"{self.clients:,} {'personal stream' if self.personal else 'client'}{'s' * (self.clients > 1)}"
        topics = f" on {self.topics} topics" if self.topics > 1 else ""
        size = f" of {self.size:,} bytes" if self.size != RECORD_BYTES else ""
        return f"{clients}{topics} at {self.rate:,.0f}/s{size}"


LOADS = {
    "1x200": Load(
        1, 200, (*SHARED, CONFLUENT, KAFKA_SSE), seconds=4, goals={"cpu": 330}, limit="a fetch for nearly every record"
    ),
    "10x500": Load(
        10, 500, (*SHARED, CONFLUENT, KAFKA_SSE), goals={"cores": 13, "p50": 0.75, "p99": 2.5},
        limit="a fetch for nearly every record, and a system call for each client",
    ),
    "100x200": Load(100, 200),
    "1000x200": Load(1000, 200, (*SHARED, TWO_WORKERS), goals={"cpu": 1.1, "p99": 30}),
    "1000x10": Load(1000, 10, goals={"cpu": 7.6}),
    "10000x20": Load(
        10_000, 20, (KAFKASSE, TWO_WORKERS, GO), seconds=6, goals={"p99": 100},
        limit="two cores for the server, the broker and the clients",
    ),
    "topics": Load(
        200, 500, (*SHARED, CONFLUENT, KAFKA_SSE), seconds=20, topics=50, goals={"p99": 4},
        limit="a fetch for nearly every record",
    ),
    "personal": Load(10_000, 1000, (KAFKASSE,), personal=True, limit="a fetch for nearly every record"),
    "large": Load(100, 20, (KAFKASSE, GO, STARLETTE), size=102_400, limit="the kernel's copy into each socket"),
}  # fmt: skip


def measurements() -> Iterator[tuple[str, partial[Figures]]]:
    """Yield the name and the function of the measurement of each load."""
    yield from ((f"live.{name}", partial(measure, key=f"live.{name}", load=load)) for name, load in LOADS.items())
    yield "live.new_topics", _new_topics


def _new_topics(testbed: Testbed) -> Figures:
    """Measure how long the broker pauses when many topics receive their first records. Each server gets new topics."""
    figures = Figures()
    for name in testbed.shuffled((KAFKASSE, GO)):
        with testbed.topics(2 if testbed.scale.quick else 50) as topics, testbed.server(name, topics) as server:
            testbed.open(server, topics, len(topics))
            run = testbed.paced(server, topics, len(topics), 500, testbed.scale.seconds(NEW_TOPICS_S))
            testbed.clients.close_all()
        what = "50 new topics receive their first records, at 500/s: longest latency"
        figures.append(Row("live.new_topics.longest", name, what, max(run.latencies_ms), "ms", 100, "the broker"))
    return figures


def measure(testbed: Testbed, key: str, load: Load) -> Figures:
    """Measure all servers under one load, in an order that changes from run to run."""
    scale, figures = testbed.scale, Figures()
    clients, topics = max(scale.clients(load.clients), load.topics // 25), min(load.topics, 2 if scale.quick else 50)
    with testbed.topics(topics) as names:
        # The broker needs seconds for the first records of 150 partitions. The server that is measured first must not wait.
        testbed.producer.call("pace", names, 3, 500.0, scale.seconds(1 + topics / 5), load.size)
        for name in testbed.shuffled(load.servers):
            settings = {"max_streams": str(clients + 1), "client_filters": "key" if load.personal else ""}
            with testbed.server(name, names, workers=2 if name == TWO_WORKERS else 1, **settings) as server:
                run = _run(testbed, server, names, clients, load)
            figures += _figures(key, name, load, run, clients)
    return figures


def _run(testbed: Testbed, server: Server, topics: list[str], clients: int, load: Load) -> Measured:
    if load.personal:
        testbed.clients.open([server.request(f"/{topics[0]}?key={number}") for number in range(clients)])
    else:
        testbed.open(server, topics, clients)
    warm_up_s, seconds = testbed.scale.seconds(WARM_UP_S), testbed.scale.seconds(load.seconds)
    testbed.paced(server, topics, clients, load.rate, warm_up_s, load.size, load.personal)
    run = testbed.paced(server, topics, clients, load.rate, seconds, load.size, load.personal)
    testbed.clients.close_all()
    return run


def _figures(key: str, name: str, load: Load, run: Measured, clients: int) -> Figures:
    what, goals = str(load), load.goals if name in (KAFKASSE, TWO_WORKERS) else {}

    def row(figure: str, text: str, value: float, unit: str, limit: str = "") -> Row:
        return Row(f"{key}.{figure}", name, f"{what}: {text}", value, unit, goals.get(figure, math.nan), limit)

    complete = run.delivered.complete / clients * 100
    percentiles = {int(figure[1:]): goal for figure, goal in goals.items() if figure[0] == "p"}
    return [
        row("cpu", "CPU per delivery", run.cpu_us, "µs", load.limit),
        row("cores", "server CPU", run.cpu_s / run.seconds * 100, "% of a core"),
        row("clients", "CPU of the clients", run.delivered.cpu_s / run.seconds * 100, "% of a core"),
        row("complete", "clients that received all records", complete, "%"),
        Latencies(key, name, what, run.latencies_ms, percentiles, load.limit),
    ]
