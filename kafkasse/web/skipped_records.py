"""Counts and logs the records that no client receives because they cannot be deserialized.

A topic may contain millions of them, so only the first of a topic in each interval is logged with its reason.
"""

from __future__ import annotations

import logging
from collections import Counter

from gevent import spawn_later

from kafkasse.log_line import one_line
from kafkasse.metrics import Metrics

INTERVAL_S = 10.0


class SkippedRecords:
    """The skipped records of one blueprint.

    Args:
        metrics: counts all skipped records, by topic.
        logger: receives at most two lines per topic in each interval.
        interval_s: the length of an interval, which starts at a skipped record.
    """

    def __init__(self, metrics: Metrics, logger: logging.Logger, interval_s: float = INTERVAL_S) -> None:
        self._metrics = metrics
        self._logger = logger
        self._interval_s = interval_s
        self._not_logged = Counter[str]()  # by topic, in the current interval of the topic

    def add(self, topic: str, partition: int, offset: int, reason: str) -> None:
        """Count a record and, if it is the first of an interval, log it."""
        self._metrics.count("records_skipped", topic=topic)
        if topic in self._not_logged:
            self._not_logged[topic] += 1
            return
        self._not_logged[topic] = 0
        self._logger.warning("Skipped %s/%d offset %d: %s", topic, partition, offset, one_line(reason))
        spawn_later(self._interval_s, self._end_interval, topic)

    def _end_interval(self, topic: str) -> None:
        if count := self._not_logged.pop(topic):
            self._logger.warning("Skipped %d more records of %s within %g s.", count, topic, self._interval_s)
