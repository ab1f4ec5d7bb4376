"""Invalid arguments of a pipeline are errors that name the argument and the fix."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Sink, Source


def query(rows: Any, n: int = 1) -> Any:
    """A query that returns its rows."""
    return rows


def pipeline(**arguments: Any) -> Pipeline:
    """A valid pipeline with these arguments changed."""
    return Pipeline(**{"name": "orders", "source": "orders", "query": query, "sink": "large-orders"} | arguments)


INVALID = [
    ({"name": "large orders"}, "the name 'large orders' is invalid"),
    ({"name": "../etc"}, "the name '../etc' is invalid"),
    ({"source": "large orders"}, "the topic 'large orders' is invalid"),
    ({"source": ".."}, r"the topic '\.\.' is invalid"),
    ({"source": 5}, "source must be the name of a topic or a Source, not 5"),
    ({"source": {}}, "source is empty"),
    ({"source": {"the orders": "orders"}}, "the source name 'the orders' is invalid"),
    ({"sink": Source("large-orders")}, "sink must be the name of a topic or a Sink"),
    ({"sink": []}, "sink is empty"),
    ({"sink": "orders"}, "it would read what it writes to orders"),
    ({"dead_letters": "orders"}, "it would read its dead letters from orders"),
    ({"query": "SELECT 1"}, "query must be a function"),
    (
        {"mode": "real-time"},
        "mode is one of 'realtime', 'microbatch', 'once', not 'real-time'; did you mean 'realtime'?",
    ),
    ({"output_mode": "complete"}, "output_mode is one of 'update', 'append', not 'complete'"),
    ({"output_mode": "append"}, "real-time mode requires output_mode='update'"),
    ({"source": Source("orders", max_records_per_s=5)}, "requires mode='microbatch'"),
    ({"key": ""}, "key must be text"),
    ({"version": 0}, "version must be a whole number from 1"),
    ({"state_partitions": True}, "state_partitions must be a whole number from 1"),
    ({"commit_interval_s": 4}, "commit_interval_s must be a whole number from 5 to 3600, not 4"),
    ({"commit_interval_s": 10, "mode": "microbatch"}, "commit_interval_s requires mode='realtime'"),
    ({"refresh_tables_s": 0}, "refresh_tables_s must be a whole number from 1"),
    ({"refresh_tables_s": 60, "mode": "once"}, "refresh_tables_s requires mode='realtime' or mode='microbatch'"),
    ({"spark": {"driver.memory": "2g"}}, "the Spark setting 'driver.memory' does not exist"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID, ids=[message for _, message in INVALID])
def test_an_invalid_argument_of_a_pipeline_is_an_error(arguments: dict[str, Any], message: str) -> None:
    """The message names the value and the fix."""
    with pytest.raises(CommandError, match=message):
        pipeline(**arguments)


@pytest.mark.parametrize(
    "start", ["oldest", "2026-11-01", "2026-11-01T00:00:00", {}, {"0": 5}, {0: -1}, {-1: 0}, {0: True}, None]
)
def test_an_invalid_start_is_an_error(start: Any) -> None:
    """A time without its offset from UTC would mean a different time on each machine."""
    with pytest.raises(CommandError, match="start is 'earliest', 'latest', a time with its offset from UTC"):
        Source("orders", start=start)


@pytest.mark.parametrize("rate", [0, -1, True, "5", float("nan")])
def test_an_invalid_rate_limit_is_an_error(rate: Any) -> None:
    """A limit of 0 would stop the pipeline."""
    with pytest.raises(CommandError, match="max_records_per_s must be a number above 0"):
        Source("orders", max_records_per_s=rate)


def test_a_time_is_converted_to_milliseconds() -> None:
    """Kafka finds offsets by milliseconds since the epoch."""
    times = "1970-01-01T00:00:01Z", "1970-01-01T01:00:01.500+01:00"

    assert [1000, 1500] == [Source("orders", start=time).start_ms() for time in times]


def test_sources_and_sinks_have_names() -> None:
    """The name of a topic that has no other name is the topic."""
    found = pipeline(source={"orders": "all-orders", "customers": Source("customers")}, sink=["large", Sink("small")])

    assert {"orders": Source("all-orders"), "customers": Source("customers")} == found.sources
    assert {"large": Sink("large"), "small": Sink("small")} == found.sinks


def test_settings_contain_the_keyword_arguments_of_the_query() -> None:
    """A checkpoint that was written with another value of `n` is recognized by them."""
    assert {"n": 5} == pipeline(query=partial(query, n=5)).settings["query"]


def test_state_partitions_override_the_spark_setting() -> None:
    """Spark settings become text."""
    found = pipeline(state_partitions=4, spark={"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": True})

    assert {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "true"} == found.spark_settings


@pytest.mark.processes
def test_defining_a_pipeline_does_not_import_pyspark() -> None:
    """A web process can import the module that defines its pipelines."""
    code = "import kafkasse.pipelines, sys; print('pyspark' in sys.modules)"

    assert "False\n" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
