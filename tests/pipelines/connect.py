"""Run the Python operators on a Spark Connect server, and compare their results with plain Python.

test_cluster.py runs this module in a process of its own, because gRPC does not work in a process with gevent.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kafkasse.pipelines import jvm, private_spark
from kafkasse.pipelines.operators import latest_per_key, ranked
from kafkasse.pipelines.session import SETTINGS
from tests.pipelines import edits as plain
from tests.pipelines.edits import Edit

N = 3
START_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": SETTINGS["spark.sql.streaming.stateStore.providerClass"],
    "spark.sql.shuffle.partitions": "2",
}


def started(directory: Path) -> SparkSession:
    """A session of a new server in a JVM of this process. The server chooses its port."""
    jvm.write_launcher(directory, "512m", [], [])
    os.environ |= {"SPARK_HOME": str(directory), "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
    builder = SparkSession.builder.remote("local[2]")
    for name, value in START_SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def frame(spark: SparkSession, edits: list[Edit]) -> DataFrame:
    return spark.createDataFrame([edit.row for edit in edits], plain.SCHEMA)


def view(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The keys of the newest result of each group."""
    newest = {row.group: [item.key for item in row["items"]] for row in sorted(rows, key=lambda row: row.version)}
    return {group: keys for group, keys in newest.items() if keys}


def streamed(spark: SparkSession, edits: list[Edit], directory: Path) -> list[Row]:
    """The results of a streaming query that ends after half of the edits, and starts again from its checkpoint."""
    source, results = str(directory / "source"), str(directory / "results")
    half = len(edits) // 2
    for part in (edits[:half], edits[half:]):
        frame(spark, part).write.mode("append").parquet(source)
        rows = spark.readStream.schema(plain.SCHEMA).parquet(source)
        writer = (
            ranked(rows, N)
            .writeStream.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(results))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .outputMode("update")
            .trigger(availableNow=True)
        )
        run(writer.start)
    return spark.read.parquet(results).collect()


def run(start: Callable[[], StreamingQuery]) -> None:
    """Run a query until it ends. Spark gives a new Python process 10 s to start, which is too short on a busy machine."""
    while True:
        try:
            start().awaitTermination()
        except PySparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


def main() -> None:
    """Raise an AssertionError if a result differs from the one that plain Python computes."""
    chance = Random(3)  # noqa: S311 - not used for cryptography
    groups = [*plain.GROUPS, None]
    edits = plain.numbered(
        [Edit(chance.choice(plain.KEYS), chance.choice(groups), chance.randint(-3, 3)) for _ in range(200)]
    )
    with tempfile.TemporaryDirectory() as name:
        spark = started(Path(name))
        assert not private_spark.is_classic(spark)

        latest = latest_per_key(frame(spark, edits), removed="group IS NULL").sort("version").collect()
        tops = ranked(frame(spark, edits), N).collect()
        resumed = streamed(spark, edits, Path(name))

        ranks = {row.key: row.rank for row in latest}
        assert {key: edit.rank for key, edit in plain.latest(edits).items()} == {
            key: rank for key, rank in ranks.items() if rank is not None
        }
        assert plain.top(edits, N) == view(tops)
        assert plain.top(edits, N) == view(resumed)
        spark.stop()
    print("the operators work on Spark Connect")


if __name__ == "__main__":
    main()
