"""Countries as Kafka records, and the Top 3 that a query returns."""

from __future__ import annotations

import json
from typing import Any

from tests.pipelines.topics import Record


def country(code: str, size: int, continent: str = "Europe") -> Record:
    """A country's record, as `kafkasse load` creates it from countries.csv."""
    return code.encode(), json.dumps(fields(code, size, continent), ensure_ascii=False).encode()


def fields(code: str, size: int, continent: str = "Europe") -> dict[str, Any]:
    return {"name": f"Land of {code}", "code": code, "continent": continent, "population": 1000, "size": size}


def tombstone(code: str) -> Record:
    return code.encode(), None


def top(value: str | bytes | None) -> list[str]:
    """The country codes in a Top 3, the largest first; empty for a tombstone."""
    return [each["code"] for each in json.loads(value)["nrs"]] if value else []
