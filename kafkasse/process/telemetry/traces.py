"""OpenTelemetry: a span for each request of a stream, from the request to the first byte of the response.

The spans exist only if something else in the process uses OpenTelemetry, such as opentelemetry-instrument or the app. Then
its API has been imported already. Otherwise, this module costs one dict lookup for each stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from kafkasse import __version__

API = "opentelemetry.trace"
SPAN = "kafkasse open stream"


class OpeningSpan:
    """The opening of a stream, with its span if there is one."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def end(self) -> None:
        """The first byte was sent, or there is no stream. May be called twice."""
        if self._span is not None:
            self._span.end()
            self._span = None

    def fail(self, error: str, status: int) -> None:
        """The request was rejected. `error` is the class of the error."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attributes({"error.type": error, "http.response.status_code": status})
            if status >= 500:  # by OpenTelemetry's conventions, other statuses are not errors of a server
                self._span.set_status(StatusCode.ERROR)
            self.end()


_UNTRACED = OpeningSpan()


def start_opening(route: str, request_id: str, headers: Iterable[tuple[str, str]]) -> OpeningSpan:
    """Start a span if this process uses OpenTelemetry. Its parent is the span that the request's headers name, if any."""
    if API not in sys.modules:
        return _UNTRACED
    from opentelemetry import propagate, trace

    carrier = {name.lower(): value for name, value in headers}
    span = trace.get_tracer("kafkasse", __version__).start_span(
        SPAN,
        context=propagate.extract(carrier),
        kind=trace.SpanKind.SERVER,
        attributes={"kafkasse.route": route, "kafkasse.request_id": request_id},
    )
    return OpeningSpan(span) if span.is_recording() else _UNTRACED
