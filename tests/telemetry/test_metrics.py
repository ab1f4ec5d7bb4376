"""The metrics of a process: bounded labels, totals of the feeds, and a registry of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import prometheus_client
import pytest

from kafkasse.archive import with_archive
from kafkasse.config import Config
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.log import Total
from kafkasse.log.memory import MemoryLog
from kafkasse.process.telemetry.metrics import MAX_TOPICS, OTHER_TOPICS, Metrics
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import of_topics
from kafkasse.route import Route, StartAt
from kafkasse.web.sampler import Sampler
from tests.feed.world import World
from tests.support.metric_values import value_of
from tests.support.turns import numbers


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def feeds() -> Iterator[Feeds]:
    log = MemoryLog()
    log.create("t")
    for number in range(3):
        log.append("t", b'{"n":%d}' % number)
    feeds = Feeds(log, Config().feed, lambda tail: None)
    yield feeds
    feeds.close()


def test_the_number_of_topic_labels_is_limited(metrics):
    """Clients of the open route choose topics, and a label takes memory until the process ends."""
    for number in range(MAX_TOPICS + 50):
        metrics.count("records_skipped", topic=f"t{number}", reason="not_json")

    assert 50 == value_of(metrics, "records_skipped", topic=OTHER_TOPICS)
    assert MAX_TOPICS + 50 == value_of(metrics, "records_skipped")


def test_the_registry_of_a_host_app_is_not_used(metrics):
    """The app may have metrics with the same names, and exports only its own."""
    Metrics()

    assert b"kafkasse_" in metrics.render()
    assert b"kafkasse_" not in prometheus_client.generate_latest()


def test_copies_the_totals_of_the_feeds(metrics, feeds):
    """Each copy adds what has happened since the last one."""
    sampler = Sampler(feeds, metrics)
    route = Route("r", "/r", ("t",), start=StartAt.EARLIEST)
    reader = feeds.open(OpenRequest(route, of_topics(["t"]), feeds.log.describe(["t"]), Encoder()))
    reader.read(0)
    sampler.sample()
    sampler.sample()

    assert (3, 3, 1) == tuple(
        value_of(metrics, name, route="r") for name in ("events_sent", "records_encoded", "catch_ups")
    )
    assert 1 == value_of(metrics, "stream_states", route="r", state="catching_up")
    reader.close()
    sampler.sample()
    assert 0 == value_of(metrics, "stream_states", route="r")
    assert 3 == value_of(metrics, "events_sent", route="r")


def test_counts_a_gap_for_each_client_that_resumes_or_catches_up(metrics):
    world = World(topics={"a": 1})
    with closing(world.feeds):
        start = json.loads(world.open("a").position_id)[0]
        world.new_feeds()
        world.write(0, 1, 2, topic="a")
        behind = world.open(start)
        world.log.drop_before("a", 2)
        resumed = world.open(start)
        received = resumed.begin() + b"".join(reader.read(0) for reader in (behind, behind, resumed))
        Sampler(world.feeds, metrics).sample()

    assert 2 == received.count(b"event: gap") == value_of(metrics, "gaps", route="r", reason="removed by retention")


def test_counts_a_gap_of_a_shared_feed_once(metrics):
    """An offset without a record, as compaction leaves it, is not a gap."""
    world = World(topics={"a": 1})
    with closing(world.feeds):
        clients = [world.open("a") for _ in range(3)]
        world.put(0, 1, topic="a")
        world.log.append_marker("a")  # an offset without a record
        world.put(2, 3, 4, topic="a")
        assert 15 == sum(len(numbers(client)) for client in clients)
        Sampler(world.feeds, metrics).sample()
        assert 0 == value_of(metrics, "gaps")
        world.log.truncate("a", 2)
        world.turn(2)
        received = b"".join(client.read(0) for client in clients)
        Sampler(world.feeds, metrics).sample()

    assert (3, 1) == (received.count(b"event: gap"), value_of(metrics, "gaps", reason="the log was truncated"))


def test_the_highest_delay_of_a_feed_is_reported_for_a_minute(metrics, feeds):
    """Each sample, also that of a scrape, resets the delay of the feed, so an alert could miss a delay."""
    sampler = Sampler(feeds, metrics, iter([0.0, 2.0, 4.0, 59.0, 61.0, 62.0]).__next__)
    stats = feeds.stats["r"] = RouteStats()
    delays = []
    for stats.delay_s in (40.0, 30.0, 0.0, 0.0, 0.0, 0.0):
        sampler.sample()
        delays.append(value_of(metrics, "feed_delay_seconds", route="r"))

    assert [40.0, 40.0, 40.0, 40.0, 30.0, 0.0] == delays


def test_copies_the_totals_of_an_archive(metrics, monkeypatch):
    """A counter of errors exists before the first error. A log without an archive has no such metrics.

    The metrics of Kafka's log are still copied.
    """
    archive_log = pytest.importorskip("kafkasse.archive.log", reason="pip install pyarrow", exc_type=ImportError)
    kafka = MemoryLog()
    monkeypatch.setattr(kafka, "totals", lambda: [Total("kafka_failures", 4)])
    log = with_archive(kafka, "/archive")
    feeds = Feeds(log, Config().feed, lambda tail: None)
    sampler = Sampler(feeds, metrics)
    sampler.sample()
    assert b'kafkasse_archive_errors_total{reason="damaged"} 0.0' in metrics.render()

    log.reader.totals.update({archive_log.FILES_READ: 2, archive_log.BYTES_READ: 300, archive_log.DAMAGED_ERRORS: 1})
    sampler.sample()

    assert (2, 300) == (value_of(metrics, "archive_files_read"), value_of(metrics, "archive_bytes_read"))
    assert (1, 0) == (value_of(metrics, "archive_errors", reason="damaged"), value_of(metrics, "archive_readers"))
    assert 4 == value_of(metrics, "kafka_failures")
    assert () == MemoryLog().totals()
    feeds.close()
