"""Nothing lost, nothing twice: clients of every kind at a real server over a real Kafka, as the checker sees it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.history.scenario import World, play
from tests.support.kafka import Cluster

SEED = int(os.environ.get("KAFKASSE_TEST_SEED") or secrets.randbits(32))


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> World:
    print(f"to run this again: KAFKASSE_TEST_SEED={SEED}")
    return World(cluster, tmp_path, SEED)


def test_every_kind_of_client_is_sent_exactly_its_records(world: World) -> None:
    """All formats, ids, starts and wires, cut at random bytes while transactions commit and abort: no complaint."""
    found, _ = play(world, copies=3)

    assert [] == found
