"""A run of a pipeline: what it runs, in which session, with which Kafka cluster, and where it keeps its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from kafkasse.pipelines.checkpoints import checkpoint
from kafkasse.pipelines.kafka.admin import Admin
from kafkasse.pipelines.pipeline import Pipeline
from kafkasse.pipelines.spark.files import Files


@dataclass(frozen=True)
class Run:
    """A run of a pipeline."""

    spark: SparkSession
    pipeline: Pipeline
    kafka: dict[str, str]  # settings of the Kafka clients, including `bootstrap.servers`
    directory: str  # the directory of the checkpoints, which all machines of Spark can access

    @property
    def files(self) -> Files:
        """The file systems of the session."""
        return Files(self.spark)

    def admin(self) -> Admin:
        """Return an admin client, as a context manager."""
        return Admin(self.spark, self.kafka)

    def first_checkpoint(self) -> str:
        """Return the first checkpoint for the current topic IDs. A rebuild replaces it.

        A recreated topic has a new ID, so the offsets and the state of the old topic are not used for it.
        """
        with self.admin() as admin:
            ids = admin.topic_ids(self.pipeline.source_topics, self.pipeline.sink_topics)
        return f"{self.directory.rstrip('/')}/{'-'.join([self.pipeline.name, *ids])}"

    def checkpoint(self) -> str:
        """Return the checkpoint for the current IDs of the topics. A rebuild replaces it with another one."""
        return checkpoint.current(self.files, self.first_checkpoint())
