"""A pytest plugin that ends the greenlets of kafkasse that a test has left behind.

A feed lives for some seconds after its last reader. Its greenlets would run, log and allocate memory during the next tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

import gevent
import pytest
from gevent import Greenlet


class Greenlets:
    """Remembers all greenlets that run."""

    def __init__(self) -> None:
        self._started: WeakSet[Greenlet] = WeakSet()
        Greenlet.add_spawn_callback(self._started.add)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the teardown of the fixtures
    def pytest_runtest_teardown(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            gevent.killall([greenlet for greenlet in self._started if _is_left_behind(greenlet)])
            self._started.clear()


def _is_left_behind(greenlet: Greenlet) -> bool:
    return not greenlet.dead and str(getattr(greenlet._run, "__module__", "")).startswith("kafkasse.")
