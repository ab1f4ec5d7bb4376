"""A pytest plugin that keeps fast tests fast: only a test that asks for the `processes` fixture may start a process.

A fixture that starts something (a broker, a browser, Spark, a server) depends on the fixture `processes`. A test that
starts a process itself has the marker of the same name. So `pytest -m "not processes"` selects the fast tests without a
list that somebody has to maintain, and a test that belongs to neither group fails with the reason.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from typing import Any

import pytest

NAME = "processes"
STARTS_A_PROCESS = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})


class NotAllowed(AssertionError):
    """A test did what only tests with the fixture or marker `processes` may do."""


class Guard:
    """Marks the tests that use the fixture, and watches the others while they run."""

    def __init__(self) -> None:
        self._test: str | None = None  # the running test that must not start anything
        sys.addaudithook(self._audit)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if NAME in getattr(item, "fixturenames", ()):
                item.add_marker(NAME)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._watched(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._watched(item))

    def _watched(self, item: pytest.Item) -> Iterator[None]:
        self._test = None if item.get_closest_marker(NAME) else item.nodeid
        try:
            return (yield)
        finally:
            self._test = None

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self._test is None:
            return
        if event in STARTS_A_PROCESS:
            raise NotAllowed(f"{self._test} starts a process ({event}). Mark it with pytest.mark.{NAME}.")
        if event == "socket.connect" and not _is_local(args[1]):
            raise NotAllowed(f"{self._test} connects to {args[1]}. Fast tests do not use the network.")


def _is_local(address: Any) -> bool:
    """Unix sockets, and the loopback addresses."""
    if not isinstance(address, tuple):
        return True
    try:
        return ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return str(address[0]) == "localhost"
