"""The Top 3 query returns the expected rows for given rows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from kafkasse.pipelines.queries.topn import topn
from tests.pipelines.countries import country, fields, kafka_rows, tombstone, top
from tests.pipelines.topics import Record

RANDOM_SEED, RANDOM_UPDATES = 1, 2_000


def tops(spark: SparkSession, *records: Record) -> list[tuple[str, list[str]]]:
    """Run the query. Returns each emitted row: the continent and the country codes of its Top 3."""
    return [(row.key, top(row.value)) for row in topn(kafka_rows(spark, records)).collect()]


def test_returns_the_three_largest_countries_with_all_fields(spark: SparkSession) -> None:
    """The value has the format of the Kafka Streams original: the continent and its countries, the largest first."""
    records = [country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 17)]

    *_, last = topn(kafka_rows(spark, records)).collect()

    expected = {"continent": "Europe", "nrs": [fields("RU", 17), fields("FR", 5), fields("DE", 4)]}
    assert ("Europe", expected) == (last.key, json.loads(last.value))


def test_orders_countries_of_equal_size_by_code(spark: SparkSession) -> None:
    """The order in which the records arrived does not matter."""
    *_, last = tops(spark, country("SE", 4), country("DE", 4), country("NO", 4), country("AT", 4))

    assert ("Europe", ["AT", "DE", "NO"]) == last


def test_a_corrected_country_is_listed_once(spark: SparkSession) -> None:
    """The Top 3 contain the new size, and the country moves to its new rank."""
    *_, last = topn(kafka_rows(spark, [country("FR", 5), country("DE", 4), country("DE", 6)])).collect()

    assert [fields("DE", 6), fields("FR", 5)] == json.loads(last.value)["nrs"]


def test_the_fourth_country_replaces_one_that_shrinks(spark: SparkSession) -> None:
    """No new record of the fourth country is needed, because the state contains all countries."""
    records = [country("RU", 17), country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 1)]

    *_, last = tops(spark, *records)

    assert ("Europe", ["FR", "DE", "IT"]) == last


def test_a_country_can_move_to_another_continent(spark: SparkSession) -> None:
    """A row is emitted for both continents."""
    records = [country("RU", 17), country("FR", 5), country("CN", 9, "Asia"), country("RU", 17, "Asia")]

    *_, europe, asia = tops(spark, *records)

    assert [("Europe", ["FR"]), ("Asia", ["RU", "CN"])] == [europe, asia]


def test_a_tombstone_removes_a_country(spark: SparkSession) -> None:
    """A tombstone for an unknown country changes nothing."""
    *_, last = tops(spark, country("FR", 5), country("DE", 4), tombstone("FR"), tombstone("XX"))

    assert ("Europe", ["DE"]) == last


def test_a_continent_without_countries_becomes_a_tombstone(spark: SparkSession) -> None:
    """Removing the last country emits a null value instead of an empty Top 3."""
    *_, last = topn(kafka_rows(spark, [country("AQ", 14, "Antarctica"), tombstone("AQ")])).collect()

    assert ("Antarctica", None) == (last.key, last.value)


def test_emits_nothing_if_the_top_3_do_not_change(spark: SparkSession) -> None:
    """Neither a duplicate record nor a smaller country changes them."""
    largest = [country("RU", 17), country("FR", 5), country("DE", 4)]

    emitted = tops(spark, *largest, *reversed(largest), country("IT", 3), country("IT", 2), tombstone("IT"))

    assert [("Europe", ["RU"]), ("Europe", ["RU", "FR"]), ("Europe", ["RU", "FR", "DE"])] == emitted


def test_skips_bad_records(spark: SparkSession) -> None:
    """A bad record does not change the country of its key."""
    bad = [(b"FR", b"{"), (b"FR", b"[]"), (b"FR", country("FR", 9)[1] + b"}"), (None, None), (None, b"{}")]

    emitted = tops(spark, country("FR", 5), *bad, country("DE", 4))

    assert [("Europe", ["FR"]), ("Europe", ["FR", "DE"])] == emitted


def test_equals_a_simple_implementation_for_random_updates(spark: SparkSession) -> None:
    """The query emits the same Top 3 as sorting all countries after each update, and only when they change.

    With eight countries and two continents, each continent often becomes empty, has ties and has a fourth country.
    """
    chance = random.Random(RANDOM_SEED)  # noqa: S311 - not used for cryptography
    records = [random_update(chance) for _ in range(RANDOM_UPDATES)]

    emitted = tops(spark, *records)

    assert list(simple_topn(records)) == emitted


def random_update(chance: random.Random) -> Record:
    """A new or changed country, or a tombstone."""
    code = chance.choice("ABCDEFGH")
    if chance.random() < 0.25:
        return tombstone(code)
    return country(code, chance.randint(-2, 3), chance.choice(["Europe", "Asia"]))


def simple_topn(records: list[Record]) -> Iterator[tuple[str, list[str]]]:
    """Sort all countries again after each record."""
    world: dict[str, Any] = {}
    for key, value in records:
        code = (key or b"").decode()
        old, new = world.get(code), json.loads(value) if value else None
        continents = dict.fromkeys(each["continent"] for each in (old, new) if each)
        before = {continent: largest(world, continent) for continent in continents}
        world = {**world, code: new} if new else {other: world[other] for other in world if other != code}
        for continent in continents:
            if largest(world, continent) != before[continent]:
                yield continent, [each["code"] for each in largest(world, continent)]


def largest(world: dict[str, Any], continent: str) -> list[Any]:
    """The continent's largest countries, at most three."""
    countries = (each for each in world.values() if each["continent"] == continent)
    return sorted(countries, key=lambda each: (-each["size"], each["code"]))[:3]
