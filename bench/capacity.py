"""Compute what a fleet of workers needs, from the costs in bench/results.json.

`python -m bench.capacity` prints the tables of docs/capacity.md, which explains the formulas. The costs are measured on one
machine; the results for a fleet are computed. The reconnects after a deploy are simulated, client by client, for one
worker.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from bench import report
from bench.testbed import RECORD_BYTES
from kafkasse.feed.tail import MAX_PUSH_REST_S, PUSH_REST_RATIO

CLIENTS = (10_000, 100_000, 1_000_000)
RATES = (1.0, 10.0, 100.0)
USED_SHARE = 0.6  # of a core; the rest is a reserve for reconnects and garbage collection
MAX_STREAMS = 8_000  # per worker, in the default configuration
KERNEL_BYTES = 8_192  # of an idle connection: the socket and its buffers; an estimate, not measured
FRAME_BYTES = 330  # per record: event fields, ID for three partitions, _kafka, chunk and TCP headers
KAFKA_BYTES = 80  # per record: the overhead of Kafka's protocol with small batches
DRAIN_S = 1.0  # a server that stops closes its streams during this time
RETRY_JITTER = 0.5


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured costs, in CPU seconds and bytes of memory.

    Attributes:
        write_s: CPU time of a write to one client, measured with 1,000 clients and one record per write.
        record_s: CPU time of one more record in a write, measured with a burst of 5,000 records.
        fetch_s: CPU time to fetch and encode a single record and deliver it to the first client.
        client_bytes: memory of the worker for one more idle client.
        worker_bytes: memory of a worker with almost no clients.
        open_s: CPU time of the worker to open one stream, measured with 1,000 streams.
        connections: connections to Kafka of a worker with one live topic.
    """

    write_s: float
    record_s: float
    fetch_s: float
    client_bytes: float
    worker_bytes: float
    open_s: float
    connections: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The resources that a number of clients needs at a rate of records."""

    workers: int
    clients_per_worker: int
    memory_bytes: float
    fetched_bytes_per_s: float
    kafka_connections: float
    sent_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ReconnectStorm:
    """How long the clients of one worker wait when all of them reconnect."""

    wait_p50_s: float
    wait_p99_s: float
    all_open_s: float


def costs() -> Costs:
    """Return the costs from results.json.

    Raises:
        KeyError: results.json lacks a figure, because there was no full run.
    """
    values = {row.key: row.value for each in report.read().values() for row in report.rows(each)}
    return Costs(
        write_s=values["fan_out.sparse.cpu"] / 1e6,
        record_s=values["fan_out.1000.burst.cpu"] / 1e6,
        fetch_s=values["fan_out.1.cpu.consumer-per-client"] / 1e6,
        client_bytes=values["idle.memory.1000"] * 1024,
        worker_bytes=values["idle.base.1000"] * 2**20,
        open_s=values["opening.1000"] / 1000,
        connections=values["sockets.1000"],
    )


def fleet(costs: Costs, clients: int, rate: float) -> Fleet:
    """Return the fleet for `clients` clients of one topic with `rate` records of 1 KiB per second."""
    clients_per_worker = next(n for n in range(MAX_STREAMS, 0, -1) if cores(costs, n, rate) <= USED_SHARE)
    workers = math.ceil(clients / clients_per_worker)
    return Fleet(
        workers,
        clients_per_worker,
        workers * costs.worker_bytes + clients * (costs.client_bytes + KERNEL_BYTES),
        workers * rate * (RECORD_BYTES + KAFKA_BYTES),
        workers * costs.connections,
        clients * rate * (RECORD_BYTES + FRAME_BYTES),
    )


def cores(costs: Costs, clients: int, rate: float) -> float:
    """Return the share of a core that a worker uses.

    Records accumulate while the worker writes to its clients, and during the pause that follows. They share one write.
    """
    push_s = clients * costs.write_s
    turn_s = push_s + min(MAX_PUSH_REST_S, PUSH_REST_RATIO * push_s)
    return min(rate, 1 / turn_s) * (costs.fetch_s + push_s) + clients * rate * costs.record_s


def reconnect_storm(clients: int, open_s: float, retry_s: float, seed: int = 1) -> ReconnectStorm:
    """Simulate the replacement of a worker.

    The worker closes its streams during DRAIN_S. Each client waits for its `retry:` with jitter, and reconnects. The new
    worker, which is assumed to be ready, opens one stream after the other, `open_s` seconds each.
    """
    rng = random.Random(seed)
    spread = 1 - RETRY_JITTER, 1 + RETRY_JITTER
    arrivals = sorted(rng.uniform(0, DRAIN_S) + retry_s * rng.uniform(*spread) for _ in range(clients))
    free, waits = 0.0, []
    for at in arrivals:
        free = max(free, at) + open_s
        waits.append(free - at)
    waits.sort()
    return ReconnectStorm(waits[clients // 2], waits[int(clients * 0.99)], free)


def main() -> None:
    """Print the tables."""
    measured = costs()
    print(_costs_table(measured), _fleet_table(measured), _storm_table(measured), sep="\n\n")


def _costs_table(costs: Costs) -> str:
    return _table(
        ["measured", "symbol", "value"],
        [
            ["write to one client", "d", f"{costs.write_s * 1e6:.1f} µs"],
            ["one more record in a write", "e", f"{costs.record_s * 1e6:.2f} µs"],
            ["fetch and encode", "f", f"{costs.fetch_s * 1e6:,.0f} µs"],
            ["idle client", "m", f"{costs.client_bytes / 1024:.1f} KiB"],
            ["worker", "M", f"{costs.worker_bytes / 2**20:.0f} MiB"],
            ["open a stream", "o", f"{costs.open_s * 1e3:.2f} ms"],
            ["connections to Kafka, per worker", "k", f"{costs.connections:.0f}"],
        ],
    )


def _fleet_table(costs: Costs) -> str:
    cells = []
    for clients in CLIENTS:
        for rate in RATES:
            need = fleet(costs, clients, rate)
            cells.append([
                f"{clients:,}", f"{rate:g}", f"{need.workers:,}", f"{need.clients_per_worker:,}",
                f"{need.memory_bytes / 1e9:,.1f} GB", f"{need.fetched_bytes_per_s / 1e6:,.1f} MB/s",
                f"{need.kafka_connections:,.0f}", f"{need.sent_bytes_per_s * 8 / 1e9:,.2f} Gbit/s",
            ])  # fmt: skip
    heads = [
        "clients",
        "records/s",
        "workers",
        "clients per worker",
        "memory",
        "from Kafka",
        "connections",
        "to clients",
    ]
    return _table(heads, cells)


def _storm_table(costs: Costs) -> str:
    cells = []
    for clients in (1_000, MAX_STREAMS):
        for retry_s in (0.1, 2.0, 10.0):
            seen = reconnect_storm(clients, costs.open_s, retry_s)
            waits = [f"{seen.wait_p50_s:.3f} s", f"{seen.wait_p99_s:.3f} s", f"{seen.all_open_s:.1f} s"]
            cells.append([f"{clients:,}", f"{retry_s * 1000:.0f}", *waits])
    return _table(
        ["clients of the worker", "retry_ms", "wait, median", "wait, 99th percentile", "all open after"], cells
    )


def _table(heads: list[str], cells: Iterable[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *cells])


if __name__ == "__main__":
    main()
