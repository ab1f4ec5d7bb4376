"""A short form of `make chaos`, and proof that it can fail."""

from __future__ import annotations

import pytest

from tests.chaos.random_faults import RandomFaults
from tests.chaos.scene import wait_for_records

SEED = 1
CLIENTS = 10


@pytest.mark.long
def test_clients_lose_nothing_under_random_faults(new_scene, fresh_name):
    """Each kind of fault once, in random order, on clients of all types: the checker reports nothing."""
    faults = RandomFaults(new_scene(seed=SEED, servers=2, **RandomFaults.settings(fresh_name)), SEED, print)
    faults.prepare(fresh_name, CLIENTS)

    faults.run(seconds=0)

    assert [] == faults.violations()


def test_reports_a_lost_event(new_scene, fresh_name):
    scene = new_scene()
    client = scene.read(scene.topic(fresh_name), query="?timestamp=0", start=0)
    wait_for_records([client])
    body = client._recorder.body

    first = body.index(b"event: message")
    del body[first : body.index(b"\n\n", first) + 2]

    assert any("before it did not" in violation for violation in scene.violations())
