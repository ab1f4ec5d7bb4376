"""How the cost grows with the number of partitions and topics, the record size, the workers, and stalled clients."""

from __future__ import annotations

import math
import time

from bench.catch_up import ALL_FROM_0
from bench.clients import Delivered
from bench.fan_out import MEDIAN, P99
from bench.figures import Curve, Figures, Row
from bench.records import PROBE
from bench.servers import Server
from bench.testbed import PARTITIONS, RECORD_BYTES, Measured, Starter, Testbed

CLIENTS = 10
RATE = 500.0
WARM_UP_TIMEOUT_S = 60.0
SIZE_CLIENTS = 100
MAX_SIZE_BYTES_PER_S = 2_000_000  # of records, before fan-out
MAX_SIZE_RATE = 200.0
MAX_SIZE_CATCH_UP_BYTES = 60_000_000
STALLED_IN = 100
STALLED_BYTES = 8_192  # more in ten seconds than the kernel buffers for a stalled client


def partitions(testbed: Testbed) -> Figures:
    """Live delivery and catch-up with 1 to 500 partitions, with an event ID for each event or for each run of events."""
    rows: list[Row] = []
    live_lines: dict[str, list[tuple[float, float]]] = {}
    read_lines: dict[str, list[tuple[float, float]]] = {}
    for every in ("event", "run"):
        # A new broker for each: a broker that has had a thousand partitions stays slower, even after they are deleted.
        with Testbed(testbed.scale, None) as own, own.kafkasse(id_frequency=every) as server:
            for count in own.scale.partitions:
                live, read = _at_partitions(own, server, count)
                rows += _partition_rows(count, every, live, read)
                live_lines.setdefault(f"ID in every {every}", []).append((count, live.cpu_us))
                read_lines.setdefault(f"ID in every {every}", []).append((count, read.cpu_us))
    return Figures(rows, [
        Curve("partitions_live", "CPU per delivery, 10 clients at 500/s", "partitions", "µs", live_lines),
        Curve("partitions_catch_up", "CPU per record, catch-up", "partitions", "µs", read_lines),
    ])  # fmt: skip


def _at_partitions(testbed: Testbed, server: Server, count: int) -> tuple[Measured, Measured]:
    """Measure live delivery to ten clients, and catch-up by one client."""
    topic = testbed.topic(count)
    # The broker needs seconds to set up new partitions and to write the first record of each. Do that before measuring.
    testbed.producer.call("fill", topic, count, count, RECORD_BYTES, PROBE)
    testbed.open(server, [topic], CLIENTS)
    testbed.paced_in(server, topic, count, RATE, testbed.scale.growth_s, WARM_UP_TIMEOUT_S)
    live = testbed.paced_in(server, topic, count, RATE, testbed.scale.growth_s)
    testbed.clients.close_all()
    stored = testbed.producer.call("fill", topic, count, testbed.scale.growth_records, RECORD_BYTES)
    stored += 2 * int(RATE * testbed.scale.growth_s)
    read = testbed.catch_up(server, topic, dict.fromkeys(range(count), 0), stored)
    return live, read


def _partition_rows(count: int, every: str, live: Measured, read: Measured) -> list[Row]:
    key, what = f"partitions.{count}.{every}", f"{count} partition{'s' * (count > 1)}, ID in every {every}"
    limits = {
        "event": "formatting the IDs: with many partitions they are compact, with up to 24 bytes per partition",
        "run": "checking and writing each record; only the last one of a run has an ID",
    }
    limit = limits[every]
    return [
        Row(f"{key}.live.cpu", f"{what}: CPU per delivery, {CLIENTS} clients", live.cpu_us, "µs", limit=limit),
        Row(f"{key}.live.p99", f"{what}: 99th percentile latency", live.delivered.latency_ms(P99), "ms"),
        Row(f"{key}.live.cores", f"{what}: server CPU", live.cores * 100, "% of a core"),
        Row(f"{key}.live.broker", f"{what}: broker CPU", live.broker_cores * 100, "% of a core",
            limit="each fetch checks all partitions of its session"),
        Row(f"{key}.catch_up", f"{what}: catch-up", read.delivered.records / read.seconds, "records/s", limit=limit),
        Row(f"{key}.catch_up.cpu", f"{what}: catch-up, CPU per record", read.cpu_us, "µs"),
    ]  # fmt: skip


def topics(testbed: Testbed) -> Figures:
    """One client on each of several topics: idle, and with 500 records/s in total."""
    rows: list[Row] = []
    lines: dict[str, list[tuple[float, float]]] = {"idle": [], "500 records/s in total": []}
    for count in testbed.scale.topics:
        names = [testbed.topic() for _ in range(count)]
        # The broker needs seconds for the first records of 150 partitions. The server that is measured first must not pay.
        testbed.producer.call("pace", names, PARTITIONS, RATE, 2 * testbed.scale.growth_s, RECORD_BYTES)
        idle, active, sockets = _at_topics(testbed, testbed.kafkasse, names)
        lines["idle"].append((float(count), idle))
        lines["500 records/s in total"].append((float(count), active.cores * 100))
        rows += _topic_rows(count, idle, active, sockets)
        if count == max(testbed.scale.topics):
            for name, running in testbed.baselines().items():
                rows += _topic_rows(count, idle, active, sockets, name, _at_topics(testbed, running, names))
        testbed.drop(*names)
    return Figures(rows, [Curve("topics", "Server CPU by number of live topics", "topics", "% of a core", lines)])


def _at_topics(testbed: Testbed, start: Starter, names: list[str]) -> tuple[float, Measured, float]:
    """Return the CPU share without records, the delivery with 500 records/s in total, and the connections to Kafka."""
    with start() as server:
        testbed.open(server, names, len(names))
        before_s = server.cpu_s()
        time.sleep(testbed.scale.growth_s)
        idle = (server.cpu_s() - before_s) / testbed.scale.growth_s * 100
        active = testbed.paced(server, names, RATE, testbed.scale.growth_s, RECORD_BYTES)
        sockets = server.sockets_to(testbed.broker_port)
        testbed.clients.close_all()
    return idle, active, sockets


def _topic_rows(
    count: int,
    idle: float,
    active: Measured,
    sockets: float,
    against: str = "",
    other: tuple[float, Measured, float] | None = None,
) -> list[Row]:
    nothing = Measured(Delivered(), math.nan, 1.0, math.nan)
    other_idle, other_active, other_sockets = other or (math.nan, nothing, math.nan)
    what, key = f"{count} live topic{'s' * (count > 1)}", f"{count}.{against}".rstrip(".")
    busy, limit = f"{what}, 500 records/s in total", "one fetch for nearly every record"
    return [
        Row(f"topics.{key}.idle", f"{what}, idle: server CPU", idle, "% of a core", other_idle, against),
        Row(f"topics.{key}.active", f"{busy}: server CPU", active.cores * 100, "% of a core", other_active.cores * 100,
            against, limit=limit),
        Row(f"topics.{key}.p99", f"{busy}: 99th percentile latency", active.delivered.latency_ms(P99), "ms",
            other_active.delivered.latency_ms(P99), against, 10.0, limit),
        Row(f"topics.{key}.sockets", f"{busy}: connections to Kafka", sockets, "", other_sockets, against, 2.0),
    ]  # fmt: skip


def sizes(testbed: Testbed) -> Figures:
    """Catch-up by one client and fan-out to 100 clients, with records of 100 B to 100 KiB."""
    rows, read_line, live_line = [], [], []
    for size in testbed.scale.sizes:
        with testbed.kafkasse() as server:
            topic = testbed.topic()
            testbed.open(server, [topic], SIZE_CLIENTS)
            rate = min(MAX_SIZE_RATE, MAX_SIZE_BYTES_PER_S / size)
            live = testbed.paced(server, [topic], rate, testbed.scale.growth_s, size)
            testbed.clients.close_all()
            filled = testbed.topic()
            wanted = min(testbed.scale.growth_records, MAX_SIZE_CATCH_UP_BYTES // size)
            stored = testbed.producer.call("fill", filled, PARTITIONS, wanted, size)
            testbed.catch_up(server, filled, ALL_FROM_0, stored)
            read = testbed.catch_up(server, filled, ALL_FROM_0, stored)
            testbed.drop(topic, filled)
        what = f"records of {size:,} B"
        fan_out = f"{what}, {SIZE_CLIENTS} clients at {rate:.0f}/s"
        read_line.append((float(size), read.cpu_us / size * 1e3))
        live_line.append((float(size), live.cpu_us / size * 1e3))
        rows += [
            Row(f"sizes.{size}.catch_up", f"{what}: catch-up", read.delivered.records / read.seconds,
                "records/s", limit="the cost per record up to a few KiB; above that, the cost per byte"),
            Row(f"sizes.{size}.catch_up.bytes", f"{what}: catch-up in bytes",
                read.delivered.records / read.seconds * size / 1e6, "MB/s"),
            Row(f"sizes.{size}.catch_up.cpu", f"{what}: catch-up, CPU per record", read.cpu_us, "µs"),
            Row(f"sizes.{size}.live.cpu", f"{fan_out}: CPU per delivery",
                live.cpu_us, "µs", limit="the kernel's copy into each socket"),
            Row(f"sizes.{size}.live.p99", f"{fan_out}: 99th percentile latency", live.delivered.latency_ms(P99), "ms"),
        ]  # fmt: skip
    lines = {"catch-up": read_line, f"live, {SIZE_CLIENTS} clients": live_line}
    return Figures(rows, [Curve("sizes", "CPU per byte of a record", "record size in bytes", "ns/B", lines)])


def workers(testbed: Testbed) -> Figures:
    """The largest fan-out with one worker and with two workers, on the same cores."""
    rows, clients = [], max(testbed.scale.fan_out_clients)
    for count in (1, 2):
        with testbed.kafkasse(workers=count) as server:
            topic = testbed.topic()
            testbed.open(server, [topic], clients)
            run = testbed.paced(server, [topic], 200.0, testbed.scale.growth_s, RECORD_BYTES)
            burst = testbed.burst(server, topic, testbed.scale.burst_records)
            testbed.clients.close_all()
            testbed.drop(topic)
        limit = "two cores, which the clients and the broker also use; a second worker gets only what they leave"
        setup = f"{count} worker{'s' if count > 1 else ''}, {clients:,} clients"
        what = f"{setup} at 200/s"
        rows += [
            Row(f"workers.{count}.rate", what, run.delivered.rate, "deliveries/s", limit=limit),
            Row(f"workers.{count}.cpu", f"{what}: CPU per delivery", run.cpu_us, "µs"),
            Row(f"workers.{count}.p50", f"{what}: median latency", run.delivered.latency_ms(MEDIAN), "ms"),
            Row(f"workers.{count}.p99", f"{what}: 99th percentile latency", run.delivered.latency_ms(P99), "ms"),
            Row(f"workers.{count}.burst", f"{setup}: burst", burst.delivered.rate, "deliveries/s", limit=limit),
        ]
    return Figures(rows)


def stalled(testbed: Testbed) -> Figures:
    """One client in a hundred stalls: the effect on the latency of the others, and on memory."""
    rows = []
    for stalls in (0, 1):
        with testbed.kafkasse() as server:
            topic = testbed.topic()
            testbed.open(server, [topic], STALLED_IN)
            testbed.clients.stall(stalls)
            before = server.memory_bytes()
            run = testbed.paced(server, [topic], 200.0, testbed.scale.paced_s, STALLED_BYTES)
            grown = (server.memory_bytes() - before) / 2**20
            gone = testbed.clients.close_all()
        what = f"{STALLED_IN} clients at 200/s of 8 KiB, {stalls or 'none'} stalled"
        rows += [
            Row(f"stalled.{stalls}.p99", f"{what}: 99th percentile latency of the others",
                run.delivered.latency_ms(P99), "ms"),
            Row(f"stalled.{stalls}.memory", f"{what}: added memory", grown, "MiB",
                limit="the shared ring, and one fetch for each client that has fallen behind"),
            Row(f"stalled.{stalls}.complete", f"{what}: clients that received all records", run.delivered.complete, ""),
            Row(f"stalled.{stalls}.gone", f"{what}: clients that the server closed", gone, ""),
        ]  # fmt: skip
    return Figures(rows)
