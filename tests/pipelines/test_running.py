"""The whole way: Kafka, Spark in real-time mode, Kafka."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines.catalog import TOPN, Pipeline
from kafkasse.pipelines.running import started
from tests.pipelines.conftest import PARTITIONS, Topics
from tests.pipelines.kit import Record, country, gone, top

COUNTRIES = Path(__file__).parents[2] / "kafkasse" / "data" / "countries.csv"


@pytest.fixture
def pipeline(topics: Topics) -> Pipeline:
    """The Top 3 between this test's topics."""
    return replace(TOPN, source=topics.source, sink=topics.sink)


def all_countries() -> list[Record]:
    """Those of the demo."""
    with COUNTRIES.open(encoding="utf-8") as file:
        rows = [row | {"population": int(row["population"]), "size": int(row["size"])} for row in csv.DictReader(file)]
    return [(row["code"].encode(), json.dumps(row).encode()) for row in rows]


def test_keeps_the_top_3_of_the_world(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """All countries of the demo, over three partitions; then some are corrected, moved and removed."""
    topics.send(*all_countries())
    world = {
        "Europe": ["RU", "UA", "FR"],
        "Asia": ["CN", "IN", "KZ"],
        "North America": ["CA", "US", "GL"],
        "Africa": ["DZ", "CD", "SD"],
        "Antarctica": ["AQ", "TF", "GS"],
        "South America": ["BR", "AR", "PE"],
        "Oceania": ["AU", "PG", "NZ"],
    }
    changed = {"Europe": ["UA", "FR", "ES"], "Asia": ["RU", "CN", "IN"], "Africa": ["CD", "SD", "LY"]}

    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(lambda newest: world == {continent: top(value) for continent, value in newest.items()})
        topics.send(country("RU", 17_100_000, "Asia"), gone("DZ"), country("CD", 3_000_000, "Africa"))
        topics.read(lambda newest: changed == {continent: top(value) for continent, value in newest.items()})


def test_goes_on_from_its_checkpoint(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """A query that is started again knows all countries and says nothing twice that it had committed."""
    topics.send(country("FR", 5), country("DE", 4), country("IT", 3), country("ES", 2), country("CN", 9, "Asia"))
    with started(spark, pipeline, topics.kafka, str(tmp_path)) as query:
        topics.read(lambda newest: {"Europe", "Asia"} == newest.keys() and top(newest["Europe"]) == ["FR", "DE", "IT"])
        while not (query.lastProgress and query.lastProgress.numInputRows):
            query.awaitTermination(1)
    topics.send(country("FR", 1))

    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        told = topics.read(bool)

    assert [("Europe", ["DE", "IT", "ES"])] == [(continent, top(value)) for continent, value in told]


def test_loses_nothing_that_was_not_committed(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """A query that ends before its first commit begins again from the start."""
    topics.send(country("FR", 5))
    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(bool)

    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        told = topics.read(bool)

    assert [("Europe", ["FR"])] == [(continent, top(value)) for continent, value in told]


def test_reads_a_topic_that_was_made_again_from_its_start(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """It is another topic: neither the countries nor the offsets of the old one are its own."""
    topics.send(country("FR", 5), country("DE", 4))
    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(lambda newest: top(newest["Europe"]) == ["FR", "DE"])
    topics.cluster.delete(topics.source)
    topics.cluster.create(topics.source, PARTITIONS)
    topics.send(country("IT", 3))

    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        told = topics.read(bool)

    assert [("Europe", ["IT"])] == [(continent, top(value)) for continent, value in told]


def test_reads_no_transaction_that_failed(
    spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Nor does the marker at a transaction's end hold it up."""
    topics.send(country("FR", 5))
    topics.transaction(country("IT", 3), commit=True)
    topics.transaction(country("DE", 4), commit=False)
    topics.send(country("ES", 2))

    with started(spark, pipeline, topics.kafka, str(tmp_path)):
        topics.read(lambda newest: top(newest["Europe"]) == ["FR", "IT", "ES"])


def test_needs_its_topics(spark: SparkSession, topics: Topics, pipeline: Pipeline, tmp_path: Path) -> None:
    """It creates none, and says which is missing."""
    lacking = replace(pipeline, sink=f"{topics.sink}-2")

    with (
        pytest.raises(CommandError, match=f"there is no topic {topics.sink}-2"),
        started(spark, lacking, topics.kafka, str(tmp_path)),
    ):
        pass
