"""How many records a second reach how many clients, how late, and what each delivery costs the server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable

from bench.clients import Place
from bench.figures import Curve, Figures, Row
from bench.records import value
from bench.remote import Remote
from bench.servers import Server
from bench.setting import BURST_S_MAX, RECORD_BYTES, Measured, Setting

RATE = 200.0
SPARSE_RATE = 10.0
BASELINE_BURST_S_MAX = 10.0
LATENCY_CLIENTS = 10
LATENCY_RATE = 500.0
BLAST_FRAMES = 20
BLAST_CLIENTS = 1000
MEDIAN, P99 = 0.5, 0.99


class Blaster:
    """A server that does nothing but send prepared bytes: what the load generator can take."""

    def listen(self) -> int:
        """Returns the port."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        return int(self._listener.getsockname()[1])

    def blast(self, clients: int, seconds: float) -> None:
        """Accept so many clients, and send to all of them in turn for so long."""
        frame = b"event: message\nid: " + b"x" * 150 + b"\ndata: " + value(RECORD_BYTES) + b"\n\n"
        accepted = [self._listener.accept()[0] for _ in range(clients)]
        for each in accepted:
            each.sendall(b"HTTP/1.1 200 OK\r\n\r\nid: \n\n")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for each in accepted:
                each.sendall(frame * BLAST_FRAMES)
        for each in accepted:
            each.close()


def ceiling(setting: Setting) -> Figures:
    """What the load generator itself takes, from a process that only sends."""
    with Remote(Blaster) as blaster:
        port = blaster.call("listen")
        blaster.start("blast", BLAST_CLIENTS, setting.scale.growth_s)
        setting.clients.open([Place(port, "/", b"\nid: ")] * BLAST_CLIENTS)
        setting.clients.expect(10**12, setting.scale.growth_s * 2, True)
        blaster.result()
        read = setting.clients.delivered()
        setting.clients.close_all()
    cpu_us = read.cpu_s / read.records * 1e6
    limit = "the sender, which shares two cores with the readers, and whatever else runs"
    return Figures([
        Row("ceiling.rate", "load generator's own ceiling", read.rate, "records/s", limit=limit),
        Row("ceiling.cpu", "the same: CPU per record", cpu_us, "µs", limit="the kernel's copy, a call for each read"),
        Row("ceiling.alone", "the same, two readers with a core each", 2e6 / cpu_us, "records/s"),
    ])  # fmt: skip


def measure(setting: Setting) -> Figures:
    """Rows and curves for kafkasse at all sizes, and for the baselines at those that they can bear."""
    scale = setting.scale
    with setting.kafkasse() as server:
        paced, bursts = _series(setting, server, scale.fan_out_clients, BURST_S_MAX)
        sparse = _sparse(setting, server)
    found = {"kafkasse": (paced, bursts)}
    for running in setting.baselines():
        with running() as server:
            found[server.name] = _series(setting, server, scale.baseline_clients, BASELINE_BURST_S_MAX)
    rows = [row for clients in scale.fan_out_clients for row in _rows(clients, found)]
    for name in found.keys() - {"kafkasse", "naive"}:
        rows += _rows_beside(name, paced, found[name][0])
    return Figures([*rows, sparse], _curves(found))


def _rows_beside(name: str, paced: _Series, theirs: _Series) -> list[Row]:
    """With as many clients as that other server was given."""
    clients = max(theirs)
    run, their, key = paced[clients], theirs[clients], f"fan_out.{clients}.{name}"
    what = f"fan-out, {_clients(clients)} at {RATE:.0f}/s, beside {name}"
    return [
        Row(f"{key}.rate", what, run.delivered.rate, "delivered/s", their.delivered.rate, name),
        Row(f"{key}.cpu", "the same: CPU per delivered", run.cpu_us, "µs", their.cpu_us, name),
        Row(f"{key}.p99", "the same: 99th percentile latency", run.delivered.latency_ms(P99), "ms",
            their.delivered.latency_ms(P99), name),
    ]  # fmt: skip


def _sparse(setting: Setting, server: Server) -> Row:
    """Records so far apart that each is a write of its own for each client."""
    topic, clients = setting.topic(), max(setting.scale.fan_out_clients)
    setting.open(server, [topic], clients)
    run = setting.paced(server, [topic], SPARSE_RATE, setting.scale.growth_s, RECORD_BYTES)
    setting.clients.close_all()
    what = f"fan-out, {_clients(clients)} at {SPARSE_RATE:.0f}/s: CPU per delivered"
    return Row("fan_out.sparse.cpu", what, run.cpu_us, "µs", limit="a write to the kernel for each record and client")


_Series = dict[int, Measured]


def _series(setting: Setting, server: Server, sizes: Iterable[int], burst_s_max: float) -> tuple[_Series, _Series]:
    """Clients to what came of the paced records, and of the burst."""
    paced, bursts = {}, {}
    for clients in sizes:
        topic = setting.topic()
        setting.open(server, [topic], clients)
        paced[clients] = setting.paced(server, [topic], RATE, setting.scale.paced_s, RECORD_BYTES)
        if paced[clients].delivered.complete == clients:  # else it is still busy with what it owes
            bursts[clients] = setting.burst(server, topic, setting.scale.burst_records, burst_s_max)
        setting.clients.close_all()
        setting.drop(topic)
    return paced, bursts


def _rows(clients: int, found: dict[str, tuple[_Series, _Series]]) -> list[Row]:
    """The rows of one number of clients. The baseline is the naive server with as many clients as it bears."""
    (paced, bursts), (naive, naive_bursts) = found["kafkasse"], found["naive"]
    beside = min(clients, max(naive))
    key, against = f"fan_out.{clients}", f"naive, {beside:,} client{'s' * (beside > 1)}"
    run, theirs = paced[clients], naive[beside]
    who = f"{clients:,} client{'s' * (clients > 1)}"
    kept_up = run.delivered.rate > 0.97 * RATE * clients
    limit = "what is sent: 200/s to each" if kept_up else "the machine: server, readers and broker share two cores"
    rows = [
        Row(f"{key}.rate", f"fan-out, {who} at {RATE:.0f}/s", run.delivered.rate, "delivered/s",
            theirs.delivered.rate, against, _TARGETS.get((clients, "rate"), ""), limit),
        Row(f"{key}.cpu", "the same: CPU per delivered", run.cpu_us, "µs", theirs.cpu_us, against,
            _TARGETS.get((clients, "cpu"), ""), "the kernel's sending to each client; below some ten clients the fetch"),
        *_latencies(key, run, theirs, against, _TARGETS.get((clients, "p99"), "")),
    ]  # fmt: skip
    if clients not in bursts:
        return rows
    run, (theirs, against), key = bursts[clients], _beside(clients, naive_bursts), f"{key}.burst"
    return [
        *rows,
        Row(f"{key}.rate", f"burst of {run.delivered.records // clients:,} to {who}", run.delivered.rate,
            "delivered/s", theirs.delivered.rate, against, limit="one worker's core, and the readers beside it"),
        Row(f"{key}.cpu", "the same: CPU per delivered", run.cpu_us, "µs", theirs.cpu_us, against),
        *_latencies(key, run, theirs, against),
    ]  # fmt: skip


def _beside(clients: int, series: _Series) -> tuple[Measured, str]:
    """The baseline's run with as many clients, or as many as it can bear, and what to call it."""
    most = max(each for each in series if each <= clients)
    return series[most], f"naive, {_clients(most)}"


def _clients(count: int) -> str:
    return f"{count:,} client{'s' * (count > 1)}"


_TARGETS = {(1000, "rate"): "200,000", (1000, "cpu"): "2.5 µs", (1000, "p99"): "50 ms"}


def _latencies(key: str, run: Measured, theirs: Measured, against: str, target: str = "") -> list[Row]:
    limit = "records gather while readers are written to; all share two cores"
    return [
        Row(f"{key}.{name}", f"the same: {what} latency", run.delivered.latency_ms(share), "ms",
            theirs.delivered.latency_ms(share), against, target if share == P99 else "", limit)
        for name, what, share in (("p50", "median", MEDIAN), ("p99", "99th percentile", P99))
    ]  # fmt: skip


def _curves(found: dict[str, tuple[_Series, _Series]]) -> list[Curve]:
    def lines(pick: Callable[[Measured], float], series: int = 0) -> dict[str, list[tuple[float, float]]]:
        return {name: [(at, pick(run)) for at, run in both[series].items()] for name, both in found.items()}

    clients = "clients"
    return [
        Curve("fan_out_rate", f"Delivered, at {RATE:.0f} records/s", clients, "delivered/s",
              lines(lambda run: run.delivered.rate)),
        Curve("fan_out_cpu", "Server CPU per delivered record", clients, "µs", lines(lambda run: run.cpu_us)),
        Curve("fan_out_p99", "Latency, 99th percentile", clients, "ms",
              lines(lambda run: run.delivered.latency_ms(P99))),
        Curve("burst_rate", "A burst: delivered", clients, "delivered/s", lines(lambda run: run.delivered.rate, 1)),
    ]  # fmt: skip


def latency(setting: Setting) -> Figures:
    """Ten clients at 500 records a second: how late, and what share of a core."""
    found = {}
    for running in [setting.kafkasse, *setting.baselines()]:
        with running() as server:
            topic = setting.topic()
            setting.open(server, [topic], LATENCY_CLIENTS)
            found[server.name] = setting.paced(server, [topic], LATENCY_RATE, setting.scale.paced_s, RECORD_BYTES)
            setting.clients.close_all()
    ours, rows = found.pop("kafkasse"), []
    for name, theirs in found.items():
        rows += _latency_rows(name, ours, theirs)
    return Figures(rows)


def _latency_rows(name: str, ours: Measured, theirs: Measured) -> list[Row]:
    what = f"latency, {LATENCY_CLIENTS} clients at {LATENCY_RATE:.0f}/s"
    target, limit = {"median": "0.9 ms", "99th": "3 ms", "cpu": "15 %"} if name == "naive" else {}, _LATENCY_LIMIT
    return [
        Row(f"latency.p50.{name}", f"{what}: median", ours.delivered.latency_ms(MEDIAN), "ms",
            theirs.delivered.latency_ms(MEDIAN), name, target.get("median", ""), limit),
        Row(f"latency.p99.{name}", "the same: 99th percentile", ours.delivered.latency_ms(P99), "ms",
            theirs.delivered.latency_ms(P99), name, target.get("99th", ""), limit),
        Row(f"latency.cpu.{name}", "the same: server CPU, of one core", ours.cores * 100, "%", theirs.cores * 100, name,
            target.get("cpu", ""), "a fetch for nearly every record, and a write to the kernel for each client"),
    ]  # fmt: skip


_LATENCY_LIMIT = "broker, fetch round, a turn of each loop; four processes on two cores"
