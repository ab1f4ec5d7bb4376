"""The checker on streams that start with a snapshot: the newest record of each key, then all later records."""

from __future__ import annotations

import os
import secrets
from typing import Any

import gevent

from kafkasse.position import of_topics
from kafkasse.route import Route, StartAt
from tests.history.simulation import PARTITIONS, TOPIC, SelectingSimulation
from tests.history.test_patterns import EVERYTHING
from tests.history.test_personal_streams import CHOICES, KEYS
from tests.history.wire import Partition
from tests.support.examples import examples

SEED = int(os.environ.get("HISTORY_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 25


class SnapshotSimulation(SelectingSimulation):
    """A simulation of a table: all records of a key are in one partition. Some streams are personal."""

    _route = Route("table", "/table", None, start=StartAt.SNAPSHOT)
    _start = of_topics([TOPIC])

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, [EVERYTHING, *CHOICES], drops=False, **settings)
        self.log.while_closing = lambda: None  # the greenlet of the snapshot closes cursors, too

    def _key(self, number: int) -> bytes | None:
        return self.rng.choice(KEYS)

    def _partition_of(self, key: bytes | None) -> Partition:
        return TOPIC, len(key or b"") % PARTITIONS

    def turn(self) -> None:
        super().turn()
        gevent.sleep(0)  # let the greenlet of the snapshot run


def test_each_client_receives_the_newest_record_of_each_of_its_keys_and_all_later_records() -> None:
    """The order of appends, tombstones, parks, ends and cuts does not matter, within a snapshot or after it."""
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = SnapshotSimulation(seed)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"
