"""docs/faults.md lists exactly the faults that tests/chaos injects. README.md names the tests of each.

tests/support/report.py checks that these tests have run.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos import scene

TESTS = Path(__file__).parents[1]
EVIDENCE = Path(__file__).with_name("README.md")
FAULTS = "chaos/test_kafka.py", "chaos/test_topics.py", "chaos/test_servers.py", "chaos/test_security.py"


def test_every_tested_fault_has_a_row():
    page = EVIDENCE.read_text()
    for file in FAULTS:
        tests = re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
        assert [] == [test for test in tests if f"`{file}::{test}`" not in page]


def test_every_fault_has_a_test():
    """Both pages list the same faults, in the same order."""
    proven = scene.rows(EVIDENCE)

    assert len(proven) > len(FAULTS)
    assert list(proven) == list(scene.rows(scene.FAULTS_PAGE))
    assert [] == [row for row in proven.values() if not re.search(r"`[\w/]+\.py::test_\w+`", row)]


def test_a_row_says_how_late_a_record_may_be(tmp_path, monkeypatch):
    """The row of a fault has its own time; other faults use the time at the top of the page."""
    page, evidence = tmp_path / "faults.md", tmp_path / "README.md"
    page.write_text(
        "Records arrive at most 5 s later.\n\n| fault | x |\n| --- | --- |\n| a fault | at most 7 s |\n| b | |\n"
    )
    evidence.write_text("| fault | x |\n| --- | --- |\n| a fault | `chaos/x.py::test_a` |\n| b | `x.py::test_b` |\n")
    monkeypatch.setattr(scene, "FAULTS_PAGE", page)
    monkeypatch.setattr(scene, "EVIDENCE_PAGE", evidence)

    assert (7, 5, 5) == tuple(map(scene.documented_delay_s, ("test_a", "test_b", "")))
