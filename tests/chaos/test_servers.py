"""Servers and the network to clients fail. Clients reconnect to any server and lose nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.network import Conditions
from tests.chaos.scene import Scene, connect_clients, never_disconnected, wait_for_records, wait_until
from tests.support.client import fetch
from tests.support.examples import first_of
from tests.support.server import KILLED

MAX_REPLACEMENTS = 4  # reconnects count as requests, so max_requests may replace more workers than the test intends

NewScene = Callable[..., Scene]


@pytest.mark.parametrize("end", first_of(signal.SIGKILL, signal.SIGTERM))
def test_workers_end(new_scene: NewScene, fresh_name: str, end: signal.Signals) -> None:
    """Workers are killed or terminated repeatedly under load. gunicorn starts new ones, and clients reconnect."""
    scene = new_scene(servers=2)
    clients = connect_clients(scene, scene.topic(fresh_name))

    for at in range(4):
        server = scene.servers[at % 2]
        [worker] = server.workers()
        if end == signal.SIGKILL:
            server.expect(KILLED)
        os.kill(worker, end)
        wait_until(lambda server=server, worker=worker: server.workers() not in ([], [worker]))
        wait_for_records(clients)

    assert all(each.connections for each in clients)
    assert [] == scene.violations(statuses={503}, max_ended=4)


def test_rolling_restarts(new_scene: NewScene, fresh_name: str) -> None:
    """Each server is replaced under load. Streams end cleanly and resume at any server."""
    scene = new_scene(servers=2)
    clients = connect_clients(scene, scene.topic(fresh_name))

    for at in (0, 1):
        old = scene.replace_server(at)
        old.terminate()
        assert 0 == old.wait()
        wait_for_records(clients)

    assert all(each.connections for each in clients)
    assert [] == scene.violations(statuses={503}, max_ended=2)


@pytest.mark.long
def test_max_requests_replaces_workers(new_scene: NewScene, fresh_name: str) -> None:
    """gunicorn replaces a worker after 20 requests. Its streams end cleanly and resume at the next worker."""
    scene = new_scene()
    scene.replace_server(0, GUNICORN_CMD_ARGS="--max-requests 20").stop()
    [server] = scene.servers
    clients = connect_clients(scene, scene.topic(fresh_name))

    def is_replaced(worker: int) -> bool:
        with suppress(OSError):  # the worker stops
            fetch(server.port, "/-/health")
        return server.workers() not in ([], [worker])

    for _ in range(2):
        scene.read(fresh_name, query="?timestamp=0", start=0)
        [worker] = server.workers()
        wait_until(lambda worker=worker: is_replaced(worker))
        wait_for_records(scene.clients)

    assert all(each.connections for each in clients)
    assert [] == scene.violations(statuses={503}, max_ended=MAX_REPLACEMENTS)


def test_one_of_several_workers_is_killed(new_scene: NewScene, fresh_name: str) -> None:
    """Two workers share a port. When one is killed, its clients reconnect to the other one or to a new one."""
    scene = new_scene()
    scene.replace_server(0, WEB_CONCURRENCY="2").stop()
    [server] = scene.servers
    wait_until(lambda: len(server.workers()) == 2)
    topic = scene.topic(fresh_name)
    clients = [each for _ in range(4) for each in connect_clients(scene, topic)]

    server.expect(KILLED)
    for killed in server.workers():
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: len(server.workers()) == 2 and killed not in server.workers())
        wait_for_records(clients)

    assert all(each.connections for each in clients)
    assert [] == scene.violations()


def test_the_clock_jumps(new_scene: NewScene, fresh_name: str, tmp_path: Path) -> None:
    """The clock of the server jumps by an hour in both directions. Streams and new clients do not notice."""
    scene = new_scene()
    clock = tmp_path / "clock"
    clock.write_text("0")
    scene.replace_server(0, app="tests.chaos.jumping_clock:app", CLOCK_FILE=str(clock)).stop()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)

    for jump_s in (3600, -3600, 0):
        clock.write_text(str(jump_s))
        wait_for_records(clients)
        clients += connect_clients(scene, topic)

    assert never_disconnected(clients)
    assert [] == scene.violations()


def test_the_network_to_clients_is_slow(new_scene: NewScene, fresh_name: str) -> None:
    """With latency, a low rate, slices of seven bytes or packet loss, slow clients catch up and do not delay others."""
    scene = new_scene(servers=2)
    clients = connect_clients(scene, scene.topic(fresh_name))

    latency, slow, tiny = Conditions(latency_s=0.2), Conditions(bytes_per_s=5_000), Conditions(slice_bytes=7)
    for conditions in (latency, slow, tiny, Conditions(slice_bytes=1400, loss=0.1)):
        scene.networks[0].conditions = conditions
        wait_for_records(clients)
    scene.networks[0].heal()

    assert [] == scene.violations()


def test_connections_to_clients_break(new_scene: NewScene, fresh_name: str) -> None:
    """Connections are closed or reset twenty times, even within an event. Clients resume after the last complete event."""
    scene = new_scene(servers=2)
    clients = connect_clients(scene, scene.topic(fresh_name))
    for network in scene.networks:
        network.conditions = Conditions(slice_bytes=97)

    for at in range(20):
        network = scene.networks[at // 2 % 2]
        _ = network.cut() if at % 2 else network.reset()
        wait_for_records(clients)

    assert all(each.connections for each in clients)
    assert [] == scene.violations()


def test_the_network_to_clients_is_half_open(new_scene: NewScene, fresh_name: str) -> None:
    """Clients miss heartbeats and reconnect. The server closes connections that accept no bytes for write_timeout_s."""
    scene = new_scene(servers=2)
    clients = connect_clients(scene, scene.topic(fresh_name))

    scene.networks[0].stall()
    wait_for_records(clients)
    scene.networks[0].heal()
    wait_for_records(clients)

    assert [] == scene.violations()
