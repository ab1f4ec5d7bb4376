"""How the cost grows with partitions, topics, the size of records, workers, and clients that take nothing."""

from __future__ import annotations

import time

from bench.catch_up import ALL_FROM_0
from bench.fan_out import MEDIAN, P99
from bench.figures import Curve, Figures, Row
from bench.records import PROBE
from bench.servers import Server
from bench.setting import PARTITIONS, RECORD_BYTES, Measured, Setting

CLIENTS = 10
RATE = 500.0
WARMING_S_MAX = 60.0
SIZE_CLIENTS = 100
SIZE_BYTES_A_SECOND_MAX = 2_000_000  # of records, before they are fanned out
SIZE_RATE_MAX = 200.0
SIZE_CATCH_UP_BYTES_MAX = 60_000_000
STALLED_IN = 100
STALLED_BYTES = 8_192  # in ten seconds more than the kernel keeps for a client that takes nothing


def partitions(setting: Setting) -> Figures:
    """Live and catch-up at 1 to 500 partitions, with an id in every event and with one in every run."""
    rows: list[Row] = []
    live_lines: dict[str, list[tuple[float, float]]] = {}
    read_lines: dict[str, list[tuple[float, float]]] = {}
    for every in ("event", "run"):
        # A broker of its own: one that has had a thousand partitions is busy with those, deleted or not.
        with Setting(setting.scale, None) as own, own.kafkasse(id_frequency=every) as server:
            for count in own.scale.partitions:
                live, read = _at_partitions(own, server, count)
                rows += _partition_rows(count, every, live, read)
                live_lines.setdefault(f"id in every {every}", []).append((count, live.cpu_us))
                read_lines.setdefault(f"id in every {every}", []).append((count, read.cpu_us))
    return Figures(rows, [
        Curve("partitions_live", "CPU per delivered, 10 clients at 500/s", "partitions", "µs", live_lines),
        Curve("partitions_catch_up", "CPU per message, catching up", "partitions", "µs", read_lines),
    ])  # fmt: skip


def _at_partitions(setting: Setting, server: Server, count: int) -> tuple[Measured, Measured]:
    """Live with ten clients, and catch-up by one."""
    topic = setting.topic(count)
    # The broker is busy with new partitions for seconds, and with each one's first record; that is not what is measured.
    setting.producer.call("fill", topic, count, count, RECORD_BYTES, PROBE)
    setting.open(server, [topic], CLIENTS)
    setting.paced_in(server, topic, count, RATE, setting.scale.growth_s, WARMING_S_MAX)
    live = setting.paced_in(server, topic, count, RATE, setting.scale.growth_s)
    setting.clients.close_all()
    stored = setting.producer.call("fill", topic, count, setting.scale.growth_records, RECORD_BYTES)
    stored += 2 * int(RATE * setting.scale.growth_s)
    read = setting.catch_up(server, topic, dict.fromkeys(range(count), 0), stored)
    return live, read


def _partition_rows(count: int, every: str, live: Measured, read: Measured) -> list[Row]:
    key, what = f"partitions.{count}.{every}", f"partitions: {count}, an id in every {every}"
    limits = {
        "event": "writing the ids: compact above 64 partitions, some bytes for each partition",
        "run": "checking and writing each record; an id only in the last",
    }
    limit = limits[every]
    return [
        Row(f"{key}.live.cpu", f"{what}: CPU per delivered, {CLIENTS} clients", live.cpu_us, "µs", limit=limit),
        Row(f"{key}.live.p99", "the same: 99th percentile latency", live.delivered.latency_ms(P99), "ms"),
        Row(f"{key}.live.cores", "the same: server CPU, of one core", live.cores * 100, "%"),
        Row(f"{key}.live.broker", "the same: broker's CPU, of one core", live.broker_cores * 100, "%",
            limit="each fetch looks at all partitions of its session"),
        Row(f"{key}.catch_up", "the same: catch-up", read.delivered.records / read.seconds, "messages/s", limit=limit),
        Row(f"{key}.catch_up.cpu", "the same: catch-up, CPU per message", read.cpu_us, "µs"),
    ]  # fmt: skip


def topics(setting: Setting) -> Figures:
    """One client on each of so many topics: idle, and with 500 records a second between them."""
    rows, idle_line, active_line = [], [], []
    for count in setting.scale.topics:
        names = [setting.topic() for _ in range(count)]
        with setting.kafkasse() as server:
            setting.open(server, names, count)
            before_s = server.cpu_s()
            time.sleep(setting.scale.growth_s)
            idle = (server.cpu_s() - before_s) / setting.scale.growth_s * 100
            active = setting.paced(server, names, RATE, setting.scale.growth_s, RECORD_BYTES)
            sockets = server.sockets_to(setting.broker_port)
            setting.clients.close_all()
        setting.drop(*names)
        idle_line.append((float(count), idle))
        active_line.append((float(count), active.cores * 100))
        limit = "a tail with a connection and its fetches for each topic"
        rows += [
            Row(f"topics.{count}.idle", f"live topics: {count}, idle: CPU, of one core", idle, "%", limit=limit),
            Row(f"topics.{count}.active", "the same, 500 records/s between them", active.cores * 100, "%", limit=limit),
            Row(f"topics.{count}.p99", "the same: 99th percentile latency", active.delivered.latency_ms(P99), "ms"),
            Row(f"topics.{count}.sockets", "the same: connections to Kafka", sockets, ""),
        ]
    lines = {"idle": idle_line, "500 records/s in all": active_line}
    return Figures(rows, [Curve("topics", "CPU with topics that have a reader", "topics", "% of a core", lines)])


def sizes(setting: Setting) -> Figures:
    """Catch-up by one client and fan-out to a hundred, with records of 100 B to 100 KiB."""
    rows, read_line, live_line = [], [], []
    for size in setting.scale.sizes:
        with setting.kafkasse() as server:
            topic = setting.topic()
            setting.open(server, [topic], SIZE_CLIENTS)
            rate = min(SIZE_RATE_MAX, SIZE_BYTES_A_SECOND_MAX / size)
            live = setting.paced(server, [topic], rate, setting.scale.growth_s, size)
            setting.clients.close_all()
            filled = setting.topic()
            wanted = min(setting.scale.growth_records, SIZE_CATCH_UP_BYTES_MAX // size)
            stored = setting.producer.call("fill", filled, PARTITIONS, wanted, size)
            setting.catch_up(server, filled, ALL_FROM_0, stored)
            read = setting.catch_up(server, filled, ALL_FROM_0, stored)
            setting.drop(topic, filled)
        what = f"{size:,} B"
        read_line.append((float(size), read.cpu_us / size * 1e3))
        live_line.append((float(size), live.cpu_us / size * 1e3))
        rows += [
            Row(f"sizes.{size}.catch_up", f"records of {what}: catch-up", read.delivered.records / read.seconds,
                "messages/s", limit="per record below some KiB, per byte above"),
            Row(f"sizes.{size}.catch_up.bytes", "the same in bytes", read.delivered.records / read.seconds * size / 1e6,
                "MB/s"),
            Row(f"sizes.{size}.catch_up.cpu", "the same: CPU per message", read.cpu_us, "µs"),
            Row(f"sizes.{size}.live.cpu", f"the same, to {SIZE_CLIENTS} clients at {rate:.0f}/s: CPU per delivered",
                live.cpu_us, "µs", limit="the kernel's copy into each socket"),
            Row(f"sizes.{size}.live.p99", "the same: 99th percentile latency", live.delivered.latency_ms(P99), "ms"),
        ]  # fmt: skip
    lines = {"catch-up": read_line, f"live, {SIZE_CLIENTS} clients": live_line}
    return Figures(rows, [Curve("sizes", "CPU per byte of record", "bytes of a record", "ns/B", lines)])


def workers(setting: Setting) -> Figures:
    """The largest fan-out with one worker and with two, on the same cores."""
    rows, clients = [], max(setting.scale.fan_out_clients)
    for count in (1, 2):
        with setting.kafkasse(workers=count) as server:
            topic = setting.topic()
            setting.open(server, [topic], clients)
            run = setting.paced(server, [topic], 200.0, setting.scale.growth_s, RECORD_BYTES)
            burst = setting.burst(server, topic, setting.scale.burst_records)
            setting.clients.close_all()
            setting.drop(topic)
        limit = "the machine's two cores, which readers and broker use too: a second worker wins only what they leave"
        what = f"{count} worker{'s' if count > 1 else ''}, {clients:,} clients"
        rows += [
            Row(f"workers.{count}.rate", f"{what} at 200/s", run.delivered.rate, "delivered/s", limit=limit),
            Row(f"workers.{count}.cpu", "the same: CPU per delivered", run.cpu_us, "µs"),
            Row(f"workers.{count}.p50", "the same: median latency", run.delivered.latency_ms(MEDIAN), "ms"),
            Row(f"workers.{count}.p99", "the same: 99th percentile latency", run.delivered.latency_ms(P99), "ms"),
            Row(f"workers.{count}.burst", "the same, a burst", burst.delivered.rate, "delivered/s", limit=limit),
        ]
    return Figures(rows)


def stalled(setting: Setting) -> Figures:
    """One reader in a hundred takes nothing: what the others notice, and what memory it costs."""
    rows = []
    for stalls in (0, 1):
        with setting.kafkasse() as server:
            topic = setting.topic()
            setting.open(server, [topic], STALLED_IN)
            setting.clients.stall(stalls)
            before = server.memory_bytes()
            run = setting.paced(server, [topic], 200.0, setting.scale.paced_s, STALLED_BYTES)
            grown = (server.memory_bytes() - before) / 2**20
            gone = setting.clients.close_all()
        what = f"{STALLED_IN} clients at 200/s of 8 KiB, {stalls or 'none'} of them stalled"
        rows += [
            Row(f"stalled.{stalls}.p99", f"{what}: 99th percentile latency of the others",
                run.delivered.latency_ms(P99), "ms"),
            Row(f"stalled.{stalls}.memory", "the same: memory that was added", grown, "MiB",
                limit="the shared ring, and a fetch for each that has fallen behind"),
            Row(f"stalled.{stalls}.complete", "the same: readers that got all", run.delivered.complete, ""),
            Row(f"stalled.{stalls}.gone", "the same: readers that were closed meanwhile", gone, ""),
        ]  # fmt: skip
    return Figures(rows)
