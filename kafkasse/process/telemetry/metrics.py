"""The metrics of a process, with prometheus_client.

If PROMETHEUS_MULTIPROC_DIR is set, as gunicorn.conf.py does, prometheus_client keeps the values of each worker in files, and
any worker can report the values of all. Otherwise, the values are in memory, and each Metrics object has its own. Neither
uses prometheus_client's global registry, so the metrics of a host app are not affected.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.mmap_dict import mmap_key

from kafkasse.process.telemetry import multiprocess

PREFIX = "kafkasse_"
MAX_TOPICS = 200  # that appear as a label; the others are counted together
OTHER_TOPICS = "(other)"
FAILURES = ("died", "timeout")  # of workers
STALL_BUCKETS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metric(NamedTuple):
    """A metric. For gauges, `mode` says how prometheus_client combines the values of the live workers."""

    type: type[Counter | Gauge | Histogram]
    description: str
    labels: tuple[str, ...] = ()
    mode: str = ""


# The key of a counter is its name without the suffix _total.
METRICS = {
    "streams_opened": Metric(Counter, "Streams and finite reads that were opened.", ("route",)),
    "streams_closed": Metric(Counter, "Streams and finite reads that have ended.", ("route", "reason")),
    "streams_open": Metric(Gauge, "Streams and finite reads that are open.", ("route",), "livesum"),
    "stream_states": Metric(Gauge, "Open streams by the state of their readers.", ("route", "state"), "livesum"),
    "stream_errors": Metric(Counter, "Streams that an error ended after the first byte.", ("route", "error")),
    "requests_rejected": Metric(Counter, "Requests that were answered with an error.", ("status", "error")),
    "events_sent": Metric(Counter, "Records that were sent to clients.", ("route",)),
    "bytes_sent": Metric(Counter, "Bytes that were sent to clients in streams and finite reads.", ("route",)),
    "records_encoded": Metric(
        Counter, "Records that were encoded for a feed or a client that catches up, sent or not.", ("route",)
    ),
    "records_outdated": Metric(
        Counter, "Records that `newest_by` dropped, once for each feed and each client that catches up.", ("route",)
    ),
    "encode_seconds": Metric(Counter, "Time that encoding records took.", ("route",)),
    "records_skipped": Metric(Counter, "Records whose value could not be deserialized.", ("topic", "reason")),
    "gaps": Metric(
        Counter,
        "Gaps that were reported, once for each shared feed, each client that resumes or catches up, and each finite read.",
        ("route", "reason"),
    ),
    "filter_failures": Metric(Counter, "Records for which a filter expression had no result.", ("route",)),
    "catch_ups": Metric(Counter, "Times that a stream opened a cursor of its own to catch up.", ("route",)),
    "joins": Metric(Counter, "Times that a stream that had caught up joined the shared feed.", ("route",)),
    "falls_behind": Metric(
        Counter, "Times that a stream was so slow that the ring evicted records that it needed.", ("route",)
    ),
    "catch_up_lag_records": Metric(
        Gauge, "The largest number of records that a stream that catches up still has to read.", ("route",), "livemax"
    ),
    "feed_delay_seconds": Metric(
        Gauge,
        "The longest time from a record's timestamp to its encoding for live streams, in the last minute.",
        ("route",),
        "livemax",
    ),
    "ring_bytes": Metric(Gauge, "Memory of the rings.", ("route",), "livesum"),
    "versions_bytes": Metric(
        Gauge, "Memory that feeds use for the versions that `newest_by` compares.", ("route",), "livesum"
    ),
    "archive_readers": Metric(Gauge, "Clients that read from an archive now.", mode="livesum"),
    "archive_files_read": Metric(Counter, "Times that a client began to read a file of an archive."),
    "archive_bytes_read": Metric(Counter, "Bytes of the records that were read from archives, uncompressed."),
    "archive_errors": Metric(Counter, "Times that an archive could not be read.", ("reason",)),
    "kafka_failures": Metric(
        Counter, "Lookups of metadata that Kafka did not answer, and failed connections to brokers."
    ),
    "outdated_key_files": Metric(
        Gauge,
        "Key files that are missing or not valid, so that their last valid content stays in effect.",
        mode="livemax",
    ),
    "outdated_configuration": Metric(
        Gauge,
        "1 if the last reload failed, so that at least some workers keep the previous configuration; otherwise 0.",
        mode="livemax",
    ),
    "workers_failed": Metric(
        Counter, "Workers that were killed, crashed, could not load the app, or did not answer gunicorn.", ("reason",)
    ),
    "event_loop_stall_seconds": Metric(Histogram, "Turns of the event loop that took longer than 10 ms."),
}


class Metrics:
    """The metrics of one process, or of one blueprint if there are no multiprocess files. METRICS contains their names."""

    def __init__(self) -> None:
        if is_multiprocess() and _has_space():
            self._registry, self._metrics = _create_once()
        else:
            self._registry, self._metrics = _create()
        self._topics: set[str] = set()
        self._children: dict[tuple[Any, ...], Any] = {}  # because labels() takes longer than inc()

    def prepare(self, routes: Iterable[str]) -> None:
        """Set counters to 0: Prometheus computes no rate for a counter that first appears with 1."""
        for reason in FAILURES:
            self._metrics["workers_failed"].labels(reason=reason)
        for route in routes:
            for name, metric in METRICS.items():
                if metric.labels == ("route",):
                    self._metrics[name].labels(route=route)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter, or to a gauge."""
        if "topic" in labels:
            labels["topic"] = self._bounded(labels["topic"])
        self._child(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._child(name, labels).set(value)

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._metrics[name].observe(value)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format, of all workers if there are multiprocess files."""
        if is_multiprocess():
            return multiprocess.render()
        return generate_latest(self._registry)

    def _child(self, name: str, labels: dict[str, str]) -> Any:
        key = name, *labels.items()
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._metrics[name].labels(**labels) if labels else self._metrics[name]
        return child

    def _bounded(self, topic: str) -> str:
        if topic not in self._topics:
            if len(self._topics) >= MAX_TOPICS:
                return OTHER_TOPICS
            self._topics.add(topic)
        return topic


def file_key(name: str, **labels: str) -> str:
    """Return the key of a value in the files of prometheus_client, for the master."""
    metric, full = METRICS[name], PREFIX + name
    sample = f"{full}_total" if metric.type is Counter else full
    return mmap_key(full, sample, list(labels), list(labels.values()), metric.description)


def is_multiprocess() -> bool:
    """Return whether prometheus_client keeps its values in files. It decides this when it is imported."""
    return bool(getattr(values.ValueClass, "_multiprocess", False)) and multiprocess.VARIABLE in os.environ


def _create() -> tuple[CollectorRegistry, dict[str, Any]]:
    registry = CollectorRegistry()
    options: dict[type, dict[str, Any]] = defaultdict(dict)
    options[Histogram] = {"buckets": STALL_BUCKETS}
    created = {
        name: metric.type(
            PREFIX + name,
            metric.description,
            metric.labels,
            registry=registry,
            **({"multiprocess_mode": metric.mode} if metric.mode else options[metric.type]),
        )
        for name, metric in METRICS.items()
    }
    return registry, created


@cache
def _has_space() -> bool:
    """Return whether the files of this process could be created. Otherwise, its metrics are in memory."""
    try:
        multiprocess.reserve(
            {f"gauge_{metric.mode}" if metric.mode else metric.type.__name__.lower() for metric in METRICS.values()}
        )
    except OSError as error:
        logging.getLogger("kafkasse").error(
            "The metrics of this process are not added to those of the others: %s", error
        )
        del os.environ[multiprocess.VARIABLE]
        values.ValueClass = values.MutexValue
        return False
    return True


# Two metrics with one name in one process would overwrite each other's values in the files.
_create_once = cache(_create)
