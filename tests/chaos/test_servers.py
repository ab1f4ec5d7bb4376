"""Servers and the network to clients fail. Clients reconnect to any server and lose nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.chaos.network import Conditions
from tests.chaos.scene import Scene, connect_clients, wait_for_records, wait_until
from tests.support.client import fetch
from tests.support.examples import first_of
from tests.support.server import KILLED

MAX_REPLACEMENTS = 4  # reconnects count as requests, so max_requests may replace more workers than the test intends

NewScene = Callable[..., Scene]


@pytest.fixture
def scene(new_scene: NewScene) -> Scene:
    return new_scene(servers=2)


@pytest.mark.parametrize("end", first_of(signal.SIGKILL, signal.SIGTERM))
def test_workers_end(new_scene, fresh_name, end):
    """Two workers share a port. When one is killed or terminated, its clients reconnect to the other one or to a new one."""
    scene = new_scene()
    scene.replace_server(0, WEB_CONCURRENCY="2").stop()
    [server] = scene.servers
    wait_until(lambda: len(server.workers()) == 2)
    topic = scene.topic(fresh_name)
    clients = [client for _ in range(2) for client in connect_clients(scene, topic)]

    if end == signal.SIGKILL:
        server.expect(KILLED)
    for worker in server.workers():
        os.kill(worker, end)
        wait_until(lambda worker=worker: len(server.workers()) == 2 and worker not in server.workers())
        wait_for_records(clients)

    assert all(client.connections for client in clients)
    assert [] == scene.violations(max_ended=2)


@pytest.mark.long
def test_rolling_restarts(scene, clients):
    """Each server is replaced under load. Streams end cleanly and resume at any server."""
    for at in (0, 1):
        old = scene.replace_server(at)
        old.terminate()
        assert 0 == old.wait()
        wait_for_records(clients)

    assert all(client.connections for client in clients)
    assert [] == scene.violations(max_ended=2)


@pytest.mark.long
def test_max_requests_replaces_workers(new_scene, fresh_name):
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

    assert all(client.connections for client in clients)
    assert [] == scene.violations(max_ended=MAX_REPLACEMENTS)


def test_the_clock_jumps(new_scene, fresh_name, tmp_path):
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

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_the_network_to_clients_is_slow(scene, clients):
    """With latency, a low rate, slices of seven bytes or packet loss, slow clients catch up and do not delay others."""
    latency, slow, tiny = Conditions(latency_s=0.2), Conditions(bytes_per_s=5_000), Conditions(slice_bytes=7)
    for conditions in (latency, slow, tiny, Conditions(slice_bytes=1400, loss=0.1)):
        scene.networks[0].conditions = conditions
        wait_for_records(clients)
    scene.networks[0].heal()

    assert [] == scene.violations()


@pytest.mark.long
def test_the_network_to_clients_is_half_open(scene, clients):
    """Clients miss heartbeats and reconnect. The server closes connections that accept no bytes for write_timeout_s."""
    scene.networks[0].stall()
    wait_for_records(clients)
    scene.networks[0].heal()
    wait_for_records(clients)

    assert [] == scene.violations()
