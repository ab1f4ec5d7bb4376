"""Skipped records are counted one by one, and logged once per interval and topic."""

from __future__ import annotations

import logging

import gevent
import pytest

from kafkasse.telemetry.metrics import Metrics
from kafkasse.web.skipped_records import SkippedRecords

INTERVAL_S = 0.05


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def skipped(metrics: Metrics) -> SkippedRecords:
    return SkippedRecords(metrics, logging.getLogger("skipped"), INTERVAL_S)


def test_logs_one_record_of_a_topic_and_the_number_of_the_others(
    skipped: SkippedRecords, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in range(1000):
        skipped.add("t", 0, offset, "bad\nJSON")
    skipped.add("other", 0, 7, "bad")
    gevent.sleep(INTERVAL_S * 2)

    assert [
        "Skipped t/0 offset 0: bad\\nJSON",
        "Skipped other/0 offset 7: bad",
        "Skipped 999 more records of t within 0.05 s.",
    ] == caplog.messages
    assert 1000 == metrics.value("records_skipped", topic="t", reason="not_json")


def test_logs_the_next_record_after_the_interval(skipped: SkippedRecords, caplog: pytest.LogCaptureFixture) -> None:
    skipped.add("t", 0, 1, "bad")
    gevent.sleep(INTERVAL_S * 2)
    skipped.add("t", 0, 2, "worse")

    assert ["Skipped t/0 offset 1: bad", "Skipped t/0 offset 2: worse"] == caplog.messages
