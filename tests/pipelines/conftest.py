"""One Spark session for all tests of the pipelines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kafkasse.pipelines.session import session
from tests.pipelines.topics import topics

__all__ = ["topics"]

# pytest adds caplog's handler to PySpark's loggers, which would give it a JSON format, also for the tests that follow.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def spark(processes: None) -> Iterator[SparkSession]:
    """A session with the settings of `kafkasse pipeline run`."""
    with session("kafkasse tests") as running:
        yield running
