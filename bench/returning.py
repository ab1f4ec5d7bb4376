"""The return of all clients of a worker after a deploy or a crash: they connect to a new worker at the same time.

Each client has missed the same records. The new worker's ring is empty, so the records have to be read from Kafka.
"""

from __future__ import annotations

import math

from bench.fan_out import client_count
from bench.figures import Figures, Row
from bench.testbed import CATCH_UP_TIMEOUT_S, PARTITIONS, RECORD_BYTES, Starter, Testbed

MAX_BASELINE_CLIENTS = 100
_FIGURES = (
    ("served", "clients that received all missed records", "clients"),
    ("rejected", "streams that the server rejected or closed", ""),
    ("seconds", "time until the last client has received them", "s"),
    ("cpu", "server CPU per client", "ms"),
    ("memory", "added memory", "MiB"),
)


def measure(testbed: Testbed) -> Figures:
    """Rows for each number of clients."""
    rows = []
    for clients in testbed.scale.returning_clients:
        own = _return(testbed, testbed.kafkasse, clients)
        few = clients <= MAX_BASELINE_CLIENTS
        others = {name: _return(testbed, start, clients) for name, start in testbed.baselines().items() if few}
        rows += _rows(clients, own, others)
    return Figures(rows)


def _return(testbed: Testbed, start: Starter, clients: int) -> tuple[float, ...]:
    """Start a server, connect all clients to it with a Last-Event-ID, and return the values of _FIGURES."""
    topic = testbed.topic()
    missed = testbed.producer.call("fill", topic, PARTITIONS, testbed.scale.missed_records, RECORD_BYTES)
    entries = ",".join(f'{{"topic":"{topic}","partition":{each},"offset":0}}' for each in range(PARTITIONS))
    with start() as server:
        testbed.open(server, [testbed.topic()], 1)  # the server's first connection to Kafka is not measured
        testbed.clients.close_all()
        before_s, before = server.cpu_s(), server.memory_bytes()
        request = server.request(f"/{topic}", f"Last-Event-ID: [{entries}]\r\n")
        began = testbed.clients.connect([request] * clients)
        testbed.clients.expect(missed, CATCH_UP_TIMEOUT_S)
        delivered = testbed.clients.delivered()
        seconds = delivered.ended / 1e9 - began if delivered.complete == clients else math.nan
        cpu_ms, grown = (server.cpu_s() - before_s) * 1e3, (server.memory_bytes() - before) / 2**20
        rejected = testbed.clients.close_all()
    testbed.drop(topic)
    return delivered.complete, rejected, seconds, cpu_ms / clients, grown


def _rows(clients: int, own: tuple[float, ...], others: dict[str, tuple[float, ...]]) -> list[Row]:
    rows = []
    for at, (name, text, unit) in enumerate(_FIGURES):
        what, goal = f"{client_count(clients)} return: {text}", {"served": clients, "rejected": 0}.get(name, math.nan)
        compared = [(f"returning.{clients}.{name}.{other}", values[at], other) for other, values in others.items()]
        for key, baseline, against in compared or [(f"returning.{clients}.{name}", math.nan, "")]:
            rows.append(Row(key, what, own[at], unit, baseline, against, goal))
    return rows
