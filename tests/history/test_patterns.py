"""The checker on routes with patterns: a topic that is created while clients read joins their streams without a gap."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kafkasse.filter import Selection
from kafkasse.position import Position
from kafkasse.route import Route
from tests.history.simulation import TOPIC, Choice, SelectingSimulation
from tests.history.test_personal_streams import CHOICES, KEYS
from tests.support.examples import examples

SEED = int(os.environ.get("HISTORY_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 25
MAX_TOPICS = 6
MAX_PARTITIONS = 3
EVERYTHING = Choice(Selection(), lambda stored: True)


class PatternSimulation(SelectingSimulation):
    """A simulation in which matching topics are created, and partitions are added. Some streams are personal."""

    _route = Route("events", "/events", (TOPIC, "events.*"))
    _start = Position()

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, [EVERYTHING, *CHOICES], **settings)

    def _key(self, number: int) -> bytes | None:
        return self.rng.choice(KEYS)

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return self.create_topic, self.grow

    def create_topic(self) -> None:
        topics = {topic for topic, _ in self.ends}
        if len(topics) < MAX_TOPICS:
            self.create(f"events.{len(topics)}", self.rng.randrange(1, MAX_PARTITIONS))

    def grow(self) -> None:
        """Add a partition to a topic."""
        topic, _ = self._any_partition()
        partitions = sum(each == topic for each, _ in self.ends)
        self.create(topic, min(partitions + 1, MAX_PARTITIONS))


@pytest.mark.parametrize("drops", [False, True])
def test_new_topics_join_without_a_gap(drops: bool) -> None:
    """Live, parked and returning clients, and clients that catch up, receive each new topic from its first record."""
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = PatternSimulation(seed, drops=drops)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"
