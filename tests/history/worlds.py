"""All kinds of simulated worlds, which of them `make test` plays, and how a failed world is stored.

`make test` plays the worlds of a few fixed seeds and the stored ones; `make simulate` plays random worlds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import gevent

from kafkasse.feed import lookup
from kafkasse.records.filter import Dimension, Filter, Query, Selection, Where, compile_expression
from kafkasse.records.position import Position, of_topics
from kafkasse.route import Route, StartAt
from tests.history import mutants
from tests.history.archive_simulation import ArchiveSimulation
from tests.history.checker import StoredRecord
from tests.history.draws import Draws, RandomDraws, RecordedDraws, Step, shortened
from tests.history.simulation import PARTITIONS, TOPIC, Choice, SelectingSimulation, Simulation
from tests.history.wire import Partition

STEPS = 150
FAILURES = Path(__file__).parent / "failures"
KEYS = [b"ada", b"ada", b"bob", b"eve", b"news", b"nobody", b"\xff", None]
MAX_TOPICS = 6
MAX_PARTITIONS = 3
FILTERED_KEYS = [f"k{number}" for number in range(300)]


def _number(stored: StoredRecord) -> int | None:
    """Return the member `n` of a record, or None for a tombstone."""
    return None if stored.value is None else int(stored.value[5:-1].split(b",")[0])


# Filters.


def _by_expression() -> Choice:
    selection = Selection(Filter.of(expressions=[compile_expression("value.n % 3 != 0")]))
    return Choice(selection, lambda stored: (number := _number(stored)) is not None and number % 3 != 0)


def _by_keys(step: int, expression: str = "") -> Choice:
    """Choose some keys, as values of a dimension. Clients with different steps share a feed."""
    keys = FILTERED_KEYS[::step]
    query = Query({Dimension("key"): frozenset(keys)}, compile_expression(expression) if expression else None)
    selection = Where().select({}, {}, query, lambda view, reason: None)
    encoded = {key.encode() for key in keys}
    return Choice(selection, lambda stored: stored.key in encoded and (not expression or (_number(stored) or 0) > 20))


EVERYTHING = Choice(Selection(), lambda stored: True)
FILTERS = [_by_expression(), _by_keys(3), _by_keys(4), _by_keys(5, "value.n > 20"), EVERYTHING]


# Personal streams.


def _of_visitor(where: dict[str, Any], *keys: bytes, sub: object = None, is_even: bool = False) -> Choice:
    """Return what a visitor with the claim `sub` selects at `/{customer}`, with the path parameter `ada`."""
    claims = {} if sub is None else {"sub": sub}
    selection = Where.parse(where).select({"customer": "ada"}, claims, Query({}, None), lambda view, reason: None)

    def keeps(stored: StoredRecord) -> bool:
        return stored.key in keys and not (is_even and (_number(stored) is None or _number(stored) % 2 == 1))

    return Choice(selection, keeps)


# The clients of all choices but the last share a feed. Two of them select the same key, and form a group.
VISITORS = [
    _of_visitor({"key": "{customer}"}, b"ada"),
    _of_visitor({"key": "{claims.sub}"}, b"bob", sub="bob"),
    _of_visitor({"key": ["{claims.sub}", "news"]}, b"ada", b"eve", b"news", sub=["ada", "eve"]),
    _of_visitor({"key": "{claims.sub}"}, b"ada", sub="ada"),
    _of_visitor({"key": "{claims.sub}"}, sub="mallory"),
    _of_visitor({"key": "{customer}", "expression": "value.n % 2 == 0"}, b"ada", is_even=True),
]


class PersonalSimulation(SelectingSimulation):
    """A simulation in which several records have the same key, and each client selects the records of some keys."""

    _choices_of_clients: Sequence[Choice] = VISITORS

    def __init__(self, draws: Draws, **settings: Any) -> None:
        super().__init__(draws, self._choices_of_clients, **settings)

    def _key(self, number: int) -> bytes | None:
        return self.draws.choice(KEYS)


class PatternSimulation(PersonalSimulation):
    """A simulation in which matching topics are created, and partitions are added. Some streams are personal."""

    _route = Route("events", "/events", (TOPIC, "events.*"))
    _start = Position()
    _choices_of_clients = EVERYTHING, *VISITORS

    def _more_moves(self) -> Iterable[Callable[[], None]]:
        return self.create_topic, self.grow

    def create_topic(self) -> None:
        topics = {topic for topic, _ in self.ends}
        if len(topics) < MAX_TOPICS:
            self.reached["new topic"] += 1
            self.create(f"events.{len(topics)}", self.draws.between(1, MAX_PARTITIONS))

    def grow(self) -> None:
        topic, _ = self._any_partition()
        partitions = sum(name == topic for name, _ in self.ends)
        self.create(topic, min(partitions + 1, MAX_PARTITIONS))


class SnapshotSimulation(PersonalSimulation):
    """A simulation of a table: all records of a key are in one partition. Some streams are personal."""

    _route = Route("table", "/table", None, start=StartAt.SNAPSHOT)
    _start = of_topics([TOPIC])
    _choices_of_clients = EVERYTHING, *VISITORS

    def __init__(self, draws: Draws) -> None:
        super().__init__(draws, drops=False)
        self.log.while_closing = lambda: None  # the greenlet of the snapshot closes cursors, too

    def _partition_of(self, key: bytes | None) -> Partition:
        return TOPIC, len(key or b"") % PARTITIONS

    def turn(self) -> None:
        super().turn()
        gevent.sleep(0)  # let the greenlet of the snapshot run


# The kinds of worlds.

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
    "archive": ArchiveSimulation,
}


def play(kind: str, draws: Draws) -> tuple[list[str], Simulation]:
    """Play one world. Return the violations, and the world.

    How long a step takes decides nothing: a lookup is complete before the next step, and the clock advances by a nanosecond
    whenever it is read.
    """
    clock = count(0.0, 1e-9)
    with patch.object(lookup, "MAX_WAIT_S", None), patch.object(time, "monotonic", lambda: next(clock)):
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
        name = self.mutant or f"{self.kind.replace(', ', '-').replace(' ', '_')}-{self.seed}"
        lines = [f'  "{field}": {json.dumps(value)}' for field, value in self._asdict().items() if field != "steps"]
        steps = ",\n".join(f"    {json.dumps(step)}" for step in self.steps)
        file = directory / f"{name}.json"
        file.write_text("{\n" + ",\n".join(lines) + f',\n  "steps": [\n{steps}\n  ]\n}}\n')
        return file

    def replay(self) -> list[str]:
        return outcome(self.kind, RecordedDraws(self.steps), self.mutant)


def outcome(kind: str, draws: Draws, mutant: str = "") -> list[str]:
    """Return the violations of a world, with a mutant if one is given. An error of kafkasse is a violation, too."""
    with mutants.mutated(mutant) if mutant else nullcontext():
        try:
            return play(kind, draws)[0]
        except Exception as error:  # noqa: BLE001 - a world must not end the simulator
            return [f"error: {error!r}"]


def find(kind: str, seed: int, mutant: str = "", commit: str = "") -> StoredWorld | None:
    """Play the world of a seed. If it fails, return it with as few steps as needed for its first violation."""
    draws = RandomDraws(seed)
    if not (violations := outcome(kind, draws, mutant)):
        return None
    (wanted,) = kinds_of(violations[:1])
    steps = shortened(draws.steps, lambda steps: wanted in kinds_of(outcome(kind, RecordedDraws(steps), mutant)))
    return StoredWorld(kind, mutant, seed, commit, violations[0], steps)


STORED = [StoredWorld.read(file) for file in sorted(FAILURES.glob("*.json"))]
