"""What clients cost that only wait: memory, CPU, and connections to Kafka."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figures import Curve, Figures, Row
from bench.servers import Server
from bench.setting import Setting

WARM_CLIENTS = 20


@dataclass(frozen=True, slots=True)
class _Idle:
    bytes_each: float
    cores: float
    sockets: int
    base_bytes: float


def measure(setting: Setting) -> Figures:
    """Rows per idle client, and the connections to the broker at each number of clients."""
    scale = setting.scale
    with setting.kafkasse() as server:
        ours = _idle(setting, server, scale.idle_clients)
    sockets = [(clients, _sockets(setting, clients)) for clients in scale.fan_out_clients]
    theirs, lines = {}, {"kafkasse": [(float(clients), float(held)) for clients, held in sockets]}
    for running in setting.baselines():
        with running() as server:
            theirs[server.name] = _idle(setting, server, scale.idle_baseline_clients)
            lines[server.name] = [(scale.idle_baseline_clients, theirs[server.name].sockets)]
    rows = [row for name, each in theirs.items() for row in _rows(setting, name, ours, each)]
    rows += _socket_rows(sockets, theirs["naive"], scale.idle_baseline_clients)
    return Figures(rows, [Curve("sockets", "Connections to Kafka for one topic", "clients", "connections", lines)])


def _rows(setting: Setting, name: str, ours: _Idle, theirs: _Idle) -> list[Row]:
    few, many = setting.scale.idle_baseline_clients, setting.scale.idle_clients
    first = name == "naive"
    against = f"{name}, {few} clients"
    return [
        Row(f"idle.memory.{name}", f"memory for one of {many:,} idle clients", ours.bytes_each / 1024, "KiB",
            theirs.bytes_each / 1024, against, "10 KiB" if first else "",
            "a stream, a reader, a socket and its watcher; no greenlet"),
        Row(f"idle.cpu.{name}", "CPU of one idle client", ours.cores / many * 1e6, "µs/s",
            theirs.cores / few * 1e6, against, limit="the feed's fetch round twice a second, shared"),
        Row(f"idle.total.{name}", f"CPU of {many:,} idle clients, of one core", ours.cores * 100, "%",
            theirs.cores * 100, against),
        Row(f"idle.base.{name}", "memory of the server with its first clients", ours.base_bytes / 2**20, "MiB",
            theirs.base_bytes / 2**20, name),
    ]  # fmt: skip


def _socket_rows(sockets: list[tuple[int, int]], theirs: _Idle, few: int) -> list[Row]:
    return [
        Row(f"sockets.{clients}", f"connections to Kafka, {clients:,} live clients", held, "", theirs.sockets,
            f"naive, {few} clients", "one consumer" if clients == sockets[-1][0] else "",
            "one that fetches, one for questions")
        for clients, held in sockets
    ]  # fmt: skip


def _idle(setting: Setting, server: Server, clients: int) -> _Idle:
    """Some clients come first, so that what the server makes once is not counted."""
    topic = setting.topic()
    place = server.place(f"/{topic}")
    warm = min(WARM_CLIENTS, clients)
    setting.open(server, [topic], warm)
    base_bytes = server.memory_bytes()
    setting.clients.open([place] * clients)
    bytes_each = (server.memory_bytes() - base_bytes) / clients
    sockets = server.sockets_to(setting.broker_port)
    before_s = server.cpu_s()
    time.sleep(setting.scale.idle_s)
    cores = (server.cpu_s() - before_s) / setting.scale.idle_s
    setting.clients.close_all()
    return _Idle(bytes_each, cores, sockets, base_bytes)


def _sockets(setting: Setting, clients: int) -> int:
    """In a server of its own: feeds whose readers have left would stay for a while."""
    with setting.kafkasse() as server:
        setting.open(server, [setting.topic()], clients)
        held = server.sockets_to(setting.broker_port)
        setting.clients.close_all()
    return held
