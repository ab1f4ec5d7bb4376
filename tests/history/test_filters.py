"""The checker on clients with filters: each receives exactly the records that match, whatever the order of steps."""

from __future__ import annotations

import os
import secrets

import pytest

from kafkasse.filter import Dimension, Filter, Query, Selection, Where, compile_expression
from tests.history.checker import StoredRecord
from tests.history.simulation import Choice, SelectingSimulation
from tests.support.examples import examples

SEED = int(os.environ.get("HISTORY_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 25
KEYS = [f"k{number}" for number in range(300)]


def _number(stored: StoredRecord) -> int | None:
    return None if stored.value is None else int(stored.value[5:-1].split(b",")[0])


def _by_expression() -> Choice:
    selection = Selection(Filter.of(expressions=[compile_expression("value.n % 3 != 0")]))
    return Choice(selection, lambda stored: (number := _number(stored)) is not None and number % 3 != 0)


def _by_keys(step: int, expression: str = "") -> Choice:
    """Choose some keys, as values of a dimension. Clients with different steps share a feed."""
    query = Query({Dimension("key"): frozenset(KEYS[::step])}, compile_expression(expression) if expression else None)
    selection = Where().select({}, {}, query, lambda view, reason: None)
    keys = {key.encode() for key in KEYS[::step]}
    return Choice(selection, lambda stored: stored.key in keys and (not expression or (_number(stored) or 0) > 20))


CHOICES = [
    _by_expression(),
    _by_keys(3),
    _by_keys(4),
    _by_keys(5, "value.n > 20"),
    Choice(Selection(), lambda stored: True),
]


@pytest.mark.parametrize("sparse", [False, True])
def test_filtered_clients_receive_exactly_their_records(sparse: bool) -> None:
    """Appends, fetches, reads, heartbeats and cuts at any byte: no matching record is lost or repeated."""
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = SelectingSimulation(seed, CHOICES, sparse=sparse, drops=False)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"


def test_filtered_clients_receive_the_gaps_of_removed_records() -> None:
    """Records that retention removes are covered by a gap, whether they would have matched or not."""
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = SelectingSimulation(seed, CHOICES)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"


def test_the_checker_notices_a_filter_that_drops_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would fail if a filter dropped a matching record."""
    matches = Filter.matches
    monkeypatch.setattr(Filter, "matches", lambda self, view: matches(self, view) and view.offset != 5)

    found = [SelectingSimulation(seed, CHOICES, drops=False).play(STEPS) for seed in range(5)]

    assert any(found)
