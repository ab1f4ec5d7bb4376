"""One Spark session for all tests of the pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kafkasse.pipelines.session import session
from tests.pipelines.topics import topics

__all__ = ["topics"]


@pytest.fixture(scope="session")
def spark(processes: None) -> Iterator[SparkSession]:
    """A session with the settings of `kafkasse pipeline run`."""
    with session("kafkasse tests") as running:
        yield running
