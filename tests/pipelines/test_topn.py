"""The Top 3 query returns the expected rows for given rows."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from kafkasse.pipelines.queries.topn import topn
from tests.pipelines.countries import country, fields, kafka_rows, tombstone, top
from tests.pipelines.micro_batches import MicroBatches
from tests.pipelines.topics import Record


def tops(spark: SparkSession, *records: Record) -> dict[str, list[str]]:
    """Run the query. Returns the country codes of the Top 3 of each continent."""
    return {row.key: top(row.value) for row in topn(kafka_rows(spark, records)).collect()}


def test_returns_the_three_largest_countries_with_all_fields(spark: SparkSession) -> None:
    """The value has the format of the Kafka Streams original: the continent and its countries, the largest first."""
    records = [country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 17)]

    *_, last = topn(kafka_rows(spark, records)).collect()

    expected = {"continent": "Europe", "nrs": [fields("RU", 17), fields("FR", 5), fields("DE", 4)]}
    assert ("Europe", expected) == (last.key, json.loads(last.value))


def test_orders_countries_of_equal_size_by_code(spark: SparkSession) -> None:
    """The order in which the records arrived does not matter."""
    found = tops(spark, country("SE", 4), country("DE", 4), country("NO", 4), country("AT", 4))

    assert {"Europe": ["AT", "DE", "NO"]} == found


def test_a_corrected_country_is_listed_once(spark: SparkSession) -> None:
    """The Top 3 contain the new size, and the country moves to its new rank."""
    *_, last = topn(kafka_rows(spark, [country("FR", 5), country("DE", 4), country("DE", 6)])).collect()

    assert [fields("DE", 6), fields("FR", 5)] == json.loads(last.value)["nrs"]


def test_the_fourth_country_replaces_one_that_shrinks(spark: SparkSession) -> None:
    """No new record of the fourth country is needed, because the state contains all countries."""
    records = [country("RU", 17), country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 1)]

    found = tops(spark, *records)

    assert {"Europe": ["FR", "DE", "IT"]} == found


def test_a_country_can_move_to_another_continent(spark: SparkSession) -> None:
    """It leaves its old continent."""
    records = [country("RU", 17), country("FR", 5), country("CN", 9, "Asia"), country("RU", 17, "Asia")]

    found = tops(spark, *records)

    assert {"Europe": ["FR"], "Asia": ["RU", "CN"]} == found


def test_a_tombstone_removes_a_country(spark: SparkSession) -> None:
    """A tombstone for an unknown country changes nothing."""
    found = tops(spark, country("FR", 5), country("DE", 4), tombstone("FR"), tombstone("XX"))

    assert {"Europe": ["DE"]} == found


def test_a_continent_without_countries_becomes_a_tombstone(spark: SparkSession, tmp_path: Path) -> None:
    """Removing the last country emits a null value instead of an empty Top 3."""
    batches = [
        kafka_rows(spark, [country("AQ", 14, "Antarctica")]),
        kafka_rows(spark, [tombstone("AQ")], first_offset=1),
    ]

    *_, last = MicroBatches(spark, tmp_path, topn).process(*batches)

    assert ("Antarctica", None) == (last.key, last.value)


def test_emits_nothing_if_the_top_3_do_not_change(spark: SparkSession, tmp_path: Path) -> None:
    """Neither a duplicate record nor a smaller country changes them."""
    largest = [country("RU", 17), country("FR", 5), country("DE", 4)]
    unimportant = [*reversed(largest), country("IT", 3), country("IT", 2), tombstone("IT")]
    batches = [kafka_rows(spark, largest), kafka_rows(spark, unimportant, first_offset=3)]

    emitted = MicroBatches(spark, tmp_path, topn).process(*batches)

    assert [("Europe", ["RU", "FR", "DE"])] == [(row.key, top(row.value)) for row in emitted]


def test_skips_bad_records(spark: SparkSession) -> None:
    """A bad record does not change the country of its key."""
    bad = [(b"FR", b"{"), (b"FR", b"[]"), (b"FR", country("FR", 9)[1] + b"}"), (None, None), (None, b"{}")]

    found = tops(spark, country("FR", 5), *bad, country("DE", 4))

    assert {"Europe": ["FR", "DE"]} == found


def test_emits_the_version_and_the_position(spark: SparkSession) -> None:
    """A client that receives a result again can drop it. See tests/pipelines/test_operators.py."""
    [row] = topn(kafka_rows(spark, [country("FR", 5), country("DE", 4)])).collect()

    assert (3, {0: 1}) == (row.version, row.position)
