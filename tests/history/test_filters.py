"""The checker on clients with filters: each receives exactly the records that match, whatever the order of steps."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kafkasse.filter import Dimension, Filter, Query, Selection, Where, compile_expression
from kafkasse.frame import Encoder
from kafkasse.position import of_topics, parse
from tests.history.checker import History, StoredRecord
from tests.history.simulation import TOPIC, Client, Simulation

SEED = int(os.environ.get("HISTORY_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 25
KEYS = [f"k{number}" for number in range(300)]


class Choice(NamedTuple):
    """What a client selects, and the same as a function of a stored record."""

    selection: Selection
    keeps: Callable[[StoredRecord], bool]


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


class FilteredSimulation(Simulation):
    """A simulation whose clients have different filters. Clients with equal filters and dimensions share an encoder."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, filtered=False, **settings)
        self._encoders: dict[Any, Encoder] = {}

    def choice(self, client: Client) -> Choice:
        return CHOICES[self.clients.index(client) % len(CHOICES)]

    def _connect(self, client: Client) -> None:
        chosen = self.choice(client).selection
        encoder = self._encoders.setdefault(
            (chosen.filter, chosen.dimensions),
            Encoder(filter=chosen.filter, dimensions=chosen.dimensions, sparse_ids=self.sparse),
        )
        position = parse(client.sent_id) if client.sent_id else of_topics([TOPIC])
        topics = self.log.describe([TOPIC])
        client.connect(self._feeds.open(self._route, position, topics, encoder, selector=chosen.selector), self.now)

    def _history(self, number: int, client: Client) -> History:
        choice = self.choice(client)
        every = "run" if self.sparse and choice.selection.selector is None else "event"
        return History(f"client {number}", [TOPIC], client.connections, id_frequency=every, keeps=choice.keeps)


@pytest.mark.parametrize("sparse", [False, True])
def test_filtered_clients_receive_exactly_their_records(sparse: bool) -> None:
    """Appends, fetches, reads, heartbeats and cuts at any byte: no matching record is lost or repeated."""
    for seed in range(SEED, SEED + WORLDS):
        scenario = FilteredSimulation(seed, sparse=sparse, drops=False)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"


def test_filtered_clients_receive_the_gaps_of_removed_records() -> None:
    """Records that retention removes are covered by a gap, whether they would have matched or not."""
    for seed in range(SEED, SEED + WORLDS):
        scenario = FilteredSimulation(seed, sparse=False)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"


def test_the_checker_notices_a_filter_that_drops_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would fail if a filter dropped a matching record."""
    matches = Filter.matches
    monkeypatch.setattr(Filter, "matches", lambda self, view: matches(self, view) and view.offset != 5)

    found = [FilteredSimulation(seed, sparse=False, drops=False).play(STEPS) for seed in range(5)]

    assert any(found)
