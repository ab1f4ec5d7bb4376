"""One Spark session for all tests of this folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kafkasse.pipelines import admin, lag
from kafkasse.pipelines.archive import offsets
from kafkasse.pipelines.session import session
from tests.pipelines.spark.runs import Runs
from tests.pipelines.topics import Topics

# pytest adds caplog's handler to PySpark's loggers, which would give it a JSON format, also for the tests that follow.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def spark(processes: None) -> Iterator[SparkSession]:
    """A session with the settings of `kafkasse pipeline run`. Its Kafka clients wait longer, for a busy machine."""
    with pytest.MonkeyPatch.context() as patched, session("kafkasse tests") as running:
        for module in (admin, offsets):
            patched.setattr(module, "TIMEOUTS", dict.fromkeys(module.TIMEOUTS, "300000"))
        patched.setattr(lag, "TIMEOUT_S", 300.0)
        yield running


@pytest.fixture(autouse=True)
def starts_no_spark() -> None:
    """These tests may start Spark."""


@pytest.fixture
def runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> Runs:
    """Runs pipelines with the topics and the checkpoint of this test."""
    return Runs(spark, topics, tmp_path)
