"""Counts and logs what happens to the requests and streams of one blueprint. It decides nothing."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterable
from weakref import WeakSet

from kafkasse.errors import KafkasseError
from kafkasse.feed import Feeds
from kafkasse.process.log_line import Fields
from kafkasse.process.open_streams import StreamEnd, StreamInfo
from kafkasse.process.telemetry.metrics import Metrics
from kafkasse.process.telemetry.stalls import watch_stalls
from kafkasse.web.rejection_log import RejectionLog
from kafkasse.web.sampler import Sampler


class Observer:
    """The metrics and log lines of one blueprint.

    Args:
        routes: the names of the routes.
        logger: receives a line when a stream ends or a request is rejected.

    Attributes:
        metrics: the metrics of this blueprint, or of the whole process.
    """

    def __init__(self, routes: Iterable[str], logger: logging.Logger) -> None:
        self.metrics = Metrics()
        self.metrics.prepare(routes)
        self._logger = logger
        self._rejections = RejectionLog(logger)
        _observers.add(self)
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
        """Count and log a request that gets no stream. `error` and `reason` are names of classes."""
        self.metrics.count("requests_rejected", status=str(status), error=error)
        self._rejections.add(request_id, route, client, status, error, reason)

    def failed(self, request_id: str, error: Exception) -> None:
        """Log an error that nothing expected, with its traceback unless the same line of code has just raised one."""
        raised_by = traceback.extract_tb(error.__traceback__)[-1]
        subject = f"{type(error).__name__} {raised_by.filename}:{raised_by.lineno}"
        self._rejections.add_failure(subject, "A request failed unexpectedly: %s", Fields(request_id=request_id), error)

    def misconfigured(self, detail: str) -> None:
        """Log an error of the server's configuration."""
        self._rejections.add_failure(detail, "A request failed because of the server's configuration: %s", detail)

    def opened(self, info: StreamInfo) -> None:
        """Count a stream that has opened."""
        self.metrics.count("streams_opened", route=info.route)
        self.metrics.count("streams_open", route=info.route)

    def closed(self, info: StreamInfo, end: StreamEnd) -> None:
        """Count and log a stream that has ended."""
        self.metrics.count("streams_open", -1, route=info.route)
        self.metrics.count("streams_closed", route=info.route, reason=end.reason.value)
        if end.error:
            self.metrics.count("stream_errors", route=info.route, error=end.error)
        self._logger.info("A stream ended: %s", _log_fields(info, end))


_observers: WeakSet[Observer] = WeakSet()


def rejected_without_app(request_id: str, client: str, error: KafkasseError, reason: str) -> None:
    """Count and log a request that the worker rejects before an app receives it. Only one blueprint of a process does so."""
    for observer in list(_observers)[:1]:
        observer.rejected(request_id, "", client, error.status, type(error).__name__, reason)


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
