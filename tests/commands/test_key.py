"""`kafkasse key create`: a new API key, and its line for the file of a guard."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kafkasse.access.api_keys import ApiKeys
from tests.commands.run import Run


def test_prints_a_key_and_its_line(run: Run, tmp_path: Path) -> None:
    """A guard with the line in its file accepts the key."""
    _, key, _, _, line = run("key", "create", "partner-1").out.splitlines()

    (tmp_path / "keys").write_text(line)
    visitor = ApiKeys("partners", str(tmp_path / "keys"), logging.getLogger()).identify(key)

    assert ("partner-1", {"sub": "partner-1"}) == (visitor.name, visitor.claims)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "#a", "a" * 101])
def test_rejects_a_name_that_does_not_fit_into_a_line(run: Run, name: str) -> None:
    code, _, err = run("key", "create", name)

    assert (1, True) == (code, "A name has 1 to 100 characters" in err)
