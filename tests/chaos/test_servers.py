"""Servers and the network to clients fail: clients come back to any server, and have lost nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.chaos.network import Weather
from tests.chaos.scene import Scene, eventually, go_on, watch

Stage = Callable[..., Scene]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "SIGTERM"])
def test_workers_end(stage: Stage, fresh_name: str, end: signal.Signals) -> None:
    """A worker is killed, or asked to go, under load, again and again: gunicorn starts another, clients come back."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    for at in range(4):
        server = scene.servers[at % 2]
        [worker] = server.workers()
        os.kill(worker, end)
        eventually(lambda server=server, worker=worker: server.workers() not in ([], [worker]))
        go_on(readers)

    assert all(each.connections for each in readers)
    assert [] == scene.violations(statuses={503})


def test_rolling_restarts(stage: Stage, fresh_name: str) -> None:
    """Each server is replaced under load: streams end politely, and go on at any of them."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    for at in (0, 1):
        old = scene.replace(at)
        old.terminate()
        assert 0 == old.wait()
        go_on(readers)

    assert all(each.connections for each in readers)
    assert [] == scene.violations(statuses={503})


def test_workers_that_serve_a_few_requests(stage: Stage, fresh_name: str) -> None:
    """gunicorn replaces a worker after six requests: its streams end politely, and go on at the next one."""
    scene = stage()
    scene.replace(0, GUNICORN_CMD_ARGS="--max-requests 6").stop()
    readers = watch(scene, scene.topic(fresh_name))

    for _ in range(2):
        [worker] = scene.servers[0].workers()
        for _ in range(3):
            scene.read(fresh_name, query="?timestamp=0", start=0)
        eventually(lambda worker=worker: scene.servers[0].workers() not in ([], [worker]))
        go_on(scene.readers)

    assert all(each.connections for each in readers)
    assert [] == scene.violations(statuses={503})


def test_the_network_to_clients_is_slow(stage: Stage, fresh_name: str) -> None:
    """Late, thin or in slices of seven bytes: who falls behind catches up, and nobody else waits for them."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    for weather in (Weather(latency_s=0.2), Weather(bytes_per_s=5_000), Weather(slice_bytes=7)):
        scene.ways[0].weather = weather
        go_on(readers)
    scene.ways[0].heal()

    assert [] == scene.violations()


def test_connections_to_clients_break(stage: Stage, fresh_name: str) -> None:
    """Closed or reset, within an event, too, twenty times: clients come back with the last id that they had whole."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))
    for way in scene.ways:
        way.weather = Weather(slice_bytes=97)

    for at in range(20):
        way = scene.ways[at // 2 % 2]
        _ = way.cut() if at % 2 else way.reset()
        go_on(readers)

    assert all(each.connections for each in readers)
    assert [] == scene.violations()


def test_the_network_to_clients_is_half_open(stage: Stage, fresh_name: str) -> None:
    """Clients hear no heartbeat for a while, and come again; the server ends what takes nothing for the write deadline."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    scene.ways[0].stall()
    go_on(readers)
    scene.ways[0].heal()
    go_on(readers)

    assert [] == scene.violations()
