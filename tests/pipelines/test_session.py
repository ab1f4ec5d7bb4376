"""Which Spark settings override which others."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from kafkasse.commands import options, pipeline
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, catalog, private_spark, session
from kafkasse.pipelines.supervisor import StopRequests


def test_the_command_line_overrides_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """--conf overrides --memory, and both override the settings of the pipeline."""
    settings = {"spark.driver.memory": "2g", "spark.executor.memory": "2g", "spark.executor.cores": 2}
    orders = Pipeline("orders", "a", lambda rows: rows, "b", state_partitions=4, spark=settings)
    given: dict[str, str] = {}

    def start(name: str, master: str | None, settings: dict[str, str]) -> None:
        given.update(settings)
        raise CommandError("started")

    monkeypatch.setattr(catalog, "PIPELINES", {"orders": orders})
    monkeypatch.setattr(session, "Sessions", start)
    monkeypatch.setattr(StopRequests, "install", lambda _: None)
    monkeypatch.setattr(options, "log_to_stderr", lambda: None)

    result = CliRunner().invoke(pipeline.run, ["orders", "--memory", "3g", "--conf", "spark.executor.memory=4g"])

    assert "started" == str(result.exception)
    assert given == {
        "spark.driver.memory": "3g",
        "spark.executor.memory": "4g",
        "spark.executor.cores": "2",
        "spark.sql.shuffle.partitions": "4",
    }


@pytest.mark.parametrize("size", ["2gb", "512", "0m", "1.5g", ""])
def test_an_invalid_size_is_an_error(size: str) -> None:
    """Java would end with another message, or take a number without a unit as bytes."""
    result = CliRunner().invoke(pipeline.run, ["topn", "--memory", size])

    assert f"{size!r} is not a size; use a whole number and k, m, g or t, such as 512m." in result.output


def test_settings_of_spark_submit_override_all_others(spark: SparkSession) -> None:
    """spark-submit passes its settings as system properties of the JVM."""
    properties = private_spark.java(spark).java.lang.System
    properties.setProperty("spark.executor.memory", "5g")

    kept = session._without_submitted({"spark.executor.memory": "2g", "spark.executor.cores": "2"}, None)

    properties.clearProperty("spark.executor.memory")
    assert {"spark.executor.cores": "2"} == kept
