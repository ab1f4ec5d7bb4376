"""Run pipelines in the session of the tests, with the topics and the checkpoint directory of one test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.pipelines import Pipeline
from kafkasse.pipelines.definition.catalog import TOPN, find
from kafkasse.pipelines.execution import rebuild
from kafkasse.pipelines.execution.run import Run
from kafkasse.pipelines.execution.runner import Attempt, RunObserver
from kafkasse.pipelines.execution.start import started
from kafkasse.pipelines.json_records import TEXT, json_objects
from kafkasse.pipelines.supervisor import Crashed, PipelineState, StopRequests
from tests.pipelines.topics import Topics, read

TIMEOUT_S = 120
IDLE_INTERVAL = "spark.sql.streaming.noDataProgressEventInterval"


def copy(records: DataFrame) -> DataFrame:
    """A query that changes nothing."""
    return records.select("key", "value")


def codes(records: DataFrame) -> DataFrame:
    """A query that can have dead letters, so it needs a second Spark query."""
    return json_objects(records, {"code": TEXT}, "code").select("key", F.col("code").alias("value"))


def defined(path: Path, **definition: Any) -> Pipeline:
    """The pipeline that a file defines."""
    path.write_text(json.dumps({"pipelines": {"defined": definition}}))
    return find(str(path))


class Runs:
    """The topics, the checkpoint directory and the session of a test."""

    def __init__(self, spark: SparkSession, topics: Topics, directory: Path) -> None:
        self.spark, self.topics, self.directory = spark, topics, directory

    def topn(self, **options: Any) -> Pipeline:
        return replace(TOPN, source=self.topics.source, sink=self.topics.sink, **options)

    def pipeline(self, query: Callable[..., Any], **options: Any) -> Pipeline:
        """A pipeline of this query with the topics of the test. It has the name of the query."""
        ends = {"source": self.topics.source, "sink": self.topics.sink}
        return Pipeline(**{"name": getattr(query, "__name__", "query"), "query": query} | ends | options)

    def of(self, pipeline: Pipeline) -> Run:
        return Run(self.spark, pipeline, self.topics.kafka, str(self.directory))

    def running(self, pipeline: Pipeline) -> AbstractContextManager[StreamingQuery]:
        return started(self.of(pipeline), self.checkpoint(pipeline), StopRequests())

    def once(self, pipeline: Pipeline) -> None:
        """Run a query of mode `once` until it has ended."""
        with self.running(pipeline) as query:
            assert query.awaitTermination(TIMEOUT_S)

    def attempt(
        self,
        pipeline: Pipeline,
        report: Callable[[PipelineState, str], None] = lambda *_: None,
        stop: StopRequests | None = None,
        drains: bool = False,
        **options: Any,
    ) -> None:
        """Run an attempt, as `kafkasse pipeline run` does."""
        observer = Mock(report=report, **options)
        Attempt(self.of(pipeline), stop or StopRequests(), observer, drains).start()

    def crash(self, pipeline: Pipeline) -> Crashed:
        with pytest.raises(Crashed) as crashed:
            self.attempt(pipeline)
        return crashed.value

    def rebuild(
        self, pipeline: Pipeline, stop: StopRequests | None = None, observer: RunObserver | None = None
    ) -> bool:
        """Rebuild. Returns whether the rebuild is complete."""
        return rebuild.rebuild(self.of(pipeline), stop or StopRequests(), observer or Mock())

    def checkpoint(self, pipeline: Pipeline) -> str:
        return self.of(pipeline).checkpoint()

    @contextmanager
    def reports_idle_queries(self) -> Iterator[None]:
        """Let queries that start in the block report each 0.1 s without records. Spark's default is 10 s."""
        self.spark.conf.set(IDLE_INTERVAL, "100ms")
        try:
            yield
        finally:
            self.spark.conf.unset(IDLE_INTERVAL)

    def results(self, count: int) -> list[Any]:
        return read(self.topics, self.topics.sink, count)

    def letters(self, count: int) -> list[Any]:
        return read(self.topics, f"{self.topics.sink}.dead-letters", count)
