"""Servers and the network to clients fail: clients come back to any server, and have lost nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import gevent
import pytest

from tests.chaos.network import Weather
from tests.chaos.scene import Scene, eventually, go_on, moves, watch

Stage = Callable[..., Scene]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["kill -9", "SIGTERM"])
def test_workers_end(stage: Stage, fresh_name: str, end: signal.Signals) -> None:
    """A worker is killed, or asked to go, under load, again and again: gunicorn starts another, clients come back."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    for at in range(6):
        server = scene.servers[at % 2]
        [worker] = server.workers()
        os.kill(worker, end)
        eventually(lambda server=server, worker=worker: server.workers() not in ([], [worker]))
        go_on(readers)

    assert all(each.attempts for each in readers)
    assert [] == scene.complaints(statuses={503})


def test_rolling_restarts(stage: Stage, fresh_name: str) -> None:
    """Each server is replaced under load, twice: streams end politely, and go on at any of them."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    for at in (0, 1, 0, 1):
        old = scene.replace(at)
        old.terminate()
        assert 0 == old.wait()
        go_on(readers)

    assert all(each.attempts for each in readers)
    assert [] == scene.complaints(statuses={503})


def test_workers_that_serve_a_few_requests(stage: Stage, fresh_name: str) -> None:
    """gunicorn replaces a worker after three requests: its streams end politely."""
    scene = stage()
    scene.replace(0, GUNICORN_CMD_ARGS="--max-requests 3").stop()
    readers = watch(scene, scene.topic(fresh_name))

    for _ in range(3):
        late = scene.read(fresh_name, query="?timestamp=0", start=0)
        eventually(lambda late=late: moves(late))
        go_on(readers)

    assert scene.servers[0].log.count("Booting worker") > 2
    assert [] == scene.complaints(statuses={503})


WEATHERS = {
    "late": Weather(latency_s=0.2),
    "thin": Weather(bytes_per_s=5_000),
    "sliced": Weather(slice_bytes=7),
}


@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS)
def test_the_network_to_clients_is_slow(stage: Stage, fresh_name: str, weather: Weather) -> None:
    """Clients get the records later; those that fall behind catch up, and nobody else waits for them."""
    scene = stage(servers=2)
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    scene.ways[0].weather = weather
    for _ in range(3):
        go_on(readers)
    scene.ways[0].heal()

    assert [] == scene.complaints()


@pytest.mark.parametrize("harm", ["cut", "reset"])
def test_connections_to_clients_break(stage: Stage, fresh_name: str, harm: str) -> None:
    """Within an event, too: clients come back with the last id that they had whole."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))
    for way in scene.ways:
        way.weather = Weather(slice_bytes=97)

    for at in range(10):
        getattr(scene.ways[at % 2], harm)()
        go_on(readers)

    assert [] == scene.complaints()


def test_the_network_to_clients_is_half_open(stage: Stage, fresh_name: str) -> None:
    """Clients hear no heartbeat for a while, and come again; the server ends what takes nothing for the write deadline."""
    scene = stage(servers=2)
    readers = watch(scene, scene.topic(fresh_name))

    scene.ways[0].stall()
    go_on(readers)
    gevent.sleep(0)
    scene.ways[0].heal()
    go_on(readers)

    assert [] == scene.complaints()
