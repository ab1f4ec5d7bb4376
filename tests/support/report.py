"""A pytest plugin that reports, after a run, the slowest tests, and tests that the docs name but that did not run.

The pages in docs/ name tests as `chaos/test_kafka.py::test_a_leader_moves`. A run of the whole suite fails if such a test
did not run, because then nothing supports what the page says. A failed or skipped test is reported by pytest itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from tests.support.schedule import Schedule

DOCS = Path(__file__).parents[2] / "docs"
NAMED_TEST = re.compile(r"`([\w/]+\.py::test_\w+)`")


def named_tests(pages: Iterable[Path]) -> set[str]:
    """Return the tests that the pages name, such as `chaos/test_kafka.py::test_a_leader_moves`."""
    return {name for page in pages for name in NAMED_TEST.findall(page.read_text())}


def short_name(node_id: str) -> str:
    """Return the name by which the docs call a test: without the class and the parameters."""
    file, *_, test = node_id.removeprefix("tests/").partition("[")[0].split("::")
    return f"{file}::{test}"


class Report:
    """Collects what the tests of one run took. With pytest-xdist, the controller collects the tests of all processes."""

    def __init__(self, config: pytest.Config, schedule: Schedule) -> None:
        self._config = config
        self._schedule = schedule
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._is_whole_suite(session):
            self._schedule.remember(self._seconds)
            self._missing = sorted(named_tests(DOCS.glob("*.md")) - {short_name(each) for each in self._seconds})
        if self._missing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders: defaultdict[str, list[float]] = defaultdict(list)
        for node_id, seconds in self._seconds.items():
            folders[str(PurePosixPath(node_id.partition("::")[0]).parent)].append(seconds)
        if len(folders) > 1:
            terminalreporter.section("seconds per folder")
            for folder, taken in sorted(folders.items(), key=lambda item: -sum(item[1])):
                terminalreporter.write_line(f"{sum(taken):7.1f} s  {len(taken):5} tests  {folder}")
        if self._missing:
            terminalreporter.section("tests that docs/*.md name and that did not run", red=True)
            for name in self._missing:
                terminalreporter.write_line(name)

    def _is_whole_suite(self, session: pytest.Session) -> bool:
        options = self._config.option
        selected = (
            options.keyword
            or options.markexpr
            or options.collectonly
            or options.maxfail
            or getattr(options, "lf", False)
        )
        return (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS and not selected and not session.shouldstop
        )
