"""Fan-out: how many clients receive how many records per second, with which latency, at which CPU cost."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from bench.clients import Request
from bench.figures import Curve, Figures, Row
from bench.records import value
from bench.remote import Remote
from bench.servers import Server
from bench.testbed import BURST_TIMEOUT_S, RECORD_BYTES, Measured, Testbed

RATE = 200.0
GOAL_CLIENTS = 1000
CROWD_RATE = 20.0
SPARSE_RATE = 10.0
BASELINE_BURST_TIMEOUT_S = 10.0
LATENCY_CLIENTS = 10
LATENCY_RATE = 500.0
FLOOD_FRAMES = 20
FLOOD_CLIENTS = 1000
MEDIAN, P99 = 0.5, 0.99


class FloodServer:
    """A server that only sends prepared bytes, as fast as the clients can receive them."""

    def listen(self) -> int:
        """Listen on a free port. Returns the port."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        return int(self._listener.getsockname()[1])

    def flood(self, clients: int, seconds: float) -> None:
        """Accept `clients` clients, and send to all of them in turn for `seconds` seconds."""
        frame = b"event: message\ndata: " + value(RECORD_BYTES) + b"\nid: " + b"x" * 150 + b"\n\n"
        accepted = [self._listener.accept()[0] for _ in range(clients)]
        for each in accepted:
            each.sendall(b"HTTP/1.1 200 OK\r\n\r\nid: \n\n")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for each in accepted:
                each.sendall(frame * FLOOD_FRAMES)
        for each in accepted:
            each.close()


def ceiling(testbed: Testbed) -> Figures:
    """Measure how many records the clients of the benchmark can receive from a process that only sends."""
    with Remote(FloodServer) as flood_server:
        port = flood_server.call("listen")
        flood_server.start("flood", FLOOD_CLIENTS, testbed.scale.growth_s)
        testbed.clients.open([Request(port, "/", b"\nid: ")] * FLOOD_CLIENTS)
        testbed.clients.expect(10**12, testbed.scale.growth_s * 2, True)
        flood_server.result()
        read = testbed.clients.delivered()
        testbed.clients.close_all()
    cpu_us = read.cpu_s / read.records * 1e6
    limit = "the sender, which shares two cores with the clients"
    return Figures([
        Row("ceiling.rate", "limit of the load generator", read.rate, "records/s", limit=limit),
        Row("ceiling.cpu", "limit of the load generator: CPU per record", cpu_us, "µs",
            limit="the copy in the kernel, and one system call for each read"),
        Row("ceiling.alone", "limit of the load generator, two processes with a core each", 2e6 / cpu_us, "records/s"),
    ])  # fmt: skip


def measure(testbed: Testbed) -> Figures:
    """Rows and curves for kafkasse with each number of clients, and for the baselines with as many as they can serve."""
    scale = testbed.scale
    with testbed.kafkasse() as server:
        paced, bursts = _series(testbed, server, scale.fan_out_clients, BURST_TIMEOUT_S)
        sparse = _sparse(testbed, server)
    others = {}
    for name, running in testbed.baselines().items():
        with running() as server:
            others[name] = _series(testbed, server, scale.baseline_clients, BASELINE_BURST_TIMEOUT_S)
    rows = []
    for clients, run in paced.items():
        what = f"fan-out, {client_count(clients)} at {RATE:.0f}/s"
        goals = _GOALS if clients == GOAL_CLIENTS else {}
        rows += _rows(f"fan_out.{clients}", what, run, _at(others, 0, clients), goals)
    for clients, run in bursts.items():
        what = f"burst of {run.delivered.records // clients:,} records to {client_count(clients)}"
        rows += _rows(f"fan_out.{clients}.burst", what, run, _at(others, 1, clients), {})
    return Figures([*rows, sparse], _curves({"kafkasse": (paced, bursts), **others}))


def crowd(testbed: Testbed) -> Figures:
    """Ten thousand clients of one worker: opening, idle, and at 20 records/s."""
    scale = testbed.scale
    clients = scale.crowd_clients
    with testbed.kafkasse(max_streams=str(clients + 1)) as server:
        topic = testbed.topic()
        testbed.open(server, [topic], 1)
        before, began = server.memory_bytes(), time.monotonic()
        opened = len(testbed.clients.open([server.request(f"/{topic}")] * (clients - 1))) + 1
        opening_s, added = time.monotonic() - began, server.memory_bytes() - before
        before_s = server.cpu_s()
        time.sleep(scale.idle_s)
        idle = (server.cpu_s() - before_s) / scale.idle_s
        run = testbed.paced(server, [topic], CROWD_RATE, scale.paced_s, RECORD_BYTES)
        memory = server.memory_bytes()
        testbed.clients.close_all()
    what = f"{clients:,} clients"
    busy = f"{what} at {CROWD_RATE:.0f}/s"
    return Figures([
        Row("crowd.open", f"{what}: streams that opened", opened, "clients", goal=clients),
        Row("crowd.opening", f"{what}: time until all are open", opening_s, "s"),
        Row("crowd.memory", f"{what}: memory per idle client", added / clients / 1024, "KiB"),
        Row("crowd.idle", f"{what}, idle: server CPU", idle * 100, "% of a core", limit="the heartbeats"),
        Row("crowd.complete", f"{busy}: clients that received all records", run.delivered.complete, "clients",
            goal=clients),
        *_rows("crowd", busy, run, {}, {"p99": 100.0}),
        Row("crowd.busy_memory", f"{busy}: memory of the worker", memory / 2**20, "MiB"),
    ])  # fmt: skip


def _sparse(testbed: Testbed, server: Server) -> Row:
    """Send records so rarely that the server writes each one separately to each client."""
    topic, clients = testbed.topic(), max(testbed.scale.fan_out_clients)
    testbed.open(server, [topic], clients)
    run = testbed.paced(server, [topic], SPARSE_RATE, testbed.scale.growth_s, RECORD_BYTES)
    testbed.clients.close_all()
    what = f"fan-out, {client_count(clients)} at {SPARSE_RATE:.0f}/s: CPU per delivery"
    return Row("fan_out.sparse.cpu", what, run.cpu_us, "µs", limit="one system call for each record and client")


_Series = dict[int, Measured]


def _series(testbed: Testbed, server: Server, sizes: Iterable[int], burst_timeout_s: float) -> tuple[_Series, _Series]:
    """Measure paced records and a burst with each number of clients. Returns both results by number of clients."""
    paced, bursts = {}, {}
    for clients in sizes:
        topic = testbed.topic()
        testbed.open(server, [topic], clients)
        paced[clients] = testbed.paced(server, [topic], RATE, testbed.scale.paced_s, RECORD_BYTES)
        if paced[clients].delivered.complete == clients:  # otherwise the server still works on its backlog
            bursts[clients] = testbed.burst(server, topic, testbed.scale.burst_records, burst_timeout_s)
        testbed.clients.close_all()
        testbed.drop(topic)
    return paced, bursts


def _at(others: Mapping[str, tuple[_Series, _Series]], series: int, clients: int) -> dict[str, Measured]:
    """Return the run of each baseline with this number of clients, if it can serve them."""
    return {name: both[series][clients] for name, both in others.items() if clients in both[series]}


def _rows(key: str, what: str, run: Measured, others: Mapping[str, Measured], goals: Mapping[str, float]) -> list[Row]:
    """The rows of one run, compared with each baseline under the same load."""
    rows = []
    for name, of_run, unit, limit in _FIGURES:
        figure, goal = f"{what}{_NAMES[name]}", goals.get(name, math.nan)
        if not others:
            rows.append(Row(f"{key}.{name}", figure, of_run(run), unit, goal=goal, limit=limit))
        rows += [
            Row(f"{key}.{name}.{other}", figure, of_run(run), unit, of_run(theirs), other, goal, limit)
            for other, theirs in others.items()
        ]
    return rows


def client_count(count: int) -> str:
    """Return "1 client", "2 clients" and so on."""
    return f"{count:,} client{'s' * (count > 1)}"


_FIGURES: tuple[tuple[str, Callable[[Measured], float], str, str], ...] = (
    ("rate", lambda run: run.delivered.rate, "deliveries/s", "the load, or the machine: all processes share two cores"),
    ("cpu", lambda run: run.cpu_us, "µs", "the system call for each client; with fewer than 10 clients, the fetch"),
    ("p50", lambda run: run.delivered.latency_ms(MEDIAN), "ms", "records wait while the server writes to its clients"),
    ("p99", lambda run: run.delivered.latency_ms(P99), "ms", "records wait while the server writes to its clients"),
)
_NAMES = {"rate": "", "cpu": ": CPU per delivery", "p50": ": median latency", "p99": ": 99th percentile latency"}
_GOALS = {"rate": 0.99 * RATE * GOAL_CLIENTS, "cpu": 2.5, "p99": 50.0}


def _curves(found: dict[str, tuple[_Series, _Series]]) -> list[Curve]:
    def lines(pick: Callable[[Measured], float], series: int = 0) -> dict[str, list[tuple[float, float]]]:
        return {name: [(at, pick(run)) for at, run in both[series].items()] for name, both in found.items()}

    clients = "clients"
    return [
        Curve("fan_out_rate", f"Deliveries, at {RATE:.0f} records/s", clients, "deliveries/s",
              lines(lambda run: run.delivered.rate)),
        Curve("fan_out_cpu", "Server CPU per delivery", clients, "µs", lines(lambda run: run.cpu_us)),
        Curve("fan_out_p99", "Latency, 99th percentile", clients, "ms",
              lines(lambda run: run.delivered.latency_ms(P99))),
        Curve("burst_rate", "Deliveries in a burst", clients, "deliveries/s", lines(lambda run: run.delivered.rate, 1)),
    ]  # fmt: skip


def latency(testbed: Testbed) -> Figures:
    """Ten clients at 500 records/s: the latency, and the share of a core that the server uses."""
    found = {}
    for name, running in {"kafkasse": testbed.kafkasse, **testbed.baselines()}.items():
        with running() as server:
            topic = testbed.topic()
            testbed.open(server, [topic], LATENCY_CLIENTS)
            found[name] = testbed.paced(server, [topic], LATENCY_RATE, testbed.scale.paced_s, RECORD_BYTES)
            testbed.clients.close_all()
    own = found.pop("kafkasse")
    return Figures([row for name, other in found.items() for row in _latency_rows(name, own, other)])


def _latency_rows(name: str, own: Measured, other: Measured) -> list[Row]:
    what = f"{LATENCY_CLIENTS} clients at {LATENCY_RATE:.0f}/s"
    limit = "the broker, the fetch, and one iteration of each event loop; four processes on two cores"
    return [
        Row(f"latency.p50.{name}", f"{what}: median latency", own.delivered.latency_ms(MEDIAN), "ms",
            other.delivered.latency_ms(MEDIAN), name, 0.9, limit),
        Row(f"latency.p99.{name}", f"{what}: 99th percentile latency", own.delivered.latency_ms(P99), "ms",
            other.delivered.latency_ms(P99), name, 3.0, limit),
        Row(f"latency.cpu.{name}", f"{what}: server CPU", own.cores * 100, "% of a core", other.cores * 100, name,
            15.0, "a fetch for nearly every record, and a system call for each client"),
    ]  # fmt: skip
