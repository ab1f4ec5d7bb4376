"""Copies the totals of the feeds to the metrics at intervals, so that sending an event does not touch a metric.

A worker that is killed loses the counts since the last interval.
"""

from __future__ import annotations

import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import gevent
from gevent import get_hub

from kafkasse.access.watched_file import outdated_count
from kafkasse.process.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from kafkasse.feed.feeds import Feeds

INTERVAL_S = 2.0
# How long the highest delay is reported. A feed with slow hooks may begin a batch only every few seconds, and an alert would
# never fire if a scrape between two batches returned 0.
DELAY_PERIOD_S = 60.0
# The metric for each attribute of feed.stats.RouteStats that only grows.
TOTALS = {
    "events": "events_sent",
    "bytes": "bytes_sent",
    "records": "records_encoded",
    "outdated": "records_outdated",
    "encode_s": "encode_seconds",
    "catch_ups": "catch_ups",
    "joins": "joins",
    "falls_behind": "falls_behind",
}


class Sampler:
    """Copies the totals of one Feeds object."""

    def __init__(self, feeds: Feeds, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._feeds = feeds
        self._metrics = metrics
        self._clock = clock
        self._delays: defaultdict[str, deque[tuple[float, float]]] = defaultdict(deque)  # by route: (time, delay)
        self._copied: dict[tuple[str, ...], float] = {}

    def start(self) -> None:
        """Call sample() at intervals, as long as this object exists."""
        timer = get_hub().loop.timer(INTERVAL_S, INTERVAL_S, ref=False)
        weak = weakref.WeakMethod(self.sample)

        def tick() -> None:
            if (sample := weak()) is not None:
                gevent.spawn(sample)  # it may log, and a handler of the log may wait
            else:
                timer.close()

        timer.start(tick)

    def sample(self) -> None:
        """Copy the totals now."""
        for route, stats in self._feeds.stats.items():
            for attribute, name in TOTALS.items():
                self._add(name, getattr(stats, attribute), route=route)
            for reason, count in stats.gaps.items():
                self._add("gaps", count, route=route, reason=reason)
            for state, count in stats.readers.items():
                self._add("stream_states", count, route=route, state=state.name.lower())
            lags = [reader.lag() for reader in stats.catching_up]
            self._metrics.set("catch_up_lag_records", max(lags, default=0), route=route)
            self._metrics.set("feed_delay_seconds", self._delay_s(route, stats.delay_s), route=route)
            stats.delay_s = 0.0
        for route, count in self._feeds.ring_bytes().items():
            self._add("ring_bytes", count, route=route)
        for route, count in self._feeds.versions_bytes().items():
            self._add("versions_bytes", count, route=route)
        self._metrics.set("outdated_key_files", outdated_count())
        for name, total, reason in self._feeds.log.totals():
            self._add(name, total, **({"reason": reason} if reason else {}))

    def _delay_s(self, route: str, newest_s: float) -> float:
        """Return the highest delay of a route in the last DELAY_PERIOD_S seconds. `newest_s` is 0 if no delay is new."""
        delays, now = self._delays[route], self._clock()
        if newest_s:
            delays.append((now, newest_s))
        while delays and delays[0][0] <= now - DELAY_PERIOD_S:
            delays.popleft()
        return max((delay_s for _, delay_s in delays), default=0.0)

    def _add(self, name: str, total: float, **labels: str) -> None:
        """Add the increase of a total. Several feeds of one process may have routes with the same name."""
        key = name, *labels.values()
        grown = total - self._copied.get(key, 0)
        if grown or key not in self._copied:  # Prometheus computes no rate for a counter that first appears with 1
            self._copied[key] = total
            self._metrics.count(name, grown, **labels)
