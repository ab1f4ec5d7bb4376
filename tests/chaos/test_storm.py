"""The short form of `make chaos`, whose long one takes minutes; and that it can fail."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.scene import Scene, go_on
from tests.chaos.storm import FAULTS, Storm

SECONDS = 15
SEED = 1
READERS = 8


def test_a_short_storm(stage: Callable[..., Scene], fresh_name: str) -> None:
    """Faults in a random order on clients of all kinds: nobody has anything to complain of."""
    storm = Storm(stage(seed=SEED, servers=2), SEED, print)
    storm.prepare(fresh_name, READERS)

    storm.rage(SECONDS, FAULTS)

    assert [] == storm.violations()


def test_a_loss_is_seen(stage: Callable[..., Scene], fresh_name: str) -> None:
    """An event that is taken from what a client had is missed: a storm's verdict is worth something."""
    scene = stage()
    reader = scene.read(scene.topic(fresh_name), query="?timestamp=0", start=0)
    go_on([reader])
    body = reader._recorder.body

    first = body.index(b"event: message")
    del body[first : body.index(b"\n\n", first) + 2]

    assert any("before it did not" in each for each in scene.violations())
