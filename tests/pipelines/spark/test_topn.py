"""The Top 3 query returns the expected rows for given rows."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import Row, SparkSession

from kafkasse.pipelines.queries.topn import topn
from tests.pipelines.spark.rows import kafka_rows
from tests.pipelines.topics import Record, country, fields, tombstone, top

# The records and the country codes of the expected Top 3. A query takes seconds, so one query processes all cases.
CASES: dict[str, tuple[list[Record], dict[str, list[str]]]] = {
    "a correction gives a country its new rank": (
        [country("FR", 5), country("DE", 4), country("DE", 6)],
        {"Europe": ["DE", "FR"]},
    ),
    "countries of equal size are ordered by code": (
        [country("SE", 4), country("DE", 4), country("NO", 4), country("AT", 4)],
        {"Europe": ["AT", "DE", "NO"]},
    ),
    "the fourth country replaces one that shrinks": (
        [country("RU", 17), country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 1)],
        {"Europe": ["FR", "DE", "IT"]},
    ),
    "a country leaves its old continent": (
        [country("RU", 17), country("FR", 5), country("CN", 9, "Asia"), country("RU", 17, "Asia")],
        {"Europe": ["FR"], "Asia": ["RU", "CN"]},
    ),
    "a tombstone removes a country, and a tombstone of an unknown country changes nothing": (
        [country("FR", 5), country("DE", 4), tombstone("FR"), tombstone("XX")],
        {"Europe": ["DE"]},
    ),
    "a bad record does not change the country of its key": (
        [country("FR", 5), (b"FR", b"{"), (b"FR", b"[]"), (b"FR", country("FR", 9)[1] + b"}"), country("DE", 4)],
        {"Europe": ["FR", "DE"]},
    ),
    "a record without a key is left out": ([(None, None), (None, b"{}"), country("DE", 4)], {"Europe": ["DE"]}),
}


def of_case(number: int, record: Record) -> Record:
    """The record with a code and a continent that only this case has."""
    key, value = record
    for name in (b"code", b"continent"):
        value = value and value.replace(b'"%b": "' % name, b'"%b": "%d.' % (name, number))
    return key and b"%d.%b" % (number, key), value


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> list[Row]:
    records = [of_case(number, record) for number, (records, _) in enumerate(CASES.values()) for record in records]
    return topn(kafka_rows(spark, *records)).collect()


@pytest.mark.parametrize("case", CASES)
def test_ranks_the_countries_of_each_continent(results, case):
    """The Top 3 do not depend on the records of other continents."""
    prefix = f"{list(CASES).index(case)}."

    rankings = {row.key.removeprefix(prefix): top(row.value) for row in results if row.key.startswith(prefix)}

    _, expected = CASES[case]
    assert expected == {
        continent: [code.removeprefix(prefix) for code in codes] for continent, codes in rankings.items()
    }


def test_the_value_contains_all_fields(results):
    """The value has the format of the Kafka Streams original: the continent and its countries, the largest first."""
    [value] = [row.value for row in results if row.key == "0.Europe"]

    countries = [fields("DE", 6), fields("FR", 5)]
    expected = {"continent": "0.Europe", "nrs": [{**entry, "code": f"0.{entry['code']}"} for entry in countries]}
    for entry in expected["nrs"]:
        entry["continent"] = "0.Europe"
    assert expected == json.loads(value)


def test_emits_the_version_and_the_position(results):
    """With the version, a client can drop a repeated result."""
    [row] = [row for row in results if row.key == "0.Europe"]

    assert (1 + 3, {0: 2}) == (row.version, row.position)
