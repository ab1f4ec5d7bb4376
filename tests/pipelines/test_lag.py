"""The lag of a pipeline, as Kafka's client in Spark's JVM measures it."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

from kafkasse.pipelines.lag import Lag, LagReader
from tests.pipelines.topics import Topics


@pytest.fixture
def reader(spark: SparkSession, topics: Topics) -> LagReader:
    """Reads the lag of this test's topics."""
    return LagReader(spark, topics.kafka)


def test_finds_the_oldest_record_after_the_position(reader: LagReader, topics: Topics) -> None:
    """The age does not depend on when the lag was measured before, or on newer records."""
    position = {(topics.source, partition): 0 for partition in range(3)}
    topics.send((b"a", b"1"))
    between_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == between_ms:
        time.sleep(0.001)
    topics.send((b"a", b"2"), (b"b", b"1"))

    before = reader.read(position)
    after = reader.read(position | {(topics.source, 1): 1})
    at_the_end = reader.read({(topics.source, 0): 0, (topics.source, 1): 2, (topics.source, 2): 1})

    assert (3, 2) == (before.records, after.records)
    assert before.oldest_ms is not None
    assert after.oldest_ms is not None
    assert before.oldest_ms <= between_ms < after.oldest_ms
    assert Lag(0, None) == at_the_end


def test_offsets_without_a_record_are_no_lag(reader: LagReader, topics: Topics) -> None:
    """The position of a pipeline stays before the markers of transactions and the records of aborted transactions."""
    topics.transaction((b"a", b"1"), commit=True)
    topics.transaction((b"a", b"2"), commit=False)

    assert reader.read({(topics.source, 1): 0}).records
    assert Lag(0, None) == reader.read({(topics.source, 1): 1})
