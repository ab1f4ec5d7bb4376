"""The official clients read every record once and in order, or learn which records are gone, whatever the server does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from kafkasse.tools.broker import EmbeddedBroker
from tests.chaos.network import Network
from tests.durable_streams.changing_app import TOPIC
from tests.history.checker import Bounds, Connection, History, StoredRecord, violations
from tests.support.client import fetch
from tests.support.kafka import Cluster
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until
from tests.web.conftest import CHROMIUM, start_chromium

PARTITIONS, BEFORE, AFTER = 3, 3_600, 60  # records in all partitions, before and after a change
CUT_EVERY_S = 0.7
POLL_S = 0.05


class Reader:
    """An official client that runs, and what it has received.

    Attributes:
        lines: a record or a gap in each.
        arrivals: how many bytes the client had received when.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.lines: list[str] = []
        self.arrivals: list[tuple[int, float]] = []
        self._size = 0

    def receive(self, line: str) -> None:
        self.lines.append(line)
        self._size += len(line)
        self.arrivals.append((self._size, time.monotonic()))

    def offsets(self, since: int = 0) -> dict[int, list[int]]:
        """Return the offsets that the client has received by partition, without the first lines."""
        received = defaultdict(list)
        for line in self.lines[since:]:
            if (place := json.loads(line).get("_kafka")) is not None:
                received[place["partition"]].append(place["offset"])
        return received


Start = Callable[[Path, str, str, Reader], Any]


@contextmanager
def program(words: Sequence[str], url: str, live: str, reader: Reader) -> Iterator[None]:
    client = subprocess.Popen([*words, url, live], stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]})
    assert client.stdout is not None
    reading = gevent.spawn(lambda: [reader.receive(line) for line in iter(client.stdout.readline, "")])  # type: ignore[union-attr]
    try:
        yield
    finally:
        client.kill()
        client.wait()
        reading.join()


def node(suite: Path, url: str, live: str, reader: Reader) -> Any:
    return program(["node", str(suite / "client.mjs")], url, live, reader)


def python(_: Path, url: str, live: str, reader: Reader) -> Any:
    pytest.importorskip("durable_streams", reason="make setup")
    return program([sys.executable, str(Path(__file__).parent / "client.py")], url, live, reader)


@contextmanager
def chromium(suite: Path, url: str, live: str, reader: Reader) -> Iterator[None]:
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed: apt-get install chromium chromium-driver")
    bundle = ["npx", "rolldown", "client.mjs", "--format", "iife", "--name", "client", "--file", "browser.js"]
    subprocess.run(bundle, cwd=suite, check=True, capture_output=True)
    browser = start_chromium(suite / "profile")

    def receive() -> None:
        while True:
            for line in browser.execute_script("return lines.splice(0)"):
                reader.receive(line + "\n")
            gevent.sleep(POLL_S)

    try:
        start = "window.lines = []; client.read(...arguments, item => lines.push(JSON.stringify(item)))"
        browser.get(url.rpartition("/")[0] + "/-/health")
        browser.execute_script(f"{(suite / 'browser.js').read_text()}; {start}", url, live)
        reading = gevent.spawn(receive)
        try:
            yield
        finally:
            reading.kill()
    finally:
        browser.quit()


IN_GATE = {(node, "long-poll"), (python, "sse"), (chromium, "long-poll")}  # the others are long
CLIENTS = pytest.mark.parametrize(
    ("start", "live"),
    [
        pytest.param(start, live, id=f"{start.__name__}-{live}", marks=() if (start, live) in IN_GATE else pytest.mark.long)
        for start in (node, python, chromium)
        for live in ("long-poll", "sse")
    ],
)  # fmt: skip


@CLIENTS
def test_a_client_reads_through_cuts_killed_workers_and_upgrades(
    suite: Path, broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, start: Start, live: str
) -> None:
    """The platform ends each response after a short time. Old and new servers, whose chunks differ, are behind one proxy."""
    topic = cluster.create(fresh_name, PARTITIONS)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        sent += count
        for partition in range(PARTITIONS):
            cluster.send(topic, *[b"{}"] * (count // PARTITIONS), partition=partition)

    send(BEFORE)
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_CORS_ORIGINS": "*"}
    reader = Reader()
    with Server(**variables) as old:
        old.expect(KILLED)
        network = Network(old.port)
        with start(suite, f"http://127.0.0.1:{network.port}/{topic}", live, reader):
            wait_until(lambda: reader.lines)
            os.kill(old.worker, signal.SIGKILL)
            send(AFTER)
            wait_until(lambda: len(reader.lines) >= sent)
            with Server("tests.durable_streams.changing_app:upgraded()", **variables) as new:
                for turn in range(6):
                    network.target_port = (new, old)[turn % 2].port
                    send(AFTER)
                    gevent.sleep(CUT_EVERY_S)
                    network.cut()
                send(BEFORE)
                network.target_port = new.port
                old.terminate()
                wait_until(lambda: len(reader.lines) >= sent)
        network.close()

    assert {partition: [*range(sent // PARTITIONS)] for partition in range(PARTITIONS)} == reader.offsets()
    assert sent == len(reader.lines)


@CLIENTS
def test_a_client_reads_through_changes_of_its_topic(suite: Path, start: Start, live: str) -> None:
    """Or learns which records are gone: by retention, after truncations, and from a recreated topic."""
    reader = Reader()
    with (
        Server("tests.durable_streams.changing_app:app()") as server,
        start(suite, f"http://127.0.0.1:{server.port}/{TOPIC}", live, reader),
    ):
        for change in ("append", "retain", "truncate", "recreate", "grow", "truncate", "retain"):
            wait_until(lambda: reader.lines)
            before = len(reader.lines)
            state = fetch(server.port, f"/-/change/{change}", "POST").json
            ends = {partition: end for _, partition, _, _, _, end in state["bounds"]}
            wait_until(lambda ends=ends, before=before: ends == ends_of(reader.offsets(before)))

    stored = [
        StoredRecord(*place, key, value.encode(), topic_id=topic_id, epoch=epoch)
        for *place, key, value, topic_id, epoch in state["stored"]
    ]
    bounds = defaultdict(list)
    for topic, partition, *values in state["bounds"]:
        bounds[topic, partition].append(Bounds(*values))
    body = "".join(reader.lines).encode()
    connections = [Connection(None, 200, body, True, reader.began, reader.arrivals)]
    history = History("client", [TOPIC], connections, start="earliest", wire="lines")
    reached = {(TOPIC, partition): end for partition, end in ends.items()}
    assert [] == violations([history], stored, reached=reached, bounds=bounds)
    assert {"removed by retention", "the log was truncated", "the topic was deleted and recreated"} == {
        gap["reason"] for line in reader.lines if (gap := json.loads(line)).get("event") == "gap"
    }


def test_the_example_stops_after_a_permanent_error(suite: Path) -> None:
    with Server("tests.durable_streams.changing_app:app()") as server:
        words = ["node", str(suite / "client.mjs"), f"http://127.0.0.1:{server.port}/missing", "long-poll"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (1, "") == (done.returncode, done.stdout)
    assert "status: 404" in done.stderr


def ends_of(received: dict[int, list[int]]) -> dict[int, int]:
    return {partition: offsets[-1] + 1 for partition, offsets in received.items()}
