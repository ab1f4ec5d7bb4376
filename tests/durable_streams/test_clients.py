"""The official clients read every record once and in order, while a worker of the server is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import gevent
import pytest

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.kafka import Cluster
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until

PARTITIONS, BEFORE, AFTER = 3, 3_600, 60  # records in all partitions, before and after the client has started
Command = Callable[[Path], Sequence[str]]
CLIENTS: dict[str, Command] = {
    "node": lambda suite: ["node", str(suite / "client.mjs")],
    "python": lambda _: [sys.executable, str(Path(__file__).parent / "client.py")],
}
IN_GATE = {("node", "long-poll"), ("python", "sse")}  # each client and each way of reading; the others are long


@pytest.mark.parametrize(
    ("command", "live"),
    [
        pytest.param(command, live, id=f"{name}-{live}", marks=[] if (name, live) in IN_GATE else pytest.mark.long)
        for name, command in CLIENTS.items()
        for live in ("long-poll", "sse")
    ],
)
def test_a_client_reads_through_the_death_of_a_worker(
    suite: Path, broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, command: Command, live: str
) -> None:
    pytest.importorskip("durable_streams", reason="make setup")
    topic = cluster.create(fresh_name, PARTITIONS)
    for partition in range(PARTITIONS):
        cluster.send(topic, *[b"{}"] * (BEFORE // PARTITIONS), partition=partition)
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers) as server:
        server.expect(KILLED)
        lines: list[str] = []
        words = [*command(suite), f"http://127.0.0.1:{server.port}/{topic}", live]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]})
        try:
            reading = gevent.spawn(lambda: lines.extend(iter(client.stdout.readline, "")))
            wait_until(lambda: lines)
            os.kill(server.worker, signal.SIGKILL)
            for n in range(AFTER):
                cluster.send(topic, b"{}", partition=n % PARTITIONS)
            wait_until(lambda: len(lines) >= BEFORE + AFTER)
        finally:
            client.kill()
            client.wait()
            reading.join()

    received = defaultdict(list)
    for line in lines:
        place = json.loads(line)["_kafka"]
        received[place["partition"]].append(place["offset"])
    assert BEFORE + AFTER == len(lines)
    assert all(list(range(len(offsets))) == offsets for offsets in received.values())
