"""The checker on personal streams: each client receives exactly the records of its keys, whatever the order of steps."""

from __future__ import annotations

import os
import secrets
from typing import Any

import pytest

from kafkasse.filter import Query, Where
from tests.history.checker import StoredRecord
from tests.history.simulation import Choice, SelectingSimulation
from tests.support.examples import examples

SEED = int(os.environ.get("HISTORY_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 25
KEYS = [b"ada", b"ada", b"bob", b"eve", b"news", b"nobody", b"\xff", None]


def _choice(where: dict[str, Any], *keys: bytes, sub: object = None, is_even: bool = False) -> Choice:
    """Return what a visitor with the claim `sub` selects at `/{customer}`, with the path parameter `ada`."""
    claims = {} if sub is None else {"sub": sub}
    selection = Where.parse(where).select({"customer": "ada"}, claims, Query({}, None), lambda view, reason: None)

    def keeps(stored: StoredRecord) -> bool:
        return stored.key in keys and not (is_even and _is_odd(stored))

    return Choice(selection, keeps)


def _is_odd(stored: StoredRecord) -> bool:
    return stored.value is None or int(stored.value[5:-1].split(b",")[0]) % 2 == 1


# The clients of all choices but the last share a feed. Two of them select the same key, and form a group.
CHOICES = [
    _choice({"key": "{customer}"}, b"ada"),
    _choice({"key": "{claims.sub}"}, b"bob", sub="bob"),
    _choice({"key": ["{claims.sub}", "news"]}, b"ada", b"eve", b"news", sub=["ada", "eve"]),
    _choice({"key": "{claims.sub}"}, b"ada", sub="ada"),
    _choice({"key": "{claims.sub}"}, sub="mallory"),
    _choice({"key": "{customer}", "expression": "value.n % 2 == 0"}, b"ada", is_even=True),
]


class PersonalSimulation(SelectingSimulation):
    """A simulation in which several records have the same key, and each client selects the records of some keys."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, CHOICES, **settings)

    def _key(self, number: int) -> bytes | None:
        return self.rng.choice(KEYS)


@pytest.mark.parametrize("sparse", [False, True])
def test_each_client_receives_exactly_the_records_of_its_keys(sparse: bool) -> None:
    """Appends, fetches, parks, full sockets, ends and cuts at any byte: no record of a key is lost or repeated."""
    for seed in range(SEED, SEED + examples(WORLDS)):
        scenario = PersonalSimulation(seed, sparse=sparse, drops=False)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"


@pytest.mark.parametrize("late_reconnects", [False, True])
def test_each_client_receives_the_gaps_of_removed_records(late_reconnects: bool) -> None:
    """Records that retention removes are covered by a gap, whichever keys the client selects."""
    gaps = 0
    for seed in range(SEED, SEED + WORLDS):
        scenario = PersonalSimulation(seed, late_reconnects=late_reconnects)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"
        gaps += scenario.gaps

    assert gaps > 0


def test_each_client_receives_the_gaps_of_truncated_logs() -> None:
    """Records that a truncation loses are covered by a gap, whichever keys the client selects."""
    gaps = 0
    for seed in range(SEED, SEED + WORLDS):
        scenario = PersonalSimulation(seed, drops=False, truncates=True)

        assert [] == scenario.play(STEPS), f"to repeat this run: HISTORY_SEED={seed}"
        gaps += scenario.gaps

    assert gaps > 0
