"""The cost of waiting clients: memory, CPU time and connections to Kafka."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figures import Curve, Figures, Row
from bench.servers import CONSUMER_PER_CLIENT, Server
from bench.testbed import Testbed

FIRST_CLIENTS = 20


@dataclass(frozen=True, slots=True)
class _Idle:
    bytes_per_client: float
    cores: float
    sockets: int
    base_bytes: float


def measure(testbed: Testbed) -> Figures:
    """Rows per idle client, and the connections to the broker for each number of clients."""
    scale = testbed.scale
    with testbed.kafkasse() as server:
        own = _idle(testbed, server, scale.idle_clients)
    sockets = [(clients, _sockets(testbed, clients)) for clients in scale.fan_out_clients]
    others, lines = {}, {"kafkasse": [(float(clients), float(held)) for clients, held in sockets]}
    for running in testbed.baselines():
        with running() as server:
            others[server.name] = _idle(testbed, server, scale.idle_baseline_clients)
            lines[server.name] = [(scale.idle_baseline_clients, others[server.name].sockets)]
    rows = [row for name, each in others.items() for row in _rows(testbed, name, own, each)]
    rows += _socket_rows(sockets, others[CONSUMER_PER_CLIENT], scale.idle_baseline_clients)
    return Figures(rows, [Curve("sockets", "Connections to Kafka for one topic", "clients", "connections", lines)])


def _rows(testbed: Testbed, name: str, own: _Idle, other: _Idle) -> list[Row]:
    few, many = testbed.scale.idle_baseline_clients, testbed.scale.idle_clients
    against = f"{name}, {few} clients"
    target = "10 KiB" if name == CONSUMER_PER_CLIENT else ""
    return [
        Row(f"idle.memory.{name}", f"{many:,} idle clients: memory per client", own.bytes_per_client / 1024, "KiB",
            other.bytes_per_client / 1024, against, target,
            "a stream, a reader, a socket and its watcher; no greenlet"),
        Row(f"idle.cpu.{name}", f"{many:,} idle clients: CPU per client", own.cores / many * 1e6, "µs/s",
            other.cores / few * 1e6, against, limit="the shared feed fetches twice a second"),
        Row(f"idle.total.{name}", f"{many:,} idle clients: server CPU", own.cores * 100, "% of a core",
            other.cores * 100, against),
        Row(f"idle.base.{name}", f"memory of the server with {FIRST_CLIENTS} clients", own.base_bytes / 2**20, "MiB",
            other.base_bytes / 2**20, name),
    ]  # fmt: skip


def _socket_rows(sockets: list[tuple[int, int]], other: _Idle, few: int) -> list[Row]:
    return [
        Row(f"sockets.{clients}", f"connections to Kafka, {clients:,} live client{'s' * (clients > 1)}", held, "",
            other.sockets, f"{CONSUMER_PER_CLIENT}, {few} clients",
            "one consumer" if clients == sockets[-1][0] else "", "one to fetch, one for metadata and offsets")
        for clients, held in sockets
    ]  # fmt: skip


def _idle(testbed: Testbed, server: Server, clients: int) -> _Idle:
    """Measure after a few clients are connected, so that memory that the server allocates only once is not counted."""
    topic = testbed.topic()
    request = server.request(f"/{topic}")
    testbed.open(server, [topic], min(FIRST_CLIENTS, clients))
    base_bytes = server.memory_bytes()
    testbed.clients.open([request] * clients)
    bytes_per_client = (server.memory_bytes() - base_bytes) / clients
    sockets = server.sockets_to(testbed.broker_port)
    before_s = server.cpu_s()
    time.sleep(testbed.scale.idle_s)
    cores = (server.cpu_s() - before_s) / testbed.scale.idle_s
    testbed.clients.close_all()
    return _Idle(bytes_per_client, cores, sockets, base_bytes)


def _sockets(testbed: Testbed, clients: int) -> int:
    """Use a new server: feeds whose readers have left keep their connections for a while."""
    with testbed.kafkasse() as server:
        testbed.open(server, [testbed.topic()], clients)
        held = server.sockets_to(testbed.broker_port)
        testbed.clients.close_all()
    return held
