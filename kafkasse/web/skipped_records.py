"""Counts and logs the records that no client receives because they cannot be deserialized or filtered.

A topic may contain millions of them, so only the first in each interval is logged with its reason.
"""

from __future__ import annotations

import logging
from collections import Counter

from gevent import spawn_later

from kafkasse.process.log_line import one_line
from kafkasse.process.telemetry.metrics import Metrics

INTERVAL_S = 10.0


class _Log:
    """Logs at most two lines about a subject in each interval, which starts at the first of them."""

    def __init__(self, logger: logging.Logger, interval_s: float, more: str) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._more = more
        self._not_logged = Counter[str]()  # by subject, in the current interval of the subject

    def warn(self, subject: str, message: str, *arguments: object) -> None:
        if subject in self._not_logged:
            self._not_logged[subject] += 1
            return
        self._not_logged[subject] = 0
        self._logger.warning(message, *arguments)
        spawn_later(self._interval_s, self._end_interval, subject)

    def _end_interval(self, subject: str) -> None:
        if count := self._not_logged.pop(subject):
            self._logger.warning(self._more, count, subject, self._interval_s)


class SkippedRecords:
    """The records of one blueprint that cannot be deserialized.

    Args:
        metrics: counts all skipped records.
        logger: receives at most two lines per topic in each interval.
        interval_s: the length of an interval, which starts at a skipped record.
    """

    def __init__(self, metrics: Metrics, logger: logging.Logger, interval_s: float = INTERVAL_S) -> None:
        self._metrics = metrics
        self._log = _Log(logger, interval_s, "Skipped %d more records of %s within %g s.")

    def add(self, topic: str, partition: int, offset: int, reason: str, kind: str = "not_json") -> None:
        """Count a record by topic and kind of reason and, if it is the first of an interval, log it."""
        self._metrics.count("records_skipped", topic=topic, reason=kind)
        self._log.warn(topic, "Skipped %s/%d offset %d: %s", topic, partition, offset, one_line(reason))


class FilterFailures:
    """The records of one blueprint for which a filter expression has no result, such as those without one of its fields.

    Args:
        metrics: counts these records, by route.
        logger: receives at most two lines per route in each interval. They contain no part of a record.
        interval_s: the length of an interval, which starts at such a record.
    """

    def __init__(self, metrics: Metrics, logger: logging.Logger, interval_s: float = INTERVAL_S) -> None:
        self._metrics = metrics
        more = "The filter expressions had no result for %d more records of the route %s within %g s."
        self._log = _Log(logger, interval_s, more)

    def add(self, route: str, topic: str, partition: int, offset: int, reason: str) -> None:
        """Count a record and, if it is the first of an interval, log it."""
        self._metrics.count("filter_failures", route=route)
        message = "A filter expression of the route %s has no result for %s/%d offset %d: %s"
        self._log.warn(route, message, route, topic, partition, offset, reason)
