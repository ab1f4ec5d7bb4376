"""Read the state in a checkpoint with Spark's state reader. This module does not use Kafka. The pipeline may be running."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from kafkasse.errors import CommandError
from kafkasse.pipelines import checkpoint as checkpoints
from kafkasse.pipelines.files import Files
from kafkasse.pipelines.pipeline import Pipeline

TOPIC_ID_CHARACTERS = 22
MAX_ROWS = 100


@dataclass(frozen=True)
class Part:
    """A state variable, or the whole state of an operator that has no variables.

    Args:
        operator: the number of the operator in the checkpoint.
        name: the name of the variable or of the operator.
        partitions: the number of state partitions.
        rows: the struct `key`, the number `partition_id`, and the structs that the state contains for the key.
    """

    operator: int
    name: str
    partitions: int
    rows: DataFrame

    def of_key(self, key: str) -> DataFrame:
        """Return the rows whose key has a text column that equals `key`."""
        type_ = self.rows.schema["key"].dataType
        texts = (
            [field.name for field in type_ if isinstance(field.dataType, StringType)]
            if isinstance(type_, StructType)
            else []
        )
        return self.rows.where(reduce(or_, (F.col("key")[name] == key for name in texts), F.lit(False)))


def checkpoint_of(spark: SparkSession, pipeline: Pipeline, directory: str) -> str:
    """Return the checkpoint of the pipeline that has the newest commit. A recreated topic has another checkpoint.

    Raises:
        CommandError: there is no commit.
    """
    files = Files(spark)
    topics = len(pipeline.sources) + len(pipeline.sinks)
    name = re.compile(rf"{re.escape(pipeline.name)}(-[\w-]{{{TOPIC_ID_CHARACTERS}}}){{{topics}}}")
    firsts = [f"{directory.rstrip('/')}/{file}" for file in files.names(directory) if name.fullmatch(file)]
    checkpoints_in_use = [checkpoints.current(files, first) for first in firsts]
    commits = {
        path: at_ms for path in checkpoints_in_use if (at_ms := files.changed_at_ms(f"{path}/commits")) is not None
    }
    if not commits:
        raise CommandError(f"the directory {directory} contains no commit of the pipeline {pipeline.name}")
    return max(commits, key=commits.__getitem__)


def parts(spark: SparkSession, checkpoint: str) -> Iterator[Part]:
    """Yield the parts of the state, as of the last commit."""
    operators = spark.read.format("state-metadata").load(checkpoint).sort("operatorId", "stateStoreName").collect()
    for operator in operators:
        for name, options in _parts(operator):
            reader = spark.read.format("statestore").option("operatorId", operator.operatorId).options(**options)
            yield Part(operator.operatorId, name, operator.numPartitions, reader.load(checkpoint))


def _parts(operator: Row) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name of each part of an operator's state, and the options of the reader that select the part."""
    variables = json.loads(operator.operatorProperties or "{}").get("stateVariables", [])
    for variable in variables:
        yield variable["stateName"], {"stateVarName": variable["stateName"]}
    if not variables:
        yield operator.operatorName, {"storeName": operator.stateStoreName}


def sizes(spark: SparkSession, checkpoint: str) -> Iterator[str]:
    """Yield a line for the checkpoint, and one for each part of its state."""
    yield f"{checkpoint}: {Files(spark).size(f'{checkpoint}/state')} bytes of state"
    for part in parts(spark, checkpoint):
        yield f"operator {part.operator}, {part.name}: rows={part.rows.count()} partitions={part.partitions}"


def rows_of(spark: SparkSession, checkpoint: str, key: str) -> Iterator[str]:
    """Yield the rows of a key as JSON objects, at most MAX_ROWS of each part."""
    for part in parts(spark, checkpoint):
        row = F.struct(F.lit(part.operator).alias("operator"), F.lit(part.name).alias("name"), "*")
        for (text,) in part.of_key(key).select(F.to_json(row, {"ignoreNullFields": "false"})).limit(MAX_ROWS).collect():
            yield text
