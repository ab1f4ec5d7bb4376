"""The pages of errors are complete."""

from __future__ import annotations

import pytest

from kafkasse.errors import pages


@pytest.mark.parametrize("error", pages().values())
def test_every_error_has_its_own_cause_and_fix(error):
    """An error does not inherit the texts of a more general error, which do not help."""
    assert {"title", "cause", "fix"} <= vars(error).keys()
