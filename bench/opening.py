"""How long a client waits until its stream is open, and for its first event when one is there."""

from __future__ import annotations

import json
import re
import socket
import time

from bench.figures import Curve, Figures, Row
from bench.records import MARK
from bench.servers import Server
from bench.setting import PARTITIONS, RECORD_BYTES, Setting, middle

BASELINE_CLIENTS = 100
WAIT_S_MAX = 30.0
TARGET_CLIENTS = 500


def measure(setting: Setting) -> Figures:
    """Rows and a curve: seconds until the last of N clients that come at once has its first id."""
    scale = setting.scale
    few = min(BASELINE_CLIENTS, max(scale.opening_clients))
    with setting.kafkasse() as server:
        took = {clients: _all_open_s(setting, server, clients) for clients in scale.opening_clients}
    theirs = {}
    for running in setting.baselines():
        with running() as server:
            theirs[server.name] = _all_open_s(setting, server, few)
    against = f"naive, {few} clients, to :ok"
    limit = "Flask's and gunicorn's way of a request, one core"
    rows = [
        Row(f"opening.{clients}", f"opening {clients:,} streams at once", seconds, "s", theirs["naive"], against,
            "0.2 s" if clients == TARGET_CLIENTS else "", limit)
        for clients, seconds in took.items()
    ]  # fmt: skip
    if "KafkaSSE" in theirs:
        rows.append(
            Row("opening.KafkaSSE", f"opening {few} streams, beside KafkaSSE", took.get(few, float("nan")), "s",
                theirs["KafkaSSE"], "KafkaSSE, to :ok")
        )  # fmt: skip
    lines: dict[str, list[tuple[float, float]]] = {"kafkasse": [*took.items()]}
    lines |= {name: [(few, seconds)] for name, seconds in theirs.items()}
    return Figures(rows, [Curve("opening", "Until all streams are open", "clients", "s", lines)])


def _all_open_s(setting: Setting, server: Server, clients: int) -> float:
    """The median of some tries, each after a stream has been opened once."""
    topic = setting.topic()
    setting.open(server, [topic], 1)
    found = []
    for _ in range(setting.scale.repeats):
        began = time.monotonic()
        took = setting.clients.open([server.place(f"/{topic}")] * clients)
        found.append(time.monotonic() - began if len(took) == clients else float("nan"))
    setting.clients.close_all()
    return middle(found)


def first_event(setting: Setting) -> Figures:
    """Rows: from connecting to the first stored event, for clients that come back inside and outside of the ring."""
    with setting.kafkasse() as server:
        inside, outside = _inside(setting, server), _outside(setting, server)
    found = {}
    for running in setting.baselines():
        with running() as server:
            found[server.name] = _of_baseline(setting, server)
    rows = []
    for name, theirs in found.items():
        target = "5 ms" if name == "naive" else ""
        rows += [
            Row(f"first_event.outside.{name}", "first stored event, outside of the ring: median", outside * 1000, "ms",
                theirs * 1000, name, target, "metadata, offsets and one fetch at the broker"),
            Row(f"first_event.inside.{name}", "first stored event, inside of the ring: median", inside * 1000, "ms",
                theirs * 1000, name, target, "the way of a request; Kafka is not asked"),
        ]  # fmt: skip
    return Figures(rows)


def _inside(setting: Setting, server: Server) -> float:
    """A client's id from just before a record that other clients have just received."""
    topic = setting.topic()
    setting.clients.open([server.place(f"/{topic}")])
    before = _id_of(setting.clients.heads()[0])
    setting.producer.call("fill", topic, 1, 1, RECORD_BYTES)
    setting.clients.expect(1, WAIT_S_MAX)
    setting.clients.delivered()
    took = _median_first(setting, server, topic, before)
    setting.clients.close_all()
    return took


def _outside(setting: Setting, server: Server) -> float:
    """A client's id from before a record that was stored when nobody read the topic."""
    topic = setting.topic()
    setting.producer.call("fill", topic, 1, 2, RECORD_BYTES)
    setting.clients.open([server.place(f"/{topic}")])
    entries = json.loads(_id_of(setting.clients.heads()[0]))
    setting.clients.close_all()
    before = json.dumps([{**entry, "offset": 1} if entry["partition"] == 0 else entry for entry in entries])
    return _median_first(setting, server, topic, before)


def _of_baseline(setting: Setting, server: Server) -> float:
    topic = setting.topic()
    setting.producer.call("fill", topic, 1, 2, RECORD_BYTES)
    entries = [{"topic": topic, "partition": each, "offset": 0 if each else 1} for each in range(PARTITIONS)]
    return _median_first(setting, server, topic, json.dumps(entries))


def _id_of(head: bytes) -> str:
    found = re.search(rb"^id: (.+)$", head, re.MULTILINE)
    assert found, head
    return found[1].decode().strip()


def _median_first(setting: Setting, server: Server, topic: str, position: str) -> float:
    request = server.place(f"/{topic}", f"Last-Event-ID: {position}\r\n").request
    _first_event_s(server.port, request)
    return middle([_first_event_s(server.port, request) for _ in range(setting.scale.first_events)])


def _first_event_s(port: int, request: bytes) -> float:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), WAIT_S_MAX) as connection:
        connection.sendall(request)
        while MARK not in (data := connection.recv(65_536)):
            assert data, "the server closed the connection"
        return time.monotonic() - began
