"""The first n of each group, kept up to date while rows come, change and go.

`max_by(item, rank, n)` and the other aggregates of Spark cannot take a row back: a corrected one would stand there
twice. What can is a processor with state of its own. Python's runs in micro-batches only (0.8 s from Kafka to Kafka,
and pandas with it); one inside the JVM runs in real-time mode (30 ms). So it is written in Java, in TopN.java, and
compiled when a pipeline starts, in a quarter of a second, by the compiler that Spark itself compiles its queries with.

Knows Spark's JVM, so it works in classic sessions, not over Spark Connect; knows neither Kafka nor countries.
"""

from __future__ import annotations

import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

SOURCE = Path(__file__).with_name("TopN.java")


def top_n(rows: DataFrame, n: int) -> DataFrame:
    """Follow the first `n` of each group.

    Args:
        rows: `key` string, `group` string, `rank` bigint, `item` struct. A row replaces the one that its key had
            before; one whose group is null removes it.
        n: how many to keep in sight; all keys are kept in the state.

    Returns:
        `group`, `items`: a row each time that a group's first n become others, complete, the largest rank first and
        equal ranks by key; no items for a group that has no key left. Only for output mode update. One task holds all
        keys, because a key may move from group to group.
    """
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    encoders = jvm.org.apache.spark.sql.Encoders
    streaming = jvm.org.apache.spark.sql.streaming
    row_type = _java_type(spark, rows.schema)
    result = StructType().add("group", StringType()).add("items", ArrayType(rows.schema["item"].dataType))
    everything = getattr(rows.groupBy(F.lit(True))._jgd, "as")(encoders.BOOLEAN(), encoders.row(row_type))
    changes = everything.transformWithState(
        _processor(spark, row_type, n),
        getattr(streaming.TimeMode, "None")(),
        streaming.OutputMode.Update(),
        encoders.row(_java_type(spark, result)),
    )
    return DataFrame(changes, spark)


def _java_type(spark: SparkSession, schema: StructType) -> Any:
    return spark._jsparkSession.parseDataType(schema.json())


def _processor(spark: SparkSession, row_type: Any, n: int) -> Any:
    context: Any = spark.sparkContext
    arguments = context._gateway.new_array(context._jvm.Object, 2)
    arguments[0], arguments[1] = row_type, n
    return _class_of(context).getConstructors()[0].newInstance(arguments)


@lru_cache(maxsize=1)  # one Spark context in a process at a time
def _class_of(context: Any) -> Any:
    """Compile, and hand the class to the executors, wherever they are."""
    jvm = context._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.name, jvm.java.io.StringReader(SOURCE.read_text()))
    # In Spark's own directory: it goes when the context does, and not before a late executor has fetched the jar.
    jar = Path(tempfile.mkdtemp(dir=SparkFiles.getRootDirectory()), "kafkasse-top-n.jar")
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    context._jsc.addJar(str(jar))
    return compiler.getClassLoader().loadClass("kafkasse.TopN")
