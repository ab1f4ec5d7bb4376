"""The report at the end of a test run: a page of the docs cannot name a test that does not run."""

from __future__ import annotations

from pathlib import Path

from tests.support.report import named_tests


def test_finds_the_tests_that_a_page_names(tmp_path: Path) -> None:
    """Names in backquotes count, with or without a class; other code does not."""
    page = tmp_path / "page.md"
    page.write_text(
        "| a | `kafka/test_log.py::test_reads`, `server/test_caps.py::TestCursors::test_full` | `kafka/log.py` |"
    )

    assert {"kafka/test_log.py::test_reads", "server/test_caps.py::TestCursors::test_full"} == named_tests([page])
