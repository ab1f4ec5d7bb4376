"""The arguments and settings of a pipeline, and how it is found. An invalid one is an error that names it and the fix."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, PropertyMock

import pytest
from click.testing import CliRunner
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

import kafkasse.pipelines
from kafkasse.commands import options
from kafkasse.commands import pipeline as command
from kafkasse.errors import CommandError
from kafkasse.pipelines import Pipeline, Source
from kafkasse.pipelines.definition import catalog
from kafkasse.pipelines.definition.catalog import TOPN, find
from kafkasse.pipelines.execution import dead_letters
from kafkasse.pipelines.kafka import topics
from kafkasse.pipelines.spark import session
from kafkasse.pipelines.supervisor import StopRequests

PACKAGE = Path(kafkasse.pipelines.__path__[0])
OWNER = PACKAGE / "spark/private_spark.py"
NAMED_TUPLE = {"_asdict", "_replace"}  # public methods


def query(rows: Any, n: int = 1) -> Any:
    return rows


def pipeline(**arguments: Any) -> Pipeline:
    return Pipeline(**{"name": "orders", "source": "orders", "query": query, "sink": "large-orders"} | arguments)


MODE = r"mode: must be one of realtime, microbatch, once, not 'real-time' \(did you mean realtime\?\)"
TOPIC = "topic must be a topic name: at most 249 letters, digits, dots, underscores and hyphens, not "
SPARK = "is not a valid name; it must be the name of a Spark setting, such as spark.executor.memory"
INVALID = [
    ({"name": "large orders"}, "name must be up to 100 letters.*, not 'large orders'"),
    ({"name": "../etc"}, "name must be up to 100 letters.*, not '../etc'"),
    ({"source": "large orders"}, f"{TOPIC}'large orders'"),
    *(({"source": topic}, f"{TOPIC}{re.escape(repr(topic))}") for topic in ("..", "orders\n")),
    ({"source": 5}, "source must be the name of a topic or a Source, not 5"),
    ({"source": {}}, "source is empty"),
    ({"source": {"the orders": "orders"}}, "the source name 'the orders' is invalid"),
    (
        {"sink": Source("large-orders")},
        "sink must be a topic, a list of topics, or a dict of topics by name, not Source",
    ),
    ({"sink": []}, "sink is empty"),
    ({"sink": ["a", "b c"]}, "sink: must be a topic name: .*, not 'b c'"),
    ({"sink": "orders"}, "orders is also a source; write to another topic"),
    ({"dead_letters": "orders"}, "orders is also a source; use another topic"),
    ({"dead_letters": "large-orders"}, "large-orders is also a sink; use another topic"),
    # Each dead letter would be read again, for ever.
    ({"source": "shop.dead-letters", "sink": "shop"}, "dead_letters: shop.dead-letters is also a source"),
    ({"query": "SELECT 1"}, "query must be a function"),
    ({"mode": "real-time"}, MODE),
    ({"output_mode": "complete"}, "output_mode: must be one of update, append, not 'complete'"),
    ({"output_mode": "append"}, "mode 'realtime' requires output_mode 'update'"),
    ({"source": Source("orders", max_records_per_s=5)}, "sources.orders.max_records_per_s: requires mode 'microbatch'"),
    ({"key": ""}, "key: must be text"),
    *(({"version": version}, "version: must be a whole number from 1") for version in (0, True, None, 2.0, 2**31)),
    ({"state_partitions": True}, "state_partitions: must be a whole number from 1"),
    ({"checkpoint": ""}, "checkpoint: must not be empty"),
    ({"commit_interval_s": 4}, "commit_interval_s: must be a whole number from 5 to 3600, not 4"),
    ({"commit_interval_s": 10, "mode": "microbatch"}, "commit_interval_s: requires mode 'realtime'"),
    ({"spark": {"driver.memory": "2g"}}, f"spark.driver.memory: {SPARK}"),
    ({"spark": {5: "2g"}}, f"spark.5: {SPARK}"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID)
def test_an_invalid_argument_of_a_pipeline_is_an_error(arguments, message):
    with pytest.raises(CommandError, match=message):
        pipeline(**arguments)


INVALID_SOURCES = [
    # A time without its offset from UTC would mean a different time on each machine.
    *({"start": start} for start in ("oldest", "2026-11-01", "2026-11-01T00:00:00", None)),
    *({"start": offsets} for offsets in ({}, {"0": 5}, {0: -1}, {-1: 0}, {0: True})),
    *({"max_records_per_s": rate} for rate in (0, -1, True, "5", float("nan"))),  # 0 would stop the pipeline
]
REASONS = {
    "start": "start is 'earliest', 'latest', a time with its offset from UTC",
    "max_records_per_s": "max_records_per_s must be a number above 0",
}


@pytest.mark.parametrize("arguments", INVALID_SOURCES, ids=str)
def test_an_invalid_argument_of_a_source_is_an_error(arguments):
    with pytest.raises(CommandError, match=REASONS[next(iter(arguments))]):
        Source("orders", **arguments)


def test_a_time_is_converted_to_milliseconds():
    """Kafka finds offsets by milliseconds since the epoch. Negative numbers have other meanings: -1 is the end."""
    times = "1970-01-01T00:00:01Z", "1970-01-01T01:00:01.500+01:00", "1969-12-31T23:59:59.999Z"

    assert [1000, 1500, 0] == [Source("orders", start=time).start_ms() for time in times]


def test_a_slow_source_does_not_slow_down_the_others():
    """The interval between two batches is the one of the slowest source, here 10 s."""
    spark = MagicMock()
    sources = {name: Source(name, max_records_per_s=rate) for name, rate in (("fast", 100), ("slow", 0.1))}

    topics.read_all(spark, {}, Pipeline("both", sources, print, "result", mode="microbatch"))

    calls = spark.readStream.format.return_value.options.call_args_list
    assert ["1000", "1"] == [call.kwargs["maxOffsetsPerTrigger"] for call in calls]


def test_sources_and_sinks_have_names():
    """The name of a topic that has no other name is the topic."""
    found = pipeline(source={"orders": "all-orders", "customers": Source("customers")}, sink=["large", "small"])

    assert {"orders": Source("all-orders"), "customers": Source("customers")} == found.sources
    assert {"large": "large", "small": "small"} == found.sinks


def test_settings_contain_the_keyword_arguments_of_the_query():
    """A checkpoint that was written with another value of `n` is recognized by them."""
    assert {"n": 5} == pipeline(query=partial(query, n=5)).settings["query"]


def test_state_partitions_override_the_spark_setting():
    """Spark settings become text."""
    found = pipeline(state_partitions=4, spark={"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": True})

    assert {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "true"} == found.spark_settings


def test_the_command_line_overrides_the_pipeline(monkeypatch):
    """--conf overrides --memory, and both override the settings of the pipeline."""
    settings = {"spark.driver.memory": "2g", "spark.executor.memory": "2g", "spark.executor.cores": 2}
    given: dict[str, str] = {}

    def start(name: str, master: str | None, settings: dict[str, str]) -> None:
        given.update(settings)
        raise CommandError("started")

    monkeypatch.setattr(catalog, "PIPELINES", {"orders": pipeline(state_partitions=4, spark=settings)})
    monkeypatch.setattr(session, "Sessions", start)
    monkeypatch.setattr(StopRequests, "install", lambda _: None)
    monkeypatch.setattr(options, "log_to_stderr", lambda: None)

    result = CliRunner().invoke(command.run, ["orders", "--memory", "3g", "--conf", "spark.executor.memory=4g"])

    assert "started" == str(result.exception)
    assert given == {
        "spark.driver.memory": "3g",
        "spark.executor.memory": "4g",
        "spark.executor.cores": "2",
        "spark.sql.shuffle.partitions": "4",
    }


@pytest.mark.parametrize("size", ["2gb", "512", "0m", "1.5g", ""])
def test_an_invalid_size_is_an_error(size):
    """Java would end with another message, or take a number without a unit as bytes."""
    result = CliRunner().invoke(command.run, ["topn", "--memory", size])

    assert f"{size!r} is not a size; use a whole number and k, m, g or t, such as 512m." in result.output


@pytest.mark.processes
def test_defining_a_pipeline_does_not_import_pyspark():
    """A web process can import the module that defines its pipelines."""
    code = "import kafkasse.pipelines, sys; print('pyspark' in sys.modules)"

    assert "False\n" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def private_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each private attribute. An attribute of `self` belongs to kafkasse."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in NAMED_TUPLE:
            owner = node.value
            if not (isinstance(owner, ast.Name) and owner.id == "self"):
                yield node.lineno, node.attr


def test_only_one_module_uses_private_names_of_pyspark():
    """A new version of PySpark can change them."""
    modules = [path for path in PACKAGE.rglob("*.py") if path != OWNER]

    assert [] == [(path.name, *name) for path in modules for name in private_names(path)]
    assert [] == [path.name for path in modules if "MODULE$" in path.read_text()]  # objects of Scala


def test_pyspark_has_the_private_names():
    """Those of a session, a DataFrame and a query exist only with a JVM, and the tests in spark/ use them."""
    of_objects = {"_gateway", "_jdf", "_jgd", "_jsc", "_jsparkSession", "_jsq"}
    names = {name for _, name in private_names(OWNER)} - of_objects

    assert names == {name for name in names if hasattr(SparkContext, name) or hasattr(SparkSession, name)}
    start = inspect.getsource(java_gateway.launch_gateway)
    for variable in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH"):
        assert f'"{variable}"' in OWNER.read_text()
        assert f'"{variable}"' in start


MODULE = """
from kafkasse.pipelines import Pipeline

def query(rows):
    return rows

large_orders = Pipeline("large-orders", source="orders", query=query, sink="large-orders")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_name: str) -> Iterator[Path]:
    """A module with a pipeline in the current directory, which is not on the path of an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    path = tmp_path / f"{fresh_name.replace('-', '_')}.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop(path.stem, None)


def message(name: str) -> str:
    with pytest.raises(CommandError) as error:
        find(name)
    return error.value.detail


def test_finds_a_pipeline_of_kafkasse_by_its_name():
    assert find("topn") is TOPN


def test_finds_a_pipeline_in_a_module(shop):
    found = find(f"{shop.stem}:large_orders")

    assert isinstance(found, Pipeline)
    assert found.name == "large-orders"


def test_finds_a_pipeline_of_an_installed_package(shop):
    """A package registers its pipelines as entry points."""
    metadata = shop.parent / "shop-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: shop\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kafkasse.pipelines]\nlarge = {shop.stem}:large_orders\n")
    sys.path.insert(0, str(shop.parent))

    assert find("large").name == "large-orders"
    assert message("larg") == "there is no pipeline larg (did you mean large?); choose one of: topn, large"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("top-n", "there is no pipeline top-n (did you mean topn?); choose one of: topn"),
        ("no_shop.pipelines:x", "there is no module no_shop in this directory or in the installed packages"),
        *(
            (name, f"{name} is not written package.module:attribute, such as shop.pipelines:large_orders")
            for name in ("shop:", ":x", "shop/pipelines.py:x", "shop:x()")
        ),
    ],
)
def test_an_unknown_name_is_an_error(name, expected):
    """Nothing is imported. The error suggests the most similar name."""
    assert expected == message(name)


def test_an_attribute_that_is_not_a_pipeline_is_an_error(shop):
    """Only pipelines are suggested. The query alone has no topics."""
    name = shop.stem

    assert f"{name} has no large_order (did you mean large_orders?)" == message(f"{name}:large_order")
    assert f"{name}:query is a function, not a kafkasse.pipelines.Pipeline" == message(f"{name}:query")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("source=", "sources=", r"cannot import {stem}: TypeError: .*'sources'.* \({path}:7\)"),
        # The message of the check is sufficient.
        ('"large-orders", source', '"large orders", source', "Pipeline: name must be .*, not 'large orders'"),
        ("kafkasse.pipelines", "no_such_package", "{stem} imports no_such_package, which is not installed"),
    ],
)
def test_an_error_in_the_module_is_reported(shop, old, new, expected):
    """The error of Python code names its line."""
    shop.write_text(MODULE.replace(old, new))

    assert re.fullmatch(expected.format(stem=shop.stem, path=shop), message(f"{shop.stem}:x"), re.S)


def test_the_query_of_dead_letters_reads_its_progress_only_if_there_is_more():
    """Spark returns the last 100 reports, and parses each. Without records, a report has the number of the next batch."""
    query = MagicMock(lastProgress=MagicMock(batchId=7, timestamp="2026-11-28T10:00:05.000Z"))
    recent = PropertyMock(return_value=[query.lastProgress])
    type(query).recentProgress = recent
    writer = MagicMock()

    last, without_batch = (7, "2026-11-28T10:00:05.000Z"), (7, "2026-11-28T10:00:00.000Z")
    reported = [dead_letters._Writer._report(writer, query, before) for before in ((-1, ""), without_batch, last, last)]

    assert ([last] * 4, 2) == (reported, recent.call_count)
