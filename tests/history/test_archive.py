"""Clients of a cluster with an archive: no record is lost or repeated where they change from the archive to Kafka."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pip install pyarrow")

from tests.history.archive_simulation import ArchiveSimulation
from tests.history.test_delivery import SEED, STEPS
from tests.support.examples import examples

WORLDS = 8


def test_clients_read_the_archive_and_then_kafka() -> None:
    """Any order of steps, with retention, truncated logs, holes in the archive and compaction during streams."""
    gaps = 0
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = ArchiveSimulation(seed)
        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"
        gaps += scenario.gaps

    assert gaps > 0
