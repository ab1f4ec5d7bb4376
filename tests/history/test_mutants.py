"""The checker can fail: it reports every mutant of kafkasse, with the same test that the real kafkasse passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from tests.history import mutants
from tests.history.gateway import LIFETIME_S, MAX_OVERSTAY_S, Gateway
from tests.history.scenario import PARTITIONS, Outcome, Scenario
from tests.history.worlds import STORED
from tests.support.examples import selected
from tests.support.kafka import Cluster

PAGE = Path(__file__).with_name("README.md")
SERVERS_AT_ONCE = 7
BATCHES = 10
MAX_PLAYS = 4  # whether a fault shows in one play depends on where reads and cuts happen
# A server with a fault has only these clients, so that many servers can run at once.
CLIENT_TYPES = "live", "from the start", "value", "timestamps", "filtered", "an ID per run", "table", "lines"
SEED = 1
# What the checker must report for each mutant. A client that gave up also lacks records at the end, which does not count.
LOST, REPEATED = "would be lost", "would be repeated"
MISSING, OUT_OF_ORDER = "no gap covers them", "was repeated or is out of order"
ALTERED = "matches no record of the stream, or was altered"
BROKEN_CHUNK = "a chunk is longer than its size"
BLACK_BOX = {
    "abort_never_ends": LOST,
    "aborted_records_shown": ALTERED,
    "added_partitions_ignored": f"/{PARTITIONS}: the position is 0 of",
    "batch_decoded_from_its_start": OUT_OF_ORDER,
    "buffer_shared": ALTERED,
    "catching_up_skips_a_frame": MISSING,
    "chunk_cut_in_a_frame": LOST,
    "chunk_not_sent": LOST,
    "chunk_size_wrong": BROKEN_CHUNK,
    "cursor_one_too_far": MISSING,
    "filter_takes_one_more": MISSING,
    "id_before_its_data": "an event has no ID",
    "id_one_too_far": LOST,
    "id_one_too_near": REPEATED,
    "last_of_a_batch_dropped": LOST,
    "last_of_a_batch_not_decoded": MISSING,
    "lone_id_too_far": LOST,
    "number_rewritten": ALTERED,
    "opening_without_position": "a record precedes the first event ID",
    "records_of_another_partition": ALTERED,
    "rest_of_a_write_lost": BROKEN_CHUNK,
    "resume_forgets_a_partition": LOST,
    "ring_segment_lost": LOST,
    "snapshot_lacks_a_key": "the snapshot lacks",
    "id_of_run_too_early": OUT_OF_ORDER,
    "times_one_too_far": "the event ID has timestamp",
    "tombstones_hidden": MISSING,
    "two_of_a_batch_swapped": OUT_OF_ORDER,
    "write_repeated": OUT_OF_ORDER,
}
# These need clients whose tokens expire.
EXPIRY = {
    "ends_before_expiry": "streams, expected at most",
    "expired_id_too_far": LOST,
    "expiry_cuts_an_event": "the server ended the stream within an event",
    "expiry_ignored": "after its token expired",
    "expiry_without_retry": "the server ended the stream without a reconnection time",
}
UNTIL_TOO_LATE_S = LIFETIME_S + MAX_OVERSTAY_S + 1  # a stream that is still open then should have ended
IN_GATE = "id_one_too_far"


@pytest.fixture(scope="module")
def scenario(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with closing(Scenario(cluster, "t-mutants", tmp_path_factory.mktemp("mutants"), SEED)) as scenario:
        scenario.fill_table()
        scenario.write(BATCHES, pause_s=0)
        yield scenario


def each(table: dict[str, str]) -> pytest.MarkDecorator:
    """Parametrize a test with the mutants of a table. Most are long, because they prove the checker, not kafkasse."""
    marks = {name: () if name == IN_GATE else pytest.mark.long for name in table}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks[name]) for name in table])


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, scenario: Scenario) -> Outcomes:
    """The outcome of each selected mutant, and of none (""): one server for each, over the same records."""
    names = ["", *selected(request, "name", BLACK_BOX)]
    groups = [names[at : at + SERVERS_AT_ONCE] for at in range(0, len(names), SERVERS_AT_ONCE)]
    played = [scenario.play(group, BATCHES, types=CLIENT_TYPES) for group in groups]
    return dict(chain.from_iterable(outcome.items() for outcome in played))


Outcomes = dict[str, Outcome]


def test_reports_nothing_without_a_fault(outcomes):
    assert [] == outcomes[""].violations


@each(BLACK_BOX)
def test_reports_a_fault_from_outside(scenario, outcomes, name):
    """A server with the fault applies it, and the checker reports what the fault causes."""
    check(name, BLACK_BOX[name], outcomes[name], lambda: scenario.play([name], BATCHES, types=CLIENT_TYPES)[name])


def check(name: str, violation: str, outcome: Outcome, play: Callable[[], Outcome]) -> None:
    """Check the outcome of a mutant, and play again if the fault did not show."""
    for _ in range(1, MAX_PLAYS):
        if any(violation in reported for reported in outcome.violations):
            break
        outcome = play()

    assert outcome.applied > 0, "this mutant never ran: patch the code that runs instead"
    assert any(violation in reported for reported in outcome.violations), outcome.violations


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with closing(Gateway(cluster, "t-expiry", tmp_path_factory.mktemp("expiry"), SEED)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def outcomes_of_expiry(request: pytest.FixtureRequest, gateway: Gateway) -> Outcomes:
    """The outcome of each selected mutant of EXPIRY, and of none (""): one server for each, over the same records."""
    return gateway.play(["", *selected(request, "name", EXPIRY)], lambda servers: gateway.write(UNTIL_TOO_LATE_S))


@pytest.mark.long
def test_reports_nothing_if_streams_end_when_their_tokens_expire(outcomes_of_expiry):
    assert [] == outcomes_of_expiry[""].violations


@each(EXPIRY)
def test_reports_a_fault_at_expiry(gateway, outcomes_of_expiry, name):
    """A server with the fault applies it, and the checker reports what the fault causes."""
    play = lambda: gateway.play([name], lambda servers: gateway.write(UNTIL_TOO_LATE_S))[name]  # noqa: E731
    check(name, EXPIRY[name], outcomes_of_expiry[name], play)


def test_each_mutant_has_a_proof():
    """A mutant that needs a certain order of steps has a stored world, because no test from outside can force the order."""
    stored = {world.mutant for world in STORED if world.mutant}

    assert mutants.MUTANTS.keys() == BLACK_BOX.keys() | EXPIRY.keys() | stored
    assert not stored & (BLACK_BOX.keys() | EXPIRY.keys())


def test_the_readme_lists_every_mutant():
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(mutants.MUTANTS) == sorted(listed)


def test_a_mutant_without_a_target_raises():
    """A mutant whose target no longer exists raises an error. It does not count as caught."""
    with pytest.raises(mutants.TargetMissing, match="no_such_function"):
        mutants.patch(mutants, "no_such_function", print)
