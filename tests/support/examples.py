"""How many examples hypothesis tries, and which; how many variants of a test `make test` runs.

The examples of `make test` and `make test-fast` are the same each time. `make test-random` tries new ones, and stores those
that fail in .hypothesis; add them to the test as `@example`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

GATE, FAST, LONG = "kafkasse", "fast", "long"  # the profiles of `make test`, `make test-fast` and `make test-random`
SHARES = {GATE: 3, FAST: 10, LONG: 1}  # a third, a tenth and all of the examples that a test declares


def register_profiles() -> None:
    """Register the profiles, and load that of `make test`."""
    usual = settings().max_examples
    for name, share in SHARES.items():
        of_profile = settings(deadline=None, max_examples=usual // share)  # no deadline, because machines may be slow
        if name != LONG:
            of_profile = settings(of_profile, derandomize=True, database=None)
        settings.register_profile(name, of_profile)
    settings.load_profile(GATE)


def is_long() -> bool:
    """Return whether this is a long run with new examples."""
    return settings.get_current_profile_name() == LONG


def examples(count: int) -> int:
    """Return `max_examples` for a test that needs another number than the default."""
    return max(1, count // SHARES.get(settings.get_current_profile_name(), 1))


def selected(request: pytest.FixtureRequest, parameter: str, values: Iterable[Any]) -> list[Any]:
    """Return those values of a parameter with which this run tests, so that a fixture can prepare all of them at once."""
    used = [item.callspec.params.get(parameter) for item in request.session.items if hasattr(item, "callspec")]
    return [value for value in values if value in used]


def first_of(*values: Any) -> list[Any]:
    """Return the values as parameters of a test. `make test` tests the first one, and `make test-long` the others."""
    return [values[0], *(pytest.param(value, marks=pytest.mark.long) for value in values[1:])]
