"""All kinds of simulated worlds, which of them `make test` plays, and how a failed world is stored.

`make test` plays the worlds of a few fixed seeds and the stored ones; `make simulate` plays random worlds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from kafkasse.feed import catch_up, lookup
from kafkasse.records.position import IdType
from tests.history import mutants
from tests.history.archive_simulation import ArchiveSimulation
from tests.history.cursor_simulation import CursorSimulation
from tests.history.draws import Draws, RandomDraws, RecordedDraws, Step, shortened
from tests.history.everything import Everything
from tests.history.finite_simulation import FiniteSimulation
from tests.history.interleaved import ChangingInterleaved, Interleaved
from tests.history.simulation import SelectingSimulation, Simulation
from tests.history.visitors import (
    FILTERS,
    ChangingSimulation,
    PatternSimulation,
    PersonalSimulation,
    SnapshotSimulation,
)

STEPS = 150
CURSOR_STEPS = 300
FAILURES = Path(__file__).parent / "failures"

INTERLEAVED: dict[str, dict[str, Any]] = {
    "offsets": {},
    "hook": {"hooked": True},
    "small backlog": {"hooked": True, "is_backlog_small": True},
    "timestamps": {"id_type": IdType.TIMESTAMP, "drops": False},  # they do not show that records are missing
    "timestamps, hook": {"id_type": IdType.TIMESTAMP, "drops": False, "hooked": True},
    "both, hook": {"id_type": IdType.BOTH, "hooked": True},
    "an ID per run, hook": {"id_frequency": "run", "drops": False, "hooked": True},
    "truncation": {"drops": False, "truncates": True},
    "truncation, hook": {"drops": False, "truncates": True, "hooked": True},
    "JSON lines": {"is_json_lines": True},
    "JSON lines, hook": {"is_json_lines": True, "hooked": True},
}


class ChangingArchiveSimulation(ArchiveSimulation, ChangingSimulation):
    """A simulation in which everything happens to the topics of an archive, too."""


KINDS: dict[str, Callable[[Draws], Simulation]] = {
    "every record": partial(Simulation, drops=False),
    "every record, an ID per run": partial(Simulation, id_frequency="run", drops=False),
    "hook": partial(Simulation, filtered=True, drops=False),
    "hook, an ID per run": partial(Simulation, filtered=True, id_frequency="run", drops=False),
    "retention": Simulation,
    "retention before a client returns": partial(Simulation, late_reconnects=True),
    "truncation": partial(Simulation, drops=False, truncates=True),
    "filters": partial(SelectingSimulation, choices=FILTERS, drops=False),
    "filters, an ID per run": partial(SelectingSimulation, choices=FILTERS, id_frequency="run", drops=False),
    "filters, retention": partial(SelectingSimulation, choices=FILTERS),
    "personal": partial(PersonalSimulation, drops=False),
    "personal, an ID per run": partial(PersonalSimulation, id_frequency="run", drops=False),
    "personal, retention": PersonalSimulation,
    "personal, retention before a client returns": partial(PersonalSimulation, late_reconnects=True),
    "personal, truncation": partial(PersonalSimulation, drops=False, truncates=True),
    "patterns": partial(PatternSimulation, drops=False),
    "patterns, retention": PatternSimulation,
    "snapshot": SnapshotSimulation,
    "snapshot, truncation": partial(SnapshotSimulation, truncates=True),
    "changing topics": ChangingSimulation,
    "finite reads": partial(FiniteSimulation, drops=False, truncates=False),
    "finite reads, truncation": partial(FiniteSimulation, drops=False, changes=False),
    "finite reads, changing topics": FiniteSimulation,
    "archive": ArchiveSimulation,
    "archive, changing topics": ChangingArchiveSimulation,
    **{f"interleaved: {name}": partial(Interleaved, **settings) for name, settings in INTERLEAVED.items()},
    "interleaved: changing topics": ChangingInterleaved,
    "everything": Everything,
}

# Kafka's versions differ in what their Fetch requests and responses contain. Before version 9, brokers do not notice that a
# request is from an earlier epoch, so a truncation may not be noticed either.
CURSOR_KINDS: dict[str, Callable[[Draws], CursorSimulation]] = {
    "cursor": partial(CursorSimulation, versions=(13, 17), has_ids=True),
    "cursor, recreated topics": partial(CursorSimulation, versions=(13, 17), has_ids=True, recreates=True),
    "cursor, replicas": partial(CursorSimulation, versions=(11, 13), has_ids=True, has_replicas=True),
    "cursor, no topic IDs": partial(CursorSimulation, versions=(9, 11, 12), has_ids=False),
    "cursor, recreated topics, no topic IDs": partial(
        CursorSimulation, versions=(9, 11, 12), has_ids=False, recreates=True
    ),
    "cursor, no epochs": partial(CursorSimulation, versions=(4, 7), has_ids=False, truncates=False),
}


def play(kind: str, draws: Draws) -> tuple[list[str], Simulation | CursorSimulation]:
    """Play one world. Return the violations, and the world.

    How long a step takes decides nothing: a lookup is complete before the next step, and the clock advances by a nanosecond
    whenever it is read.
    """
    if kind in CURSOR_KINDS:
        cursor_world = CURSOR_KINDS[kind](draws)
        return cursor_world.play(CURSOR_STEPS), cursor_world
    clock = count(0.0, 1e-9)
    with (
        patch.object(lookup, "MAX_WAIT_S", None),
        patch.object(catch_up, "FIND_PENDING_S", 0.0),
        patch.object(time, "monotonic", lambda: next(clock)),
    ):
        world = KINDS[kind](draws)
        return world.play(STEPS), world


def kinds_of(violations: Iterable[str]) -> set[str]:
    """Return the violations without the numbers in them, which change with the code that draws."""
    return {re.sub(r"\d+", "#", violation) for violation in violations}


class StoredWorld(NamedTuple):
    """A world that failed.

    Attributes:
        mutant: the mutant with which it fails. Empty: it failed with kafkasse itself, which was fixed since.
        seed, commit: what found it.
    """

    kind: str
    mutant: str
    seed: int
    commit: str
    violation: str
    steps: list[Step]

    @classmethod
    def read(cls, file: Path) -> StoredWorld:
        return cls(**json.loads(file.read_text()))

    def write(self, directory: Path = FAILURES) -> Path:
        """Write one step per line, and return the file."""
        directory.mkdir(exist_ok=True)
        name = self.mutant or f"{re.sub(r'[^a-z]+', '-', self.kind.lower())}-{self.seed}"
        lines = [f'  "{field}": {json.dumps(value)}' for field, value in self._asdict().items() if field != "steps"]
        steps = ",\n".join(f"    {json.dumps(step)}" for step in self.steps)
        file = directory / f"{name}.json"
        file.write_text("{\n" + ",\n".join(lines) + f',\n  "steps": [\n{steps}\n  ]\n}}\n')
        return file

    def replay(self, events: list[str] | None = None) -> list[str]:
        """Play the world, and return the violations. Append what happened to `events`, in a world of a cursor."""
        return outcome(self.kind, RecordedDraws(self.steps), self.mutant, events)


def outcome(kind: str, draws: Draws, mutant: str = "", events: list[str] | None = None) -> list[str]:
    """Return the violations of a world, with a mutant if one is given. An error of kafkasse is a violation, too."""
    with mutants.mutated(mutant) if mutant else nullcontext():
        try:
            violations, world = play(kind, draws)
        except Exception as error:  # noqa: BLE001 - a world must not end the simulator
            return [f"error: {error!r}"]
    if events is not None:
        events += world.events
    return violations


def find(kind: str, seed: int, mutant: str = "", commit: str = "") -> StoredWorld | None:
    """Play the world of a seed. If it fails, return it with as few steps as needed for its first violation."""
    draws = RandomDraws(seed)
    if not (violations := outcome(kind, draws, mutant)):
        return None
    (wanted,) = kinds_of(violations[:1])
    steps = shortened(draws.steps, lambda steps: wanted in kinds_of(outcome(kind, RecordedDraws(steps), mutant)))
    return StoredWorld(kind, mutant, seed, commit, violations[0], steps)


STORED = [StoredWorld.read(file) for file in sorted(FAILURES.glob("*.json"))]
