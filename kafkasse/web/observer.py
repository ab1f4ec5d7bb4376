"""Counts and logs what happens to the requests and streams of one blueprint. It decides nothing."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Iterable

from gevent import spawn_later

from kafkasse.errors import OffsetGone
from kafkasse.feed.feeds import Feeds
from kafkasse.process.limited_log import INTERVAL_S, LimitedLog
from kafkasse.process.log_line import Fields, one_line
from kafkasse.process.open_streams import StreamEnd, StreamInfo
from kafkasse.process.telemetry.metrics import Metrics
from kafkasse.process.telemetry.stalls import watch_stalls
from kafkasse.web.sampler import Sampler


class Observer:
    """The metrics and log lines of one blueprint.

    Repeated rejections and failures are logged once per interval, and skipped records and filter failures once, plus a line
    with the number of the others at the interval's end.
    """

    def __init__(self, routes: Iterable[str], logger: logging.Logger) -> None:
        self.metrics = Metrics()
        self.metrics.prepare(routes)
        self._logger = logger
        self._limited = LimitedLog()
        self._limited_failures = LimitedLog()  # of its own, because rejections must not hide failures
        self._failures: Counter[str] = Counter()  # by subject
        self._not_logged: dict[tuple[str, str], int] = {}  # in the current interval, by subject and text of the line
        self._samplers: list[Sampler] = []  # one for each cluster

    def observe(self, feeds: Feeds, has_worker: bool) -> None:
        """Copy the totals of these feeds at intervals. With our worker, also measure how long the event loop is blocked."""
        sampler = Sampler(feeds, self.metrics)
        sampler.start()
        if has_worker and not self._samplers:
            watch_stalls(lambda took_s: self.metrics.observe("event_loop_stall_seconds", took_s))
        self._samplers.append(sampler)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        for sampler in self._samplers:
            sampler.sample()
        return self.metrics.render()

    def rejected(self, request_id: str, route: str, client: str, status: int, error: str, reason: str = "") -> None:
        """Count and log a request that gets no stream.

        The line contains neither its URL nor the text of the error, which may contain anything.

        Args:
            error: the name of the error's class.
            reason: the name of the class of its cause, the limit, or why a guard rejects a token, without the token.
        """
        self.metrics.count("requests_rejected", status=str(status), error=error)
        level = logging.INFO if self._limited.is_due((client, error)) else logging.DEBUG
        fields = Fields(request_id=request_id, route=route, client=client, status=status, error=error, reason=reason)
        self._logger.log(level, "A request was rejected: %s", fields)

    def gone(self, route: str, error: OffsetGone) -> None:
        """Count the gaps of a finite read whose records are gone."""
        for gap in error.extra.get("gaps", ()):
            self.metrics.count("gaps", route=route, reason=gap["reason"])

    def failed(self, request_id: str, error: BaseException) -> None:
        """Log an unexpected error and its count, unless the same line of code has just raised one."""
        raised_by = traceback.extract_tb(error.__traceback__)[-1]
        subject = f"{type(error).__name__} {raised_by.filename}:{raised_by.lineno}"
        self._failures[subject] += 1
        fields = Fields(request_id=request_id, count=self._failures[subject])
        self._log_failure(subject, "A request failed unexpectedly: %s", fields, error)

    def misconfigured(self, detail: str) -> None:
        """Log an error of the server's configuration."""
        self._log_failure(detail, "A request failed because of the server's configuration: %s", detail)

    def _log_failure(self, subject: str, message: str, fields: object, error: BaseException | None = None) -> None:
        if self._limited_failures.is_due(subject):
            self._logger.error(message, fields, exc_info=error)
        else:
            self._logger.debug(message, fields)

    def skipped(self, topic: str, partition: int, offset: int, reason: str, kind: str) -> None:
        """Count a record that cannot be deserialized, by topic and kind of reason. Log the first one of an interval."""
        self.metrics.count("records_skipped", topic=topic, reason=kind)
        more = "Skipped %d more records of %s within %g s."
        self._warn(topic, more, "Skipped %s/%d offset %d: %s", topic, partition, offset, one_line(reason))

    def filter_failed(self, route: str, topic: str, partition: int, offset: int, reason: str) -> None:
        """Count a record for which a filter expression has no result, such as one without a field. Log as in skipped()."""
        self.metrics.count("filter_failures", route=route)
        more = "The filter expressions had no result for %d more records of the route %s within %g s."
        message = "A filter expression of the route %s has no result for %s/%d offset %d: %s"
        self._warn(route, more, message, route, topic, partition, offset, reason)

    def _warn(self, subject: str, more: str, message: str, *arguments: object) -> None:
        """Log at most two lines about a subject in each interval: the first one, and the number of the others at its end."""
        if (subject, more) in self._not_logged:
            self._not_logged[subject, more] += 1
        else:
            self._not_logged[subject, more] = 0
            self._logger.warning(message, *arguments)
            spawn_later(INTERVAL_S, self._end_interval, subject, more)

    def _end_interval(self, subject: str, more: str) -> None:
        if count := self._not_logged.pop((subject, more)):
            self._logger.warning(more, count, subject, INTERVAL_S)

    def opened(self, info: StreamInfo, state: str = "") -> None:
        """Count a stream that has opened. Give the state of a finite read; the sampler counts those of other streams."""
        self.metrics.count("streams_opened", route=info.route)
        self.metrics.count("streams_open", route=info.route)
        if state:
            self.metrics.count("stream_states", route=info.route, state=state)

    def read_closed(self, info: StreamInfo, end: StreamEnd, state: str) -> None:
        """Count a finite read that has ended. The log of the server has a line for it."""
        self._count_end(info, end)
        self.metrics.count("stream_states", -1, route=info.route, state=state)
        self.metrics.count("events_sent", end.events, route=info.route)
        self.metrics.count("bytes_sent", end.bytes, route=info.route)

    def _count_end(self, info: StreamInfo, end: StreamEnd) -> None:
        self.metrics.count("streams_open", -1, route=info.route)
        self.metrics.count("streams_closed", route=info.route, reason=end.reason.value)

    def closed(self, info: StreamInfo, end: StreamEnd) -> None:
        """Count and log a stream that has ended."""
        self._count_end(info, end)
        if end.error:
            self.metrics.count("stream_errors", route=info.route, error=end.error)
        self._logger.info("A stream ended: %s", _log_fields(info, end))


def _log_fields(info: StreamInfo, end: StreamEnd) -> Fields:
    return Fields(
        stream_id=info.id,
        request_id=info.request_id,
        route=info.route,
        client=info.client,
        visitor=info.visitor,
        duration_s=round(time.time() - info.opened_at, 3),
        events=end.events,
        bytes=end.bytes,
        reason=end.reason.value,
        error=end.error,
    )
