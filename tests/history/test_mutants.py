"""The checker can fail: each seeded fault of kafkasse is complained about, by the proof that the real one passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest

from tests.history import inside, mutants
from tests.history.scenario import Outcome, World
from tests.history.test_delivery import RETENTION_SEEDS, SEED, STEPS
from tests.support.kafka import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"
SERVERS_AT_ONCE = 5
BATCHES = 10
SEEDS_MAX = 60
# What needs an order of things that no black box can bring about, or retention in the midst of a stream.
INSIDE = (
    "joins_one_too_late", "joins_one_too_early", "evicted_while_joining", "falls_behind_to_the_end",
    "gap_not_sent", "gap_too_wide",
)  # fmt: skip
OUTSIDE = tuple(sorted(mutants.MUTANTS.keys() - {*INSIDE}))


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What came of each mutant that is asked for, and of none: a server for each, over the same records."""
    asked = [item.callspec.params.get("outside") for item in request.session.items if hasattr(item, "callspec")]
    names = ["", *(name for name in OUTSIDE if name in asked)]
    with closing(World(cluster, tmp_path_factory.mktemp("mutants"), SEED)) as world:
        world.fill_table()
        world.write(BATCHES, pause_s=0)
        groups = [names[at : at + SERVERS_AT_ONCE] for at in range(0, len(names), SERVERS_AT_ONCE)]
        played = [world.play(group, BATCHES) for group in groups]
    return dict(chain.from_iterable(each.items() for each in played))


Outcomes = dict[str, Outcome]


def test_no_fault_no_complaint(outcomes: Outcomes) -> None:
    """The same records, kinds of clients and cuts, and no fault: nothing is complained about."""
    assert [] == outcomes[""].complaints


@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_fault_is_seen_from_outside(outcomes: Outcomes, outside: str) -> None:
    """A server with this fault has done it, and the checker complains."""
    found, done = outcomes[outside]

    assert done > 0, "this mutant was never reached: hook it elsewhere"
    assert [each for each in found if "at the end" not in each]  # what is missing there may have needed more patience


@pytest.fixture
def mutant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a fault that this process has for as long as the test lasts."""
    with mutants.mutated(request.param):
        yield request.param


@pytest.mark.parametrize("mutant", INSIDE, indirect=True)
def test_a_fault_is_seen_inside(mutant: str) -> None:
    """Feeds of this process with this fault have done it, and the checker complains."""
    worlds = (inside.World(seed, filtered=False, sparse=False) for seed in RETENTION_SEEDS)
    found = next((complaints for world in worlds if (complaints := world.play(STEPS))), [])

    assert mutants.done[mutant] > 0, "this mutant was never reached: hook it elsewhere"
    assert found


def test_the_page_has_a_line_for_each() -> None:
    """docs/delivery.md tells of every fault, and of none that is no more."""
    told = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(mutants.MUTANTS) == sorted(told)


def test_a_mutant_whose_place_has_gone_says_so() -> None:
    """One that would patch nothing does not pass for one that was caught."""
    with pytest.raises(mutants.SeamGone, match="hook the mutant"):
        mutants.seam(mutants, "no_such_function", print)
