"""The cost of waiting clients: memory, CPU time and connections to Kafka."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from bench.figures import Curve, Figures, Row
from bench.servers import Server
from bench.testbed import Testbed

FIRST_CLIENTS = 20


@dataclass(frozen=True, slots=True)
class _Idle:
    bytes_per_client: float
    cores: float
    sockets: float
    base_bytes: float


NOTHING = _Idle(math.nan, math.nan, math.nan, math.nan)


def measure(testbed: Testbed) -> Figures:
    """Rows per idle client, and the connections to the broker for each number of clients."""
    scale = testbed.scale
    few, many = min(scale.idle_clients), max(scale.idle_clients)
    own = {}
    for clients in (few, many):
        with testbed.kafkasse() as server:
            own[clients] = _idle(testbed, server, clients)
    sockets = [(clients, _sockets(testbed, clients)) for clients in scale.fan_out_clients]
    rows = [_memory_row(f"{many:,} idle clients", many, own[many]), *_rows(many, own[many])]
    lines = {"kafkasse": [(float(clients), float(held)) for clients, held in sockets]}
    for name, running in testbed.baselines().items():
        with running() as server:
            other = _idle(testbed, server, few)
            # A few clients of ours would fit into memory that the first clients have freed, so compare with many of them.
            rows.append(_memory_row(f"{many:,} idle clients, {few:,} of the baseline", many, own[many], name, other))
            rows += _rows(few, own[few], name, other)
            lines[name] = [(few, other.sockets)]
    rows += _socket_rows(sockets)
    return Figures(rows, [Curve("sockets", "Connections to Kafka for one topic", "clients", "connections", lines)])


def _memory_row(what: str, clients: int, own: _Idle, against: str = "", other: _Idle = NOTHING) -> Row:
    return Row(
        f"idle.memory.{clients}.{against}".rstrip("."), f"{what}: memory per client", own.bytes_per_client / 1024, "KiB",
        other.bytes_per_client / 1024, against, 10.0, "a stream, a reader, a socket and its watcher; no greenlet",
    )  # fmt: skip


def _rows(clients: int, own: _Idle, against: str = "", other: _Idle = NOTHING) -> list[Row]:
    key, what = f"{clients}.{against}".rstrip("."), f"{clients:,} idle clients"
    return [
        Row(f"idle.total.{key}", f"{what}: server CPU", own.cores * 100, "% of a core", other.cores * 100, against,
            limit="the tail fetches twice a second; heartbeats"),
        Row(f"idle.base.{key}", f"memory of the server with {FIRST_CLIENTS} clients", own.base_bytes / 2**20, "MiB",
            other.base_bytes / 2**20, against),
        Row(f"idle.sockets.{key}", f"{what}: connections to Kafka", own.sockets, "", other.sockets, against),
    ]  # fmt: skip


def _socket_rows(sockets: list[tuple[int, int]]) -> list[Row]:
    return [
        Row(f"sockets.{clients}", f"connections to Kafka, {clients:,} live client{'s' * (clients > 1)}", held, "",
            goal=2.0, limit="one to fetch, one for metadata and offsets")
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
    """Use a new server, because a server keeps its connections for a while after its clients have left."""
    with testbed.kafkasse() as server:
        testbed.open(server, [testbed.topic()], clients)
        held = server.sockets_to(testbed.broker_port)
        testbed.clients.close_all()
    return held
