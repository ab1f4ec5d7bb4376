"""How long a client waits until its stream is open, and until it receives the first stored event."""

from __future__ import annotations

import json
import math
import re
import socket
import time

from bench.figures import Curve, Figures, Row
from bench.records import MARK
from bench.servers import Server
from bench.testbed import PARTITIONS, RECORD_BYTES, Testbed, median_or_nan

BASELINE_CLIENTS = 100
EVENT_TIMEOUT_S = 30.0
GOAL_CLIENTS = 500


def measure(testbed: Testbed) -> Figures:
    """Rows and a curve: seconds until N clients that connect at the same time have received their first event ID."""
    sizes = testbed.scale.opening_clients
    few = [clients for clients in sizes if clients <= BASELINE_CLIENTS]
    with testbed.kafkasse() as server:
        took = {clients: _all_open_s(testbed, server, clients) for clients in sizes}
    others = {}
    for name, running in testbed.baselines().items():
        with running() as server:
            others[name] = {clients: _all_open_s(testbed, server, clients) for clients in few}
    rows = [row for clients, seconds in took.items() for row in _rows(clients, seconds, others)]
    lines = {name: [*found.items()] for name, found in {"kafkasse": took, **others}.items()}
    return Figures(rows, [Curve("opening", "Time until all streams are open", "clients", "s", lines)])


def _rows(clients: int, seconds: float, others: dict[str, dict[int, float]]) -> list[Row]:
    """Baselines send :ok before they have found the client's position, which is earlier than kafkasse's first event ID."""
    what = f"open {clients:,} stream{'s' * (clients > 1)} at the same time"
    goal = 0.2 if clients == GOAL_CLIENTS else math.nan
    limit = "one core: the request handling of Flask and gunicorn"
    compared = [
        (f".{name}", found[clients], f"{name}, until :ok") for name, found in others.items() if clients in found
    ]
    return [
        Row(f"opening.{clients}{suffix}", what, seconds, "s", baseline, against, goal, limit)
        for suffix, baseline, against in compared or [("", math.nan, "")]
    ]


def _all_open_s(testbed: Testbed, server: Server, clients: int) -> float:
    """Return the time, after one stream has already been opened. NaN if not all streams could be opened."""
    topic = testbed.topic()
    testbed.open(server, [topic], 1)
    began = time.monotonic()
    took = testbed.clients.open([server.request(f"/{topic}")] * clients)
    all_open_s = time.monotonic() - began
    testbed.clients.close_all()
    return all_open_s if len(took) == clients else math.nan


def first_event(testbed: Testbed) -> Figures:
    """Rows: the time from connecting to the first stored event, for positions in the ring and older ones."""
    with testbed.kafkasse() as server:
        in_ring, older = _in_ring(testbed, server), _older_than_ring(testbed, server)
    found = {}
    for name, running in testbed.baselines().items():
        with running() as server:
            found[name] = _of_baseline(testbed, server)
    rows = []
    for name, other in found.items():
        rows += [
            Row(f"first_event.outside.{name}", "first stored event, position older than the ring: median",
                older * 1000, "ms", other * 1000, name, 5.0, "three requests to the broker: metadata, offsets, fetch"),
            Row(f"first_event.inside.{name}", "first stored event, position in the ring: median", in_ring * 1000, "ms",
                other * 1000, name, 5.0, "request handling; no request to Kafka"),
        ]  # fmt: skip
    return Figures(rows)


def _in_ring(testbed: Testbed, server: Server) -> float:
    """Resume before a record that the server has just delivered to other clients."""
    topic = testbed.topic()
    testbed.clients.open([server.request(f"/{topic}")])
    before = _id_of(testbed.clients.heads()[0])
    testbed.producer.call("fill", topic, 1, 1, RECORD_BYTES)
    testbed.clients.expect(1, EVENT_TIMEOUT_S)
    testbed.clients.delivered()
    took = _median_first(testbed, server, topic, before)
    testbed.clients.close_all()
    return took


def _older_than_ring(testbed: Testbed, server: Server) -> float:
    """Resume before a record that was stored while the topic had no readers."""
    topic = testbed.topic()
    testbed.producer.call("fill", topic, 1, 2, RECORD_BYTES)
    testbed.clients.open([server.request(f"/{topic}")])
    entries = json.loads(_id_of(testbed.clients.heads()[0]))
    testbed.clients.close_all()
    before = json.dumps([{**entry, "offset": 1} if entry["partition"] == 0 else entry for entry in entries])
    return _median_first(testbed, server, topic, before)


def _of_baseline(testbed: Testbed, server: Server) -> float:
    topic = testbed.topic()
    testbed.producer.call("fill", topic, 1, 2, RECORD_BYTES)
    entries = [{"topic": topic, "partition": each, "offset": 0 if each else 1} for each in range(PARTITIONS)]
    return _median_first(testbed, server, topic, json.dumps(entries))


def _id_of(head: bytes) -> str:
    found = re.search(rb"^id: (.+)$", head, re.MULTILINE)
    assert found, head
    return found[1].decode().strip()


def _median_first(testbed: Testbed, server: Server, topic: str, position: str) -> float:
    request = server.request(f"/{topic}", f"Last-Event-ID: {position}\r\n").encoded
    _first_event_s(server.port, request)
    return median_or_nan([_first_event_s(server.port, request) for _ in range(testbed.scale.first_events)])


def _first_event_s(port: int, request: bytes) -> float:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), EVENT_TIMEOUT_S) as connection:
        connection.sendall(request)
        while MARK not in (data := connection.recv(65_536)):
            assert data, "the server closed the connection"
        return time.monotonic() - began
