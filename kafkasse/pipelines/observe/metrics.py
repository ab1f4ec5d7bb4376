"""The Prometheus metrics and the readiness of a pipeline, at an address of its own. Off by default."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafkasse.errors import CommandError
from kafkasse.pipelines.observe.status import Status
from kafkasse.pipelines.supervisor import PipelineState

PREFIX = "kafkasse_pipeline_"
READY_STATES = (PipelineState.RUNNING, PipelineState.DRAINING)
REQUEST_TIMEOUT_S = 5.0
# The name and the description of each metric. Names of counters end with `_total`.
METRICS = {
    "restarts_total": "Restarts after a crash.",
    "commits_total": "Batches that were committed.",
    "input_records_total": "Records of the sources that were read and committed; each counts once, also for several sinks.",
    "output_records_total": "Records that were written.",
    "dead_letters_total": "Records that became dead letters.",
    "lag_records": "Records in the sources that the pipeline has not processed.",
    "lag_seconds": "Age of the oldest record that the pipeline has not processed.",
    "batch_seconds": "Duration of the last batch; in real-time mode always about `commit_interval_s`.",
    "commit_seconds": "Duration of the last commit.",
    "state_rows": "Rows of the state.",
    "state_bytes": "Memory that the state uses.",
    "late_rows_total": "Rows that were dropped because they were later than the watermark.",
}
STATE = f"{PREFIX}state"
STATE_DESCRIPTION = "1 for the current state, 0 for the others."
LABELS = ("pipeline",)
STATE_LABELS = (*LABELS, "state")


class _StatusCollector(Collector):
    """Converts the status to metrics when Prometheus reads them."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        status = self._status
        for name, description in METRICS.items():
            type_ = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = type_(PREFIX + name, description, labels=LABELS)
            attribute = name.removesuffix("_total").replace("_seconds", "_s")
            if status.is_lag_known or not name.startswith("lag_"):
                family.add_metric([status.pipeline], getattr(status, attribute))
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
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            reason = "another process uses it, such as the old version during a rebuild; use another --metrics-bind"
        else:
            reason = f"{error}; --metrics-bind is HOST:PORT"
        raise CommandError(f"cannot serve metrics at {address}: {reason}") from error
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _IPv6Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def _handler(status: Status) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S

        def do_GET(self) -> None:
            code, body = 404, b"the paths are /-/metrics and /-/ready\n"
            if self.path == "/-/metrics":
                code, body = 200, generate_latest(_StatusCollector(status))
            elif self.path == "/-/ready":
                code, body = 200 if status.state in READY_STATES else 503, f"{status.state.value}\n".encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a scrape every few seconds would fill the log."""

    return Handler
