"""OpenTelemetry spans of requests for streams."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    exporter.shutdown()  # or it would keep the spans of all later tests


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


@pytest.fixture
def client() -> FlaskClient:
    log = MemoryLog()
    log.create("t")
    return create_app(Config(allowed_topics=["*"], public=True), log).test_client()


def test_a_span_lasts_from_the_request_to_the_first_byte(spans, client):
    with client.get("/t", headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}, buffered=False) as stream:
        chunks = iter(stream.response)
        next(chunks)
        assert () == spans.get_finished_spans()
        stream.response.close()

    (span,) = spans.get_finished_spans()
    assert (int(TRACE_ID, 16), int(PARENT_ID, 16)) == (span.context.trace_id, span.parent.span_id)
    assert {"kafkasse.route": "topics", "kafkasse.request_id": TRACE_ID} == dict(span.attributes)


@pytest.mark.parametrize(("path", "method", "error"), [("/t", "HEAD", None), ("/missing", "GET", "TopicNotAvailable")])
def test_a_request_without_a_stream_has_a_span(spans, client, path, method, error):
    """A request that the client got wrong is not an error of the server."""
    client.open(path, method=method)

    (span,) = spans.get_finished_spans()
    assert (error, StatusCode.UNSET) == (span.attributes.get("error.type"), span.status.status_code)


NO_IMPORT = """
import sys
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.log.memory import MemoryLog
create_app(Config(allowed_topics=["*"], public=True), MemoryLog()).test_client().get("/t")
sys.exit(any(name.startswith("opentelemetry") for name in sys.modules))
"""


@pytest.mark.processes
def test_kafkasse_does_not_import_opentelemetry():
    """A process without OpenTelemetry pays nothing, even if the package is installed."""
    subprocess.run([sys.executable, "-c", NO_IMPORT], check=True, timeout=60)
