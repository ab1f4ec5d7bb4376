"""docs/faults.md lists exactly the faults that tests/chaos injects.

tests/support/report.py checks that the tests named in the page have run.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos import scene

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"
FAULTS = "chaos/test_kafka.py", "chaos/test_topics.py", "chaos/test_servers.py", "chaos/test_security.py"


def test_every_tested_fault_has_a_row():
    page = PAGE.read_text()
    for file in FAULTS:
        tests = re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE)
        assert [] == [test for test in tests if f"`{file}::{test}`" not in page]


def test_every_row_names_a_test():
    tables = re.findall(r"^\| fault .*\n\| -.*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    rows = "".join(tables).splitlines()

    assert len(rows) > len(FAULTS)
    assert [] == [row for row in rows if not re.search(r"`[\w/]+\.py::test_\w+`", row.split(" | ")[-1])]


def test_a_row_says_how_late_a_record_may_be(tmp_path, monkeypatch):
    """The row of a test has its own time; other tests use the time at the top of the page."""
    page = tmp_path / "faults.md"
    page.write_text(
        "Records arrive at most 5 s later.\n\n| a fault | at most 7 s | `chaos/x.py::test_a` |\n| `x.py::test_b` |"
    )
    monkeypatch.setattr(scene, "FAULTS_PAGE", page)

    assert (7, 5, 5) == tuple(map(scene.documented_delay_s, ("test_a", "test_b", "")))
