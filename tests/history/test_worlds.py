"""The checker on simulated worlds: whatever the order of steps, no client loses a record or receives one twice.

`make test` plays a fixed selection. `make simulate` plays random worlds, and stores those that fail for this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kafkasse.kafka import cursor_core, decoding
from kafkasse.kafka.fetch_session import FetchSession
from kafkasse.records.filter import Filter
from tests.history import mutants
from tests.history.draws import RandomDraws, RecordedDraws, shortened
from tests.history.worlds import CURSOR_KINDS, KINDS, STORED, StoredWorld, find, kinds_of, outcome, play
from tests.support.examples import examples

ROOT = Path(__file__).parents[2]
# For each of these kinds, the seed of a world with everything in EVERY_KIND, because `make test-fast` plays only that
# world. If a change to the worlds makes another seed necessary, the test fails.
FIRST_SEEDS = {
    "interleaved: offsets": 8,
    "interleaved: an ID per run, hook": 8,
    "interleaved: truncation": 4,
    "interleaved: truncation, hook": 8,
    "interleaved: JSON lines": 90,
    "interleaved: JSON lines, hook": 8,
    "interleaved: changing topics": 11,
}
SEEDS = {
    kind: (FIRST_SEEDS.get(kind, 28), *range(8))[: examples(9)]
    if kind.startswith("interleaved")
    else (0, 1, 2, 13, 36, 37)  # slow, and truncations are rare
    if kind.startswith("archive")
    else (28, *range(7))
    if kind == "changing topics"
    else (5, 23, 39, 2, 0, 1)  # the first four reach everything that the test below expects
    if kind == "everything"
    else tuple(range(8))
    for kind in KINDS
}
# What the selection must contain. A kind is worth little if no world of it reaches these.
EVERY_KIND = {
    *("parked", "sent in part", "catch-up", "falls behind"),
    *("session evicted", "connection lost", "leader moved", "replica"),
}
EVERY_READ = {"full chunk", "cached chunk", "long poll with records", "gone"}
REACHED = {
    "retention": {"retention", "gap"},
    "truncation": {"truncation", "gap"},
    "personal, truncation": {"diverging"},
    "snapshot, truncation": {"diverging"},
    "patterns": {"new topic"},
    "archive": {"retention", "truncation", "gap"},
    "changing": {"retention", "truncation", "recreated", "new topic", "restart", "outdated description", "gap"},
}
REACHED["everything"] = EVERY_READ.union(EVERY_KIND, REACHED["personal, truncation"], REACHED["changing"])

CURSOR_SEEDS = range(90)
MAX_SMALL_BYTES = 100  # one batch of a simulated partition, but not two
EVERY_CURSOR = {"retention", "seek", "session evicted", "connection lost", "leader moved"}
REACHED_BY_CURSORS = {
    "cursor": {"truncation", "diverging"},
    "cursor, recreated topics": {"recreated", "truncation"},
    "cursor, replicas": {"truncation", "replica"},
    "cursor, no topic IDs": {"truncation", "validated", "diverging"},
    "cursor, recreated topics, no topic IDs": {"recreated", "recreated topic noticed"},
    "cursor, no epochs": {"validated"},
}

PRINTS_A_WORLD = """
from gevent import monkey; monkey.patch_all()
from tests.history.draws import RandomDraws
from tests.history.worlds import play
_, world = play("changing topics", RandomDraws(0))
print([client.connections for client in world.clients])
"""


def _needs_pyarrow(kind: str) -> None:
    if kind == "everything" or kind.startswith("archive"):
        pytest.importorskip("pyarrow", reason="pip install pyarrow")


@pytest.mark.parametrize("kind", KINDS)
def test_each_client_receives_exactly_its_records(kind):
    """Appends, fetches, opens, parks, full sockets, heartbeats, ends and cuts at any byte, in many orders."""
    _needs_pyarrow(kind)
    reached: Counter[str] = Counter()
    for seed in SEEDS[kind]:
        violations, world = play(kind, RandomDraws(seed))
        assert [] == violations, f"to repeat this world: seed {seed} of {kind!r}"
        if not (kind.startswith("interleaved") and reached):
            reached += world.reached

    words = [word for word in REACHED if word in kind and not kind.startswith("interleaved")]  # their seeds are few
    expected = set(EVERY_READ if kind.startswith("finite") else EVERY_KIND).union(*(REACHED[word] for word in words))
    assert set() == expected - reached.keys()


@pytest.mark.parametrize("kind", CURSOR_KINDS)
def test_a_cursor_reads_each_record_once_in_order(kind):
    """Whatever brokers and connections do, it reports each truncation and each removed record, and no partition is stuck."""
    reached: Counter[str] = Counter()
    for seed in CURSOR_SEEDS:
        violations, world = play(kind, RandomDraws(seed))
        assert not violations, "\n".join([*world.events, f"to repeat this world: seed {seed} of {kind!r}"])
        reached += world.reached

    assert set() == EVERY_CURSOR.union(REACHED_BY_CURSORS[kind]) - reached.keys()


@pytest.mark.parametrize("kind", CURSOR_KINDS)
def test_a_tail_that_defers_records_reads_each_once_in_order(kind, monkeypatch):
    """Two batches count as large, so while a tail decodes those of one partition, it discards others that arrive."""
    monkeypatch.setattr(cursor_core, "DEFER_ABOVE_FETCHES", -1)
    monkeypatch.setattr(cursor_core, "MAX_SMALL_BYTES", MAX_SMALL_BYTES)
    monkeypatch.setattr(decoding, "MAX_SMALL_BYTES", MAX_SMALL_BYTES)
    defer, deferred = FetchSession.defer, 0

    def count(session, position):
        nonlocal deferred
        deferred += 1
        defer(session, position)

    monkeypatch.setattr(FetchSession, "defer", count)
    for seed in CURSOR_SEEDS:
        violations, world = play(kind, RandomDraws(seed))
        assert not violations, "\n".join([*world.events, f"seed {seed} of {kind!r}"])

    assert deferred


@pytest.mark.parametrize("world", STORED, ids=lambda world: world.mutant or f"{world.kind}-{world.seed}")
def test_a_world_that_has_failed_before_passes(world):
    """If it failed with a mutant, the checker reports the same violation for the mutant, and nothing without it."""
    _needs_pyarrow(world.kind)
    if world.mutant:
        assert kinds_of([world.violation]) <= kinds_of(world.replay())
        assert mutants.applied[world.mutant] > 0

    assert [] == world._replace(mutant="").replay()


def test_a_world_that_fails_is_stored_with_few_steps(monkeypatch, tmp_path):
    """A filter that drops a matching record is reported. The stored world shows it again, and needs all of its steps."""
    matches = Filter.matches
    monkeypatch.setattr(Filter, "matches", lambda self, view: matches(self, view) and view.record.offset != 5)
    world = next(world for seed in SEEDS["filters"] if (world := find("filters", seed, commit="abc")))

    stored = StoredWorld.read(world.write(tmp_path))

    assert world == stored
    assert stored.replay()
    for at in range(len(stored.steps)):
        rest = stored.steps[:at] + stored.steps[at + 1 :]
        assert kinds_of([stored.violation]).isdisjoint(kinds_of(outcome("filters", RecordedDraws(rest))))
    monkeypatch.undo()
    assert [] == stored.replay()


@pytest.mark.parametrize(
    "kind",
    [
        "retention",
        "filters",
        "finite reads, changing topics",
        "personal",
        "changing topics",
        "snapshot",
        "archive",
        "interleaved: hook",
        "everything",
    ],
)
def test_recorded_steps_repeat_a_world(kind):
    """The clients of the repetition receive the same bytes."""
    _needs_pyarrow(kind)
    drawn = RandomDraws(1)
    _, world = play(kind, drawn)
    recorded = RecordedDraws(drawn.steps)

    _, repeated = play(kind, recorded)

    assert drawn.steps == recorded.steps
    assert [client.connections for client in world.clients] == [client.connections for client in repeated.clients]


@pytest.mark.processes
def test_a_world_is_the_same_in_each_process():
    """Each process orders sets of strings in its own way, which must not decide the order in an event ID."""
    command = [sys.executable, "-c", PRINTS_A_WORLD]
    printing = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    first, second = (process.communicate()[0] for process in printing)

    assert b"Connection(" in first
    assert first == second


def test_shortened_steps_contain_only_what_fails():
    """Steps are left out alone and together."""
    steps = [[f"move{number}"] for number in range(40)]

    assert [["move3"], ["move31"]] == shortened(steps, lambda rest: ["move3"] in rest and ["move31"] in rest)
