"""docs/errors.md and the pages of errors are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkasse.web.describe.problems import markdown, pages
from tests.support.server import ROOT


def test_the_docs_are_generated():
    """docs/errors.md agrees with errors.py. Run `python -m kafkasse.web.describe.problems > docs/errors.md`."""
    assert markdown() == (ROOT / Path("docs/errors.md")).read_text()


@pytest.mark.parametrize("error", pages().values())
def test_every_error_has_its_own_cause_and_fix(error):
    """An error does not inherit the texts of a more general error, which do not help."""
    assert {"title", "cause", "fix"} <= vars(error).keys()
