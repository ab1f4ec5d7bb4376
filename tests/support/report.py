"""A pytest plugin that reports, after a run, which tests were slow, and which did not run and therefore prove nothing.

A run in which all tests passed fails nevertheless,
- with CI=true or `-m long`, if a test was skipped that tests/may_be_skipped.toml does not list;
- with CI=true, if it is the whole suite and docs/ or a README.md of tests/ names a test that neither passed nor is long.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support import guard
from tests.support.schedule import Schedule

ROOT = Path(__file__).parents[2]
EVIDENCE = [*ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/*.md")]
OUTPUT = "left_out"  # the key in pytest-xdist's `workeroutput`
MAY_BE_SKIPPED = ROOT / "tests" / "may_be_skipped.toml"
NAMED_TEST = re.compile(r"`([\w/]+\.py::)(?:Test\w+::)?(test_\w+)`")
LONG, PROCESSES = "long", guard.NAME  # the markers
LEFT_OUT = {
    LONG: "that take minutes: make test-long",
    PROCESSES: "that start Kafka, servers, browsers or Spark: make test",
}


def named_tests(pages: Iterable[Path]) -> set[str]:
    """Return the tests that the pages name, such as `chaos/test_kafka.py::test_a_leader_moves`, without their classes."""
    return {file + test for page in pages for file, test in NAMED_TEST.findall(page.read_text())}


def short_name(node_id: str) -> str:
    """Return the name by which the docs call a test: without the class and the parameters."""
    file, *_, test = node_id.removeprefix("tests/").partition("[")[0].split("::")
    return f"{file}::{test}"


def unexpected_skips(skipped: Iterable[str], allowed: Iterable[str]) -> list[str]:
    """Return the skipped tests that are not in the list, which contains names of tests, modules and folders."""
    prefixes = tuple(allowed)
    return sorted(node_id for node_id in skipped if not node_id.startswith(prefixes))


def without_evidence(named: Iterable[str], passed: Iterable[str], long: Iterable[str]) -> list[str]:
    """Return the named tests that are not long, and that have not passed with any parameters."""
    return sorted(set(named) - {short_name(node_id) for node_id in (*passed, *long)})


class Report:
    """Collects the outcomes of one run. With pytest-xdist, the controller collects those of all processes."""

    def __init__(self, config: pytest.Config, schedule: Schedule) -> None:
        self._config = config
        self._schedule = schedule
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._passed: set[str] = set()
        self._skipped: dict[str, str] = {}  # the reasons
        self._left_out: dict[str, list[str]] = {}  # test IDs by marker
        self._problems: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        if report.skipped:
            self._skipped[report.nodeid] = _reason(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:  # a module
            self._skipped[report.nodeid] = _reason(report)

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self._left_out = _left_out(items, self._config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out = getattr(node, "workeroutput", {}).get(OUTPUT, self._left_out)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if os.environ.get("CI") == "true" or self._config.option.markexpr == LONG:
            allowed = tomllib.loads(MAY_BE_SKIPPED.read_text())
            self._problems["tests that were skipped, and are not in tests/may_be_skipped.toml"] = unexpected_skips(
                self._skipped, allowed
            )
        if self._is_whole_suite(session):
            self._schedule.remember(self._seconds)
            if os.environ.get("CI") == "true":  # elsewhere, tools may be missing
                self._problems["tests that docs/ or tests/**/*.md name, and that did not pass"] = without_evidence(
                    named_tests(EVIDENCE), self._passed, self._left_out.get(LONG, ())
                )
        if any(self._problems.values()) and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders: defaultdict[str, list[float]] = defaultdict(list)
        for node_id, seconds in self._seconds.items():
            folders[str(PurePosixPath(node_id.partition("::")[0]).parent)].append(seconds)
        if len(folders) > 1:
            terminalreporter.section("seconds per folder")
            for folder, taken in sorted(folders.items(), key=lambda item: -sum(item[1])):
                terminalreporter.write_line(f"{sum(taken):7.1f} s  {len(taken):5} tests  {folder}")
        if self._skipped or any(self._left_out.values()):
            terminalreporter.section("not run")
            for (module, reason), count in sorted(Counter(_modules(self._skipped)).items()):
                terminalreporter.write_line(f"{count:5} tests  {module}: {reason}")
            if modules := sorted({module for module, _ in _modules(self._skipped)}):
                terminalreporter.write_line(f'once everything is installed: make test TEST="{" ".join(modules)}"')
            for marker, names in self._left_out.items():
                if names:
                    terminalreporter.write_line(f"{len(names):5} tests {LEFT_OUT[marker]}")
        for problem, names in self._problems.items():
            if names:
                terminalreporter.section(problem, red=True)
                for name in names:
                    terminalreporter.write_line(f"{name}: {self._skipped.get(name, 'did not run')}")

    def _is_whole_suite(self, session: pytest.Session) -> bool:
        options = self._config.option
        selected = (
            options.keyword
            or options.markexpr != f"not {LONG}"
            or options.collectonly
            or options.maxfail
            or getattr(options, "lf", False)
        )
        return (
            self._config.args_source is pytest.Config.ArgsSource.TESTPATHS and not selected and not session.shouldstop
        )


class LeftOut:
    """In a process of pytest-xdist: sends the names of deselected tests to the controller, which collects none."""

    def __init__(self, config: pytest.Config, output: dict[str, object]) -> None:
        self._config, self._output = config, output

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self._output[OUTPUT] = _left_out(items, self._config)


def _left_out(items: Iterable[pytest.Item], config: pytest.Config) -> dict[str, list[str]]:
    """Return the names of the tests that -m leaves out, by marker. A test with both markers counts as long."""
    names: dict[str, list[str]] = {marker: [] for marker in LEFT_OUT if f"not {marker}" in config.option.markexpr}
    for item in items:
        if marker := next((marker for marker in names if item.get_closest_marker(marker)), ""):
            names[marker].append(item.nodeid)
    return names


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]).removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""


def _modules(skipped: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(node_id.partition("::")[0], reason) for node_id, reason in skipped.items()]
