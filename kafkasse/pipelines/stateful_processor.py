"""Maintain the top n rows of each group with a Java StatefulProcessor.

Spark's aggregates, such as `max_by(item, rank, n)`, cannot remove a row: a corrected row would appear twice. A
StatefulProcessor can. A processor in Python needs pandas and runs only in micro-batches (0.8 s from Kafka to Kafka). A
processor in the JVM runs in real-time mode (30 ms). So the processor is written in Java, in TopN.java. Janino, the compiler
that Spark uses for its own queries, compiles it in 0.25 s when a pipeline starts.

This module calls Spark's JVM directly, so it needs a classic session and does not work with Spark Connect. It does not
depend on Kafka or on any pipeline.
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
    """Compute the top `n` items of each group, by descending rank and, for equal ranks, by key.

    Args:
        rows: `key` string, `group` string, `rank` bigint, `item` struct. A row replaces the previous row of its key. A row
            whose group is null removes the key.
        n: the number of items for each group. The state contains all keys, not only the top n.

    Returns:
        `group` and `items`: one row with all items each time that the top n of a group change. `items` is empty if the
        group's last key was removed. Use output mode update. A single task holds all keys, because a key can move from
        one group to another.
    """
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    encoders = jvm.org.apache.spark.sql.Encoders
    streaming = jvm.org.apache.spark.sql.streaming
    row_type = _java_type(spark, rows.schema)
    result = StructType().add("group", StringType()).add("items", ArrayType(rows.schema["item"].dataType))
    single_group = getattr(rows.groupBy(F.lit(True))._jgd, "as")(encoders.BOOLEAN(), encoders.row(row_type))
    changes = single_group.transformWithState(
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
    return _compiled_class(context).getConstructors()[0].newInstance(arguments)


@lru_cache(maxsize=1)  # a process has one Spark context at a time
def _compiled_class(context: Any) -> Any:
    """Compile TopN.java and distribute the class to the executors."""
    jvm = context._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(SOURCE.name, jvm.java.io.StringReader(SOURCE.read_text()))
    # Spark deletes this directory with the context, so an executor that starts late can still fetch the jar.
    jar = Path(tempfile.mkdtemp(dir=SparkFiles.getRootDirectory()), "kafkasse-top-n.jar")
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in compiler.getBytecodes().items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    context._jsc.addJar(str(jar))
    return compiler.getClassLoader().loadClass("kafkasse.TopN")
