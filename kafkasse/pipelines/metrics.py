"""The Prometheus metrics and the readiness of a pipeline, at an address of its own. Off by default."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafkasse.errors import CommandError
from kafkasse.pipelines.status import Status
from kafkasse.pipelines.supervisor import PipelineState

PREFIX = "kafkasse_pipeline_"
READY_STATES = (PipelineState.RUNNING, PipelineState.DRAINING)
REQUEST_TIMEOUT_S = 5.0


class PipelineMetric(NamedTuple):
    """A metric with the value of one attribute of Status. A counter's name ends with `_total`."""

    description: str
    attribute: str
    is_counter: bool = False


METRICS = {
    "restarts": PipelineMetric("Restarts after a crash.", "restarts", True),
    "commits": PipelineMetric("Batches that were committed.", "commits", True),
    "input_records": PipelineMetric("Records of the sources that were read and committed.", "input_records", True),
    "output_records": PipelineMetric("Records that were written.", "output_records", True),
    "dead_letters": PipelineMetric("Records that became dead letters.", "dead_letters", True),
    "lag_records": PipelineMetric("Records in the sources that the pipeline has not processed.", "lag_records"),
    "lag_seconds": PipelineMetric("Age of the oldest record that the pipeline has not processed.", "lag_s"),
    "batch_seconds": PipelineMetric(
        "Duration of the last batch; in real-time mode always about `commit_interval_s`.", "batch_s"
    ),
    "commit_seconds": PipelineMetric("Duration of the last commit.", "commit_s"),
    "state_rows": PipelineMetric("Rows of the state.", "state_rows"),
    "state_bytes": PipelineMetric("Memory that the state uses.", "state_bytes"),
    "late_rows": PipelineMetric(
        "Rows that were dropped because they were later than the watermark.", "late_rows", True
    ),
}
STATE = f"{PREFIX}state"
STATE_DESCRIPTION = "1 for the current state, 0 for the others."
LABELS = ("pipeline",)
STATE_LABELS = (*LABELS, "state")


class Collector:
    """Converts the status to metrics when Prometheus reads them."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._status
        for name, metric in METRICS.items():
            type_ = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = type_(PREFIX + name, metric.description, labels=LABELS)
            family.add_metric([status.pipeline], getattr(status, metric.attribute))
            yield family
        states = GaugeMetricFamily(STATE, STATE_DESCRIPTION, labels=STATE_LABELS)
        for state in PipelineState:
            states.add_metric([status.pipeline, state.value], float(state is status.state))
        yield states


@contextmanager
def serving(address: str | None, status: Status) -> Iterator[int]:
    """Serve /-/metrics and /-/ready at `HOST:PORT` until the block ends. Yields the port, or 0 without an address.

    /-/ready answers 200 while the pipeline processes records, and 503 otherwise.

    Raises:
        CommandError: the address is invalid or in use.
    """
    if not address:
        yield 0
        return
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it has no host")
        server_class = _IPv6Server if host.startswith("[") else ThreadingHTTPServer
        server = server_class((host.strip("[]"), int(port)), _handler(status))
    except (OSError, ValueError, OverflowError) as error:
        raise CommandError(f"cannot serve metrics at {address} ({error}); --metrics-bind is HOST:PORT") from error
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _IPv6Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _handler(status: Status) -> type[BaseHTTPRequestHandler]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(status))

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path == "/-/metrics":
                self._answer(200, generate_latest(registry))
            elif self.path == "/-/ready":
                self._answer(200 if status.state in READY_STATES else 503, f"{status.state.value}\n".encode())
            else:
                self._answer(404, b"the paths are /-/metrics and /-/ready\n")

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a scrape every few seconds would fill the log."""

    return Handler
