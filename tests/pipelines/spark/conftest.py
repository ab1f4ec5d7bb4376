"""One Spark session for all tests of this folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kafkasse.pipelines.archive import offsets
from kafkasse.pipelines.execution import dead_letters, runner
from kafkasse.pipelines.kafka import admin
from kafkasse.pipelines.observe import lag
from kafkasse.pipelines.spark.session import session
from tests.pipelines.spark.runs import Runs
from tests.pipelines.topics import Topics

# pytest adds caplog's handler to PySpark's loggers, which would give it a JSON format, also for the tests that follow.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]

SETTINGS = {
    "spark.default.parallelism": "1",  # the partitions of createDataFrame(), each of which takes time although it is empty
    "spark.sql.adaptive.enabled": "false",  # plans a batch several times; streams do without it
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # asks the JVM several times for each column
    "spark.sql.codegen.cache.maxEntries": "1000",  # equal queries of different tests are compiled once
}


@pytest.fixture(scope="session")
def spark(processes: None) -> Iterator[SparkSession]:
    """A session with the settings of `kafkasse pipeline run`, and with SETTINGS, which save time.

    Its Kafka clients wait longer, for a busy machine.
    """
    with pytest.MonkeyPatch.context() as patched, session("kafkasse tests", None, SETTINGS) as running:
        for view in (JVMView, JavaPackage):  # for each name in `a.b.C`, the JVM searches all jars for a class
            patched.setattr(view, "__getattr__", cache(view.__getattr__))
        for module in (admin, offsets):
            patched.setattr(module, "TIMEOUTS", dict.fromkeys(module.TIMEOUTS, "300000"))
        patched.setattr(offsets, "ANSWER_TIMEOUT_S", 300)
        patched.setattr(lag, "TIMEOUT_S", 300.0)
        for module in (runner, dead_letters):
            patched.setattr(module, "POLL_INTERVAL_S", 0.1)
        yield running


@pytest.fixture(autouse=True)
def starts_no_spark() -> None:
    """These tests may start Spark."""


@pytest.fixture
def runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> Runs:
    return Runs(spark, topics, tmp_path)
