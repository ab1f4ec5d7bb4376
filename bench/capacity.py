"""What a fleet needs, worked out from bench/results.json: `python -m bench.capacity` prints the tables of docs/capacity.md.

The formulae stand here and nowhere else; the page explains them. Beyond this machine they are arithmetic, not measurement:
the storm after a deploy is simulated, client by client, for one worker of the fleet.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from bench import report
from bench.setting import RECORD_BYTES
from kafkasse.feed.tail import MAX_PUSH_REST_S, PUSH_REST_RATIO

CLIENTS = (10_000, 100_000, 1_000_000)
RATES = (0.1, 1.0, 10.0, 100.0)
USED_SHARE = 0.6  # of a core: the rest is for storms, garbage and bad luck
STREAMS_MAX = 8_000  # of a worker, by the default configuration
KERNEL_BYTES = 8_192  # of a connection that waits: its socket and what little is buffered; an estimate, not measured
FRAME_BYTES = 330  # event, id of three partitions, _kafka, chunk and TCP headers, around each record
KAFKA_BYTES = 80  # around a record on its way from Kafka, in small batches
DRAIN_S = 1.0  # a server that stops ends its streams over this time
RETRY_JITTER = 0.5


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured. Seconds of CPU, bytes of memory.

    Attributes:
        write_s: to write to one of a thousand clients, by a delivery when records come one by one.
        record_s: for one more record in a write, by a delivery when five thousand come at once.
        round_s: to fetch and encode a record that comes alone, and give it to the first client.
        client_bytes: of one more idle client, in the worker.
        worker_bytes: of a worker without clients.
        open_s: of a worker, for one stream that is opened among a thousand.
        connections: to Kafka, of one worker that follows one topic.
    """

    write_s: float
    record_s: float
    round_s: float
    client_bytes: float
    worker_bytes: float
    open_s: float
    connections: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """What so many clients need at such a rate of records."""

    workers: int
    clients_a_worker: int
    memory_bytes: float
    fetched_bytes_s: float
    kafka_connections: float
    out_bytes_s: float


@dataclass(frozen=True, slots=True)
class Storm:
    """What the clients of one worker see when all have to come back."""

    wait_p50_s: float
    wait_p99_s: float
    all_back_s: float


def costs() -> Costs:
    """From results.json.

    Raises:
        KeyError: a full run has not measured it.
    """
    values = {row.key: row.value for each in report.read().values() for row in report.rows(each)}
    return Costs(
        write_s=values["fan_out.sparse.cpu"] / 1e6,
        record_s=values["fan_out.1000.burst.cpu"] / 1e6,
        round_s=values["fan_out.1.cpu"] / 1e6,
        client_bytes=values["idle.memory.naive"] * 1024,
        worker_bytes=values["idle.base.naive"] * 2**20,
        open_s=values["opening.1000"] / 1000,
        connections=values["sockets.1000"],
    )


def fleet(costs: Costs, clients: int, rate: float) -> Fleet:
    """A fleet for `clients` clients of one topic, which has `rate` records of 1 KiB a second."""
    clients_a_worker = next(n for n in range(STREAMS_MAX, 0, -1) if cores(costs, n, rate) <= USED_SHARE)
    workers = math.ceil(clients / clients_a_worker)
    return Fleet(
        workers,
        clients_a_worker,
        workers * costs.worker_bytes + clients * (costs.client_bytes + KERNEL_BYTES),
        workers * rate * (RECORD_BYTES + KAFKA_BYTES),
        workers * costs.connections,
        clients * rate * (RECORD_BYTES + FRAME_BYTES),
    )


def cores(costs: Costs, clients: int, rate: float) -> float:
    """The share of a core that a worker uses. Records gather while it writes, and while it rests after that."""
    push_s = clients * costs.write_s
    turn_s = push_s + min(MAX_PUSH_REST_S, PUSH_REST_RATIO * push_s)
    return min(rate, 1 / turn_s) * (costs.round_s + push_s) + clients * rate * costs.record_s


def storm(clients: int, open_s: float, retry_s: float, seed: int = 1) -> Storm:
    """Simulate it: a worker is replaced, its clients end over DRAIN_S, wait their jittered `retry:`, and come back.

    Each waits until those before it have been opened, `open_s` seconds each. Its successor is taken to be up by then.
    """
    chance = random.Random(seed)
    spread = 1 - RETRY_JITTER, 1 + RETRY_JITTER
    comes = sorted(chance.uniform(0, DRAIN_S) + retry_s * chance.uniform(*spread) for _ in range(clients))
    free, waits = 0.0, []
    for at in comes:
        free = max(free, at) + open_s
        waits.append(free - at)
    waits.sort()
    return Storm(waits[clients // 2], waits[int(clients * 0.99)], free)


def main() -> None:
    """Print the tables."""
    measured = costs()
    print(_costs_table(measured), _fleet_table(measured), _storm_table(measured), sep="\n\n")


def _costs_table(costs: Costs) -> str:
    return _table(
        ["measured", "", "value"],
        [
            ["a write to a client", "d", f"{costs.write_s * 1e6:.1f} µs"],
            ["one more record in it", "e", f"{costs.record_s * 1e6:.2f} µs"],
            ["a fetch round, and the encoding", "f", f"{costs.round_s * 1e6:,.0f} µs"],
            ["an idle client", "m", f"{costs.client_bytes / 1024:.1f} KiB"],
            ["a worker", "M", f"{costs.worker_bytes / 2**20:.0f} MiB"],
            ["opening a stream", "o", f"{costs.open_s * 1e3:.2f} ms"],
            ["connections to Kafka, a worker", "k", f"{costs.connections:.0f}"],
        ],
    )


def _fleet_table(costs: Costs) -> str:
    cells = []
    for clients in CLIENTS:
        for rate in RATES:
            need = fleet(costs, clients, rate)
            cells.append([
                f"{clients:,}", f"{rate:g}", f"{need.workers:,}", f"{need.clients_a_worker:,}",
                f"{need.memory_bytes / 1e9:,.1f} GB", f"{need.fetched_bytes_s / 1e6:,.1f} MB/s",
                f"{need.kafka_connections:,.0f}", f"{need.out_bytes_s * 8 / 1e9:,.2f} Gbit/s",
            ])  # fmt: skip
    heads = ["clients", "records/s", "workers", "clients each", "memory", "from Kafka", "connections", "to clients"]
    return _table(heads, cells)


def _storm_table(costs: Costs) -> str:
    cells = []
    for clients in (1_000, STREAMS_MAX):
        for retry_s in (0.1, 2.0, 10.0):
            seen = storm(clients, costs.open_s, retry_s)
            waits = [f"{seen.wait_p50_s:.3f} s", f"{seen.wait_p99_s:.3f} s", f"{seen.all_back_s:.1f} s"]
            cells.append([f"{clients:,}", f"{retry_s * 1000:.0f}", *waits])
    return _table(["clients of a worker", "retry_ms", "wait, median", "wait, 99th", "all back after"], cells)


def _table(heads: list[str], cells: Iterable[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *cells])


if __name__ == "__main__":
    main()
