"""The checker can fail: it reports every mutant of kafkasse, with the same test that the real kafkasse passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from tests.history import mutants
from tests.history.gateway import LIFETIME_S, Gateway
from tests.history.scenario import Outcome, Scenario
from tests.history.worlds import STORED
from tests.support.kafka import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"
SERVERS_AT_ONCE = 7
BATCHES = 10
MAX_PLAYS = 4  # whether a fault shows in one play depends on where reads and cuts happen
# A server with a fault has only these clients, so that many servers can run at once.
CLIENT_TYPES = "live", "from the start", "value", "timestamps", "filtered", "sparse", "table", "lines"
SEED = 1
# The stored worlds prove these (see test_worlds.py): they need an order of steps that no black-box test can force.
IN_PROCESS = {world.mutant for world in STORED if world.mutant}
# These mutants need clients whose tokens expire.
EXPIRY = "ends_before_expiry", "expired_id_too_far", "expiry_cuts_an_event", "expiry_ignored", "expiry_without_retry"
BLACK_BOX = tuple(sorted(mutants.MUTANTS.keys() - {*IN_PROCESS, *EXPIRY}))


@pytest.fixture(scope="module")
def scenario(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with closing(Scenario(cluster, tmp_path_factory.mktemp("mutants"), SEED)) as scenario:
        scenario.fill_table()
        scenario.write(BATCHES, pause_s=0)
        yield scenario


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, scenario: Scenario) -> Outcomes:
    """The outcome of each selected mutant, and of none (""): one server for each, over the same records."""
    selected = [item.callspec.params.get("black_box") for item in request.session.items if hasattr(item, "callspec")]
    names = ["", *(name for name in BLACK_BOX if name in selected)]
    groups = [names[at : at + SERVERS_AT_ONCE] for at in range(0, len(names), SERVERS_AT_ONCE)]
    played = [scenario.play(group, BATCHES, types=CLIENT_TYPES) for group in groups]
    return dict(chain.from_iterable(each.items() for each in played))


Outcomes = dict[str, Outcome]


def test_reports_nothing_without_a_fault(outcomes: Outcomes) -> None:
    """With the same records, clients and cuts, but no fault, the checker reports nothing."""
    assert [] == outcomes[""].violations


@pytest.mark.parametrize("black_box", BLACK_BOX)
def test_reports_a_fault_from_outside(scenario: Scenario, outcomes: Outcomes, black_box: str) -> None:
    """A server with the fault applies it, and the checker reports it."""
    # Records may be missing at the end only because the client gave up, except those of a partition that the server ignores.
    may_give_up = black_box != "added_partitions_ignored"
    outcome = outcomes[black_box]
    for _ in range(1, MAX_PLAYS):
        if _reported(outcome, may_give_up):
            break
        outcome = scenario.play([black_box], BATCHES, types=CLIENT_TYPES)[black_box]

    assert outcome.applied > 0, "this mutant never ran: patch the code that runs instead"
    assert _reported(outcome, may_give_up)


def _reported(outcome: Outcome, may_give_up: bool = True) -> list[str]:
    return [each for each in outcome.violations if not (may_give_up and "never came" in each)]


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with closing(Gateway(cluster, tmp_path_factory.mktemp("expiry"), SEED)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def outcomes_of_expiry(gateway: Gateway) -> Outcomes:
    """The outcome of each mutant of EXPIRY, and of none (""): one server for each, over the same records."""
    return gateway.play(["", *EXPIRY], lambda servers: gateway.write(2 * LIFETIME_S))


def test_reports_nothing_if_streams_end_when_their_tokens_expire(outcomes_of_expiry: Outcomes) -> None:
    """With the same records, clients and cuts, but no fault, the checker reports nothing."""
    assert [] == outcomes_of_expiry[""].violations


@pytest.mark.parametrize("expiry", EXPIRY)
def test_reports_a_fault_at_expiry(gateway: Gateway, outcomes_of_expiry: Outcomes, expiry: str) -> None:
    """A server with the fault applies it, and the checker reports it."""
    outcome = outcomes_of_expiry[expiry]
    for _ in range(1, MAX_PLAYS):
        if _reported(outcome):
            break
        outcome = gateway.play([expiry], lambda servers: gateway.write(2 * LIFETIME_S))[expiry]

    assert outcome.applied > 0, "this mutant never ran: patch the code that runs instead"
    assert _reported(outcome)


def test_the_docs_list_every_mutant() -> None:
    """docs/delivery.md lists every mutant and no others."""
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(mutants.MUTANTS) == sorted(listed)


def test_a_mutant_without_a_target_raises() -> None:
    """A mutant whose target no longer exists raises an error. It does not count as caught."""
    with pytest.raises(mutants.TargetMissing, match="no_such_function"):
        mutants.patch(mutants, "no_such_function", print)
