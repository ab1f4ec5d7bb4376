"""docs/faults.md promises what tests show, all of it and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "faults.md"
FAULTS = "chaos/test_kafka.py", "chaos/test_topics.py", "chaos/test_servers.py"
THE_SCENE_ITSELF = "test_nothing_happens"


def test_every_promise_is_shown() -> None:
    """Each line names tests, and they exist."""
    for row in re.findall(r"^\| (?!fault|-).*\|$", TABLE.read_text(), re.MULTILINE):
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row.split(" | ")[-1])
        assert named, row
        assert all(name in _tests(file) for file, name in named), row


def test_every_fault_is_in_the_table() -> None:
    """Each fault that is tested has its line."""
    text = TABLE.read_text()
    for file in FAULTS:
        assert [] == [each for each in _tests(file) if f"`{file}::{each}`" not in text and each != THE_SCENE_ITSELF]


def _tests(file: str) -> list[str]:
    return re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
