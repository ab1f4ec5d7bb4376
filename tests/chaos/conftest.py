"""One cluster for all faults of a module, and a scene of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.scene import Scene


@pytest.fixture(scope="session")
def nodes() -> Iterator[EmbeddedCluster]:
    """Three Kafkas. Whoever harms them heals them again."""
    with EmbeddedCluster() as nodes:
        yield nodes


@pytest.fixture
def stage(nodes: EmbeddedCluster, tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Sets a scene: stage(setting=value, …)."""
    with ExitStack() as scenes:
        scenes.callback(nodes.heal)
        yield lambda **settings: scenes.enter_context(Scene(nodes, tmp_path, **settings))
