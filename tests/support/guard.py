"""A pytest plugin that decides which tests `make test-fast` runs, and keeps those tests fast.

A fixture that starts something (a broker, a browser, Spark, a server) depends on the fixture `processes`. A test that
starts a process itself has the marker `processes`. All other tests are fast. A fast test fails if it starts a process or
connects to another machine, so there is no list of tests to maintain.
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
    """A fast test started a process or used the network."""


class Guard:
    """Gives the tests that use the fixture the marker, and watches the fast tests while they run."""

    def __init__(self) -> None:
        self._test: str | None = None  # the fast test that is running, if any
        sys.addaudithook(self._audit)

    @pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
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
    """Return whether the address is a Unix socket or a loopback address."""
    if not isinstance(address, tuple):
        return True
    try:
        return ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return str(address[0]) == "localhost"
