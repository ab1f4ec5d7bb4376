"""A pytest plugin that tells pytest-xdist which tests must run in the same process, and in which order.

pytest-xdist distributes groups of tests. Most groups are modules, because the tests of a module share a server and its
topics. In the folders of SHARED, all tests share something that starts slowly, such as Spark or a virtual environment.
The groups that took longest in the last run of the whole suite start first. Otherwise one process could still be busy
with a long group after the others have finished. In a new clone, the folders of SHARED start first, in this order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import gevent
import pytest

SHARED = ("tests/pipelines/spark/", "tests/chaos/", "tests/project/", "tests/secured/")
TICK_S = 0.05
CACHE_KEY = "kafkasse/seconds_of_groups"


def group_of(node_id: str) -> str:
    """Return the group of a test: its folder or its module."""
    shared = [folder for folder in SHARED if node_id.startswith(folder)]
    return shared[0] if shared else node_id.partition("::")[0]


class Schedule:
    """Orders the groups, and remembers how long they took."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache: pytest.Cache | None = getattr(config, "cache", None)  # missing with `-p no:cacheprovider`
        self._is_worker = hasattr(config, "workerinput")
        if self._is_worker:
            # Between tests, a process waits for an event that another thread sets. gevent takes that for a deadlock
            # unless its loop has something to wait for.
            self._timer = gevent.get_hub().loop.timer(TICK_S, repeat=TICK_S)
            self._timer.start(lambda: None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        from xdist.scheduler import LoadScopeScheduling

        # The documented way, the marker xdist_group, appends the group to the name of each test, so that nobody could pass
        # a printed name to pytest. xdist's own schedulers override this method, too.
        class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
            def _split_scope(self, nodeid: str) -> str:
                return group_of(nodeid)

        config.option.loadscopereorder = False
        return ByGroup(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._is_worker and self._cache:  # a single process keeps pytest's order
            seconds: dict[str, float] = self._cache.get(CACHE_KEY, {}) or {
                folder: len(SHARED) - at for at, folder in enumerate(SHARED)
            }
            items.sort(key=lambda item: -seconds.get(group_of(item.nodeid), 0))

    def remember(self, seconds_of_tests: Mapping[str, float]) -> None:
        """Store how long the groups took in a run of the whole suite."""
        seconds: defaultdict[str, float] = defaultdict(float)
        for node_id, taken in seconds_of_tests.items():
            seconds[group_of(node_id)] += taken
        if self._cache:
            self._cache.set(CACHE_KEY, seconds)
