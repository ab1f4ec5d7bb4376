"""Personal streams: each client has its own key, and all clients share one topic and one feed."""

from __future__ import annotations

import socket
import time

from bench.clients import Request
from bench.fan_out import P99
from bench.figures import Curve, Figures, Row
from bench.records import value
from bench.remote import Remote
from bench.testbed import RECORD_BYTES, Measured, Testbed

RATE = 1000.0


class PacedSender:
    """A server that only sends prepared bytes: one event at a time, to one client after another."""

    def listen(self) -> int:
        """Listen on a free port. Returns the port."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        return int(self._listener.getsockname()[1])

    def send(self, clients: int, rate: float, seconds: float) -> float:
        """Accept clients, and send them events at a steady rate. Returns the CPU time of one send(), in seconds."""
        frame = b"event: message\ndata: " + value(RECORD_BYTES) + b"\nid: " + b"x" * 150 + b"\n\n"
        accepted = [self._listener.accept()[0] for _ in range(clients)]
        for each in accepted:
            each.sendall(b"HTTP/1.1 200 OK\r\n\r\nid: \n\n")
        count, cpu_s, began = int(rate * seconds), 0.0, time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            before_s = time.process_time()
            accepted[number % clients].sendall(frame)
            cpu_s += time.process_time() - before_s
        for each in accepted:
            each.close()
        return cpu_s / count


def measure(testbed: Testbed) -> Figures:
    """Clients with a key each at 1,000 records/s: the CPU time beyond the deliveries, by number of clients."""
    few, many = testbed.scale.personal_clients
    sending_s = _sending(testbed, many)
    found = {clients: _personal(testbed, clients) for clients in (few, many)}
    rows = [row for clients, run in found.items() for row in _rows(clients, run, sending_s)]
    ratio = _cost_us(found[many]) / _cost_us(found[few])
    rows.append(Row("personal.ratio", f"cost per record, {many:,} personal streams / {few:,}", ratio, "",
                    limit="the cost does not depend on the number of subscribers"))  # fmt: skip
    line = [(float(clients), _cost_us(run)) for clients, run in found.items()]
    title = f"Server CPU per record, a key for each client, at {RATE:.0f} records/s"
    return Figures(rows, [Curve("personal", title, "clients", "µs", {"kafkasse": line})])


def _sending(testbed: Testbed, clients: int) -> float:
    """Return the CPU time of one delivery by a process that only sends."""
    with Remote(PacedSender) as sender:
        port = sender.call("listen")
        sender.start("send", clients, RATE, testbed.scale.personal_s)
        testbed.clients.open([Request(port, "/", b"\nid: ")] * clients)
        testbed.clients.expect(10**12, testbed.scale.personal_s * 2)
        sending_s = float(sender.result())
        testbed.clients.delivered()
        testbed.clients.close_all()
    return sending_s


def _personal(testbed: Testbed, clients: int) -> Measured:
    with testbed.kafkasse(max_streams=str(clients + 1), client_filters="key") as server:
        topic = testbed.topic()
        testbed.clients.open([server.request(f"/{topic}?key={number}") for number in range(clients)])
        run = testbed.personal(server, topic, clients, RATE, testbed.scale.personal_s)
        testbed.clients.close_all()
        testbed.drop(topic)
    return run


def _cost_us(run: Measured) -> float:
    return run.cpu_us


def _rows(clients: int, run: Measured, sending_s: float) -> list[Row]:
    key, what = f"personal.{clients}", f"{clients:,} personal streams at {RATE:.0f}/s"
    beyond = run.cores - sending_s * run.delivered.rate
    limit = "the fetches, one for nearly every record"
    return [
        Row(f"{key}.beyond", f"{what}: CPU beyond the deliveries", beyond * 100, "% of a core", goal=30.0, limit=limit),
        Row(f"{key}.cpu", f"{what}: CPU per record", _cost_us(run), "µs", limit=limit),
        Row(f"{key}.sending", f"{what}: CPU per delivery of a process that only sends", sending_s * 1e6, "µs"),
        Row(f"{key}.complete", f"{what}: clients that received all records", run.delivered.complete, "clients",
            goal=clients),
        Row(f"{key}.p99", f"{what}: 99th percentile latency", run.delivered.latency_ms(P99), "ms"),
    ]  # fmt: skip
