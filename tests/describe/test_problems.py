"""docs/errors.md and the pages of errors are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site.errors import markdown
from kafkasse.errors import pages
from tests.support.server import ROOT


def test_the_docs_are_generated():
    """docs/errors.md agrees with errors.py. Run `python -m docs.site.errors > docs/errors.md`."""
    assert markdown() == (ROOT / Path("docs/errors.md")).read_text()


@pytest.mark.parametrize("error", pages().values())
def test_every_error_has_its_own_cause_and_fix(error):
    """An error does not inherit the texts of a more general error, which do not help."""
    assert {"title", "cause", "fix"} <= vars(error).keys()
