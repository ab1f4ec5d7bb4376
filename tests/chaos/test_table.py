"""docs/faults.md lists exactly the faults that are tested."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "faults.md"
FAULTS = "chaos/test_kafka.py", "chaos/test_topics.py", "chaos/test_servers.py"
WITHOUT_FAULTS = "test_without_faults"


def test_every_row_names_its_tests() -> None:
    """Each row names tests that exist."""
    for row in re.findall(r"^\| (?!fault|-).*\|$", TABLE.read_text(), re.MULTILINE):
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row.split(" | ")[-1])
        assert tests, row
        assert all(name in _tests(file) for file, name in tests), row


def test_every_fault_is_in_the_table() -> None:
    """Each tested fault has a row."""
    text = TABLE.read_text()
    for file in FAULTS:
        assert [] == [each for each in _tests(file) if f"`{file}::{each}`" not in text and each != WITHOUT_FAULTS]


def _tests(file: str) -> list[str]:
    return re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
