"""The report at the end of a test run: a page of the docs cannot name a test that does not run."""

from __future__ import annotations

import pytest

from tests.support.report import named_tests, short_name, unexpected_skips, without_evidence


def test_finds_the_tests_that_a_page_names(tmp_path):
    """Names in backquotes count, with or without a class; other code does not."""
    page = tmp_path / "page.md"
    page.write_text("| a | `kafka/test_log.py::test_reads`, `test_app.py::TestProbes::test_health` | `kafka/log.py` |")

    assert {"kafka/test_log.py::test_reads", "test_app.py::test_health"} == named_tests([page])


@pytest.mark.parametrize("test", ["test_full", "test_full[max_streams]", "TestCursors::test_full[a::b]"])
def test_calls_a_test_what_the_docs_call_it(test):
    """The docs name neither classes nor parameters."""
    assert "server/test_caps.py::test_full" == short_name(f"tests/server/test_caps.py::{test}")


def test_a_skip_that_is_not_in_the_list_is_unexpected():
    """The list names tests, modules or folders."""
    skipped = ["tests/a.py::test_one[x]", "tests/a.py::test_two", "tests/b/c.py::test_one"]

    assert ["tests/a.py::test_two"] == unexpected_skips(skipped, ["tests/a.py::test_one", "tests/b/"])
    assert skipped == unexpected_skips(skipped, [])


def test_only_a_test_that_passed_is_evidence():
    """One set of parameters is enough. The tests of `make test-long` count too, because they run elsewhere."""
    named = ["a.py::test_passed", "a.py::test_skipped", "a.py::test_long"]
    passed = ["tests/a.py::test_passed[1]", "tests/a.py::test_other"]

    assert ["a.py::test_skipped"] == without_evidence(named, passed, ["tests/a.py::test_long[2]"])
