"""The Top 3 query: rows in, rows out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kafkasse.pipelines.queries.topn import topn
from tests.pipelines.kit import Record, country, fields, gone, kafka_rows, top


def tops(spark: SparkSession, *records: Record) -> list[tuple[str, list[str]]]:
    """What the query tells about these records: continents and the codes of their Top 3, in order."""
    return [(row.key, top(row.value)) for row in topn(kafka_rows(spark, records)).collect()]


def test_tells_a_continents_largest_countries(spark: SparkSession) -> None:
    """The value is the ancestor's payload: the continent, and its largest three, largest first, with all their fields."""
    records = [country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 17)]

    *_, last = topn(kafka_rows(spark, records)).collect()

    expected = {"continent": "Europe", "nrs": [fields("RU", 17), fields("FR", 5), fields("DE", 4)]}
    assert ("Europe", expected) == (last.key, json.loads(last.value))


def test_begins_with_the_first_country(spark: SparkSession) -> None:
    """A continent of one country has a Top 3 of one."""
    assert [("Europe", ["FR"]), ("Asia", ["CN"])] == tops(spark, country("FR", 5), country("CN", 9, "Asia"))


def test_equal_sizes_go_by_code(spark: SparkSession) -> None:
    """Whichever came first."""
    *_, last = tops(spark, country("SE", 4), country("DE", 4), country("NO", 4), country("AT", 4))

    assert ("Europe", ["AT", "DE", "NO"]) == last


def test_a_corrected_country_is_listed_once(spark: SparkSession) -> None:
    """With its new size, at its new place."""
    *_, last = topn(kafka_rows(spark, [country("FR", 5), country("DE", 4), country("DE", 6)])).collect()

    assert [fields("DE", 6), fields("FR", 5)] == json.loads(last.value)["nrs"]


def test_a_country_that_shrinks_makes_room(spark: SparkSession) -> None:
    """The fourth comes in again, though nothing was said of it since."""
    records = [country("RU", 17), country("FR", 5), country("DE", 4), country("IT", 3), country("RU", 1)]

    *_, last = tops(spark, *records)

    assert ("Europe", ["FR", "DE", "IT"]) == last


def test_a_country_that_moves_leaves_where_it_was(spark: SparkSession) -> None:
    """Both continents are told."""
    records = [country("RU", 17), country("FR", 5), country("CN", 9, "Asia"), country("RU", 17, "Asia")]

    *_, europe, asia = tops(spark, *records)

    assert [("Europe", ["FR"]), ("Asia", ["RU", "CN"])] == [europe, asia]


def test_a_tombstone_removes_a_country(spark: SparkSession) -> None:
    """One of a country that never was changes nothing."""
    *_, last = tops(spark, country("FR", 5), country("DE", 4), gone("FR"), gone("XX"))

    assert ("Europe", ["DE"]) == last


def test_the_last_country_takes_its_continent_with_it(spark: SparkSession) -> None:
    """A tombstone says so: an empty Top 3 is none."""
    *_, last = topn(kafka_rows(spark, [country("AQ", 14, "Antarctica"), gone("AQ")])).collect()

    assert ("Antarctica", None) == (last.key, last.value)


def test_says_nothing_when_nothing_changes(spark: SparkSession) -> None:
    """Neither for a record that comes twice nor for a country that is not among the largest."""
    largest = [country("RU", 17), country("FR", 5), country("DE", 4)]

    told = tops(spark, *largest, *reversed(largest), country("IT", 3), country("IT", 2), gone("IT"))

    assert [("Europe", ["RU"]), ("Europe", ["RU", "FR"]), ("Europe", ["RU", "FR", "DE"])] == told


def test_goes_on_after_garbage(spark: SparkSession) -> None:
    """What is no country is left out, and leaves the country of its key as it was."""
    garbage = [(b"FR", b"{"), (b"FR", b"[]"), (b"FR", country("FR", 9)[1] + b"}"), (None, None), (None, b"{}")]

    told = tops(spark, country("FR", 5), *garbage, country("DE", 4))

    assert [("Europe", ["FR"]), ("Europe", ["FR", "DE"])] == told


updates = st.one_of(
    st.builds(country, st.sampled_from("ABCDEF"), st.integers(-2, 3), st.sampled_from(["Europe", "Asia"])),
    st.builds(gone, st.sampled_from("ABCDEF")),
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(updates, min_size=1, max_size=60))
def test_is_what_sorting_all_countries_anew_would_say(spark: SparkSession, records: list[Record]) -> None:
    """After each of any row of updates: the same Top 3, told exactly when it changes."""
    assert list(sorted_anew(records)) == tops(spark, *records)


def sorted_anew(records: list[Record]) -> Iterator[tuple[str, list[str]]]:
    """The same, the slow and plain way."""
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
    """Three countries at most."""
    there = (each for each in world.values() if each["continent"] == continent)
    return sorted(there, key=lambda each: (-each["size"], each["code"]))[:3]
