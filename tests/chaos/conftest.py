"""One cluster for all tests, and a new scene for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.scene import Client, Scene, connect_clients, documented_delay_s


@pytest.fixture(scope="package")
def kafka(processes: None) -> Iterator[EmbeddedCluster]:
    """A cluster of three nodes. new_scene heals it after each test."""
    with EmbeddedCluster() as kafka:
        yield kafka


@pytest.fixture
def new_scene(kafka: EmbeddedCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Scene]]:
    """Creates scenes: new_scene(setting=value, …). Records must arrive as soon as docs/faults.md says for this test."""
    delay_s = documented_delay_s(request.node.originalname)
    with ExitStack() as scenes:
        scenes.callback(kafka.heal)
        yield lambda **settings: scenes.enter_context(Scene(kafka, tmp_path, max_delay_s=delay_s, **settings))


@pytest.fixture
def scene(new_scene: Callable[..., Scene]) -> Scene:
    return new_scene()


@pytest.fixture
def topic(scene: Scene, fresh_name: str) -> str:
    """A topic with two partitions and a producer."""
    return scene.topic(fresh_name)


@pytest.fixture
def clients(scene: Scene, topic: str) -> list[Client]:
    """Clients that have received records of the topic. See connect_clients()."""
    return connect_clients(scene, topic)
