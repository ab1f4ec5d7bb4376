"""The app of tests/support/shop.py under ddtrace, with the spans of streams and the states of the open streams."""

from __future__ import annotations

import json

from ddtrace.trace import Span, TraceFilter, tracer

from kafkasse.process.open_streams import streams
from tests.support.shop import app

spans: list[str] = []


class _Recorder(TraceFilter):  # type: ignore[misc]
    """Records the finished spans instead of sending them to an agent."""

    def process_trace(self, trace: list[Span]) -> None:
        spans.extend(f"{span.name} {span.resource}" for span in trace)


tracer.configure(trace_processors=[_Recorder()])


@app.get("/status")
def status() -> str:
    return json.dumps({"state": [stream["state"] for stream in streams.statuses()], "spans": spans})
