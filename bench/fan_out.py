"""Fan-out: how many clients receive how many records per second, with which latency, at which CPU cost."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

from bench.clients import Request
from bench.figures import Curve, Figures, Row
from bench.records import value
from bench.remote import Remote
from bench.servers import CONSUMER_PER_CLIENT, Server
from bench.testbed import BURST_TIMEOUT_S, RECORD_BYTES, Measured, Testbed

RATE = 200.0
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
        frame = b"event: message\nid: " + b"x" * 150 + b"\ndata: " + value(RECORD_BYTES) + b"\n\n"
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
    found = {"kafkasse": (paced, bursts)}
    for running in testbed.baselines():
        with running() as server:
            found[server.name] = _series(testbed, server, scale.baseline_clients, BASELINE_BURST_TIMEOUT_S)
    rows = [row for clients in scale.fan_out_clients for row in _rows(clients, found)]
    for name in found.keys() - {"kafkasse", CONSUMER_PER_CLIENT}:
        rows += _rows_of_other(name, paced, found[name][0])
    return Figures([*rows, sparse], _curves(found))


def _rows_of_other(name: str, paced: _Series, other: _Series) -> list[Row]:
    """Compare with another server, with the largest number of clients that it was measured with."""
    clients = max(other)
    run, their, key = paced[clients], other[clients], f"fan_out.{clients}.{name}"
    what = f"fan-out, {_clients(clients)} at {RATE:.0f}/s"
    return [
        Row(f"{key}.rate", what, run.delivered.rate, "deliveries/s", their.delivered.rate, name),
        Row(f"{key}.cpu", f"{what}: CPU per delivery", run.cpu_us, "µs", their.cpu_us, name),
        Row(f"{key}.p99", f"{what}: 99th percentile latency", run.delivered.latency_ms(P99), "ms",
            their.delivered.latency_ms(P99), name),
    ]  # fmt: skip


def _sparse(testbed: Testbed, server: Server) -> Row:
    """Send records so rarely that the server writes each one separately to each client."""
    topic, clients = testbed.topic(), max(testbed.scale.fan_out_clients)
    testbed.open(server, [topic], clients)
    run = testbed.paced(server, [topic], SPARSE_RATE, testbed.scale.growth_s, RECORD_BYTES)
    testbed.clients.close_all()
    what = f"fan-out, {_clients(clients)} at {SPARSE_RATE:.0f}/s: CPU per delivery"
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


def _rows(clients: int, found: dict[str, tuple[_Series, _Series]]) -> list[Row]:
    """The rows for one number of clients. The baseline has as many clients, or as many as it can serve."""
    (paced, bursts), (baseline, baseline_bursts) = found["kafkasse"], found[CONSUMER_PER_CLIENT]
    run, (other, against) = paced[clients], _comparable(min(clients, max(baseline)), baseline)
    key, what = f"fan_out.{clients}", f"fan-out, {_clients(clients)} at {RATE:.0f}/s"
    kept_up = run.delivered.rate > 0.97 * RATE * clients
    limit = "the load: 200/s to each client" if kept_up else "the machine: server, clients and broker share two cores"
    rows = [
        Row(f"{key}.rate", what, run.delivered.rate, "deliveries/s", other.delivered.rate, against,
            _TARGETS.get((clients, "rate"), ""), limit),
        Row(f"{key}.cpu", f"{what}: CPU per delivery", run.cpu_us, "µs", other.cpu_us, against,
            _TARGETS.get((clients, "cpu"), ""), "the system call for each client; with fewer than 10 clients, the fetch"),
        *_latencies(key, what, run, other, against, _TARGETS.get((clients, "p99"), "")),
    ]  # fmt: skip
    if clients not in bursts:
        return rows
    run, (other, against), key = bursts[clients], _comparable(clients, baseline_bursts), f"{key}.burst"
    what = f"burst of {run.delivered.records // clients:,} records to {_clients(clients)}"
    return [
        *rows,
        Row(f"{key}.rate", what, run.delivered.rate, "deliveries/s", other.delivered.rate, against,
            limit="one worker's core, and the clients on the other"),
        Row(f"{key}.cpu", f"{what}: CPU per delivery", run.cpu_us, "µs", other.cpu_us, against),
        *_latencies(key, what, run, other, against),
    ]  # fmt: skip


def _comparable(clients: int, series: _Series) -> tuple[Measured, str]:
    """Return the baseline's run with as many clients, or with as many as it can serve, and its name."""
    most = max(each for each in series if each <= clients)
    return series[most], f"{CONSUMER_PER_CLIENT}, {_clients(most)}"


def _clients(count: int) -> str:
    return f"{count:,} client{'s' * (count > 1)}"


_TARGETS = {(1000, "rate"): "200,000", (1000, "cpu"): "2.5 µs", (1000, "p99"): "50 ms"}


def _latencies(key: str, what: str, run: Measured, other: Measured, against: str, target: str = "") -> list[Row]:
    limit = "new records wait while the server writes to its clients; all processes share two cores"
    return [
        Row(f"{key}.{name}", f"{what}: {percentile} latency", run.delivered.latency_ms(share), "ms",
            other.delivered.latency_ms(share), against, target if share == P99 else "", limit)
        for name, percentile, share in (("p50", "median", MEDIAN), ("p99", "99th percentile", P99))
    ]  # fmt: skip


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
    for running in [testbed.kafkasse, *testbed.baselines()]:
        with running() as server:
            topic = testbed.topic()
            testbed.open(server, [topic], LATENCY_CLIENTS)
            found[server.name] = testbed.paced(server, [topic], LATENCY_RATE, testbed.scale.paced_s, RECORD_BYTES)
            testbed.clients.close_all()
    own, rows = found.pop("kafkasse"), []
    for name, other in found.items():
        rows += _latency_rows(name, own, other)
    return Figures(rows)


def _latency_rows(name: str, own: Measured, other: Measured) -> list[Row]:
    what = f"{LATENCY_CLIENTS} clients at {LATENCY_RATE:.0f}/s"
    targets = {"median": "0.9 ms", "99th": "3 ms", "cpu": "15 %"} if name == CONSUMER_PER_CLIENT else {}
    limit = "the broker, the fetch, and one iteration of each event loop; four processes on two cores"
    return [
        Row(f"latency.p50.{name}", f"{what}: median latency", own.delivered.latency_ms(MEDIAN), "ms",
            other.delivered.latency_ms(MEDIAN), name, targets.get("median", ""), limit),
        Row(f"latency.p99.{name}", f"{what}: 99th percentile latency", own.delivered.latency_ms(P99), "ms",
            other.delivered.latency_ms(P99), name, targets.get("99th", ""), limit),
        Row(f"latency.cpu.{name}", f"{what}: server CPU", own.cores * 100, "% of a core", other.cores * 100, name,
            targets.get("cpu", ""), "a fetch for nearly every record, and a system call for each client"),
    ]  # fmt: skip
