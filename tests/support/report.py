"""A pytest plugin: after a run, where the time went, and which tests that the docs name have not passed.

The pages in docs/ name tests as `chaos/test_kafka.py::test_a_leader_moves`. A run of the whole suite fails if such a test
did not run, because then nothing supports what the page says. A failed or skipped test is reported by pytest itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NAMED_TEST = re.compile(r"`([\w/]+\.py(?:::\w+)+)`")


def named_tests(pages: Iterable[Path]) -> set[str]:
    """Return the tests that the pages name, such as `chaos/test_kafka.py::test_a_leader_moves`."""
    return {name for page in pages for name in NAMED_TEST.findall(page.read_text())}


class Report:
    """Collects what the tests of one run took. With pytest-xdist, the controller collects the tests of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran: set[str] = set()
        self._folder_s: defaultdict[str, float] = defaultdict(float)
        self._folder_tests: defaultdict[str, set[str]] = defaultdict(set)
        self._missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.removeprefix("tests/").partition("[")[0]
        folder = str(PurePosixPath(name.partition("::")[0]).parent)
        self._ran.add(name)
        self._folder_s[folder] += report.duration
        self._folder_tests[folder].add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._is_whole_suite(session):
            self._missing = sorted(named_tests(DOCS.glob("*.md")) - self._ran)
        if self._missing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._folder_s) > 1:
            terminalreporter.section("seconds per folder")
            for folder, seconds in sorted(self._folder_s.items(), key=lambda item: -item[1]):
                tests = len(self._folder_tests[folder])
                terminalreporter.write_line(f"{seconds:7.1f} s  {tests:5} tests  {folder}")
        if self._missing:
            terminalreporter.section("tests that docs/*.md name and that did not run", red=True)
            for name in self._missing:
                terminalreporter.write_line(name)

    def _is_whole_suite(self, session: pytest.Session) -> bool:
        options = self._config.option
        selected = options.keyword or options.markexpr or options.collectonly or options.maxfail or options.lf
        return (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS and not selected and not session.shouldstop
        )
