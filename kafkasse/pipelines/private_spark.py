"""All access to Spark's JVM through PySpark's private attributes.

Spark has no public Python API for these functions, and Spark Connect does not have them at all. A test checks that no other
module of the pipelines uses private names of PySpark.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from traceback import walk_tb
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kafkasse.tools.java.compiler import JAR


def java(spark: SparkSession) -> Any:
    """Return the classes of the session's JVM, by package: `java(spark).java.util.Properties()`."""
    return spark._jvm


def properties(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    """Return the settings of a Java client."""
    found = java(spark).java.util.Properties()
    for name, value in settings.items():
        found.setProperty(name, value)
    return found


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return Hadoop's settings, which define the file systems and their credentials."""
    context: Any = spark.sparkContext
    return context._jsc.hadoopConfiguration()


def is_stopped(spark: SparkSession) -> bool:
    """Whether the context has ended."""
    context: Any = spark.sparkContext
    return bool(context._jsc.sc().isStopped())


def slots(spark: SparkSession) -> int:
    """Return how many tasks Spark can run at the same time now."""
    context: Any = spark.sparkContext
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def process() -> subprocess.Popen[bytes] | None:
    """Return the process of the JVM, if PySpark has started it."""
    return getattr(SparkContext._gateway, "proc", None)


def starting_process(error: BaseException) -> subprocess.Popen[bytes] | None:
    """Return the process of a JVM, given an error that PySpark raised before it had connected to the JVM.

    At that time, only a local variable of PySpark contains the process.
    """
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return next(
        (each.f_locals.get("proc") for each in frames if each.f_code is java_gateway.launch_gateway.__code__), None
    )


class _Launched(subprocess.Popen[bytes]):
    """A process for PySpark's loop `while not process.poll()`, which takes the exit code 0 for a running process."""

    def poll(self) -> int | None:
        code = super().poll()
        return 1 if code == 0 else code


@contextmanager
def noticing_exits() -> Iterator[None]:
    """While PySpark starts a JVM in the block, it notices if the JVM exits with code 0. Otherwise it would wait forever."""
    vars(java_gateway)["Popen"] = _Launched
    try:
        yield
    finally:
        vars(java_gateway)["Popen"] = subprocess.Popen


def forget() -> None:
    """Forget the JVM and what belongs to it, so that PySpark can start another one."""
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def exception_text(spark: SparkSession, exception: Any) -> str:
    """Return a Java exception as text, with its stack trace and all of its causes."""
    return str(java(spark).org.apache.spark.util.Utils.exceptionString(exception))


def error_text(spark: SparkSession, error: Exception) -> str:
    """Return the text of an exception of PySpark or Py4J, with all Java exceptions that caused it."""
    java_exception = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    return exception_text(spark, java_exception) if java_exception is not None else str(error) or type(error).__name__


def java_query(query: StreamingQuery) -> Any:
    """Return the Java object of a query."""
    return query._jsq


def is_broadcast(spark: SparkSession, job: int) -> bool:
    """Whether a job collects the small side of a broadcast join."""
    context: Any = spark.sparkContext
    return "broadcast exchange" in str(context._jsc.sc().statusStore().job(job).jobTags())


def plan(rows: DataFrame) -> str:
    """Return the physical plan as text."""
    modes: Any = java(rows.sparkSession).org.apache.spark.sql.execution.ExplainMode
    return str(rows._jdf.queryExecution().explainString(modes.fromString("simple"))).strip()


def empty_stream(like: DataFrame) -> DataFrame:
    """Return an empty stream in memory, which real-time mode accepts, with the columns of this DataFrame."""
    spark = like.sparkSession
    stream = java(spark).org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
    encoder = java(spark).org.apache.spark.sql.Encoders.row(like._jdf.schema())
    return DataFrame(stream.singlePartition(spark._jsparkSession, encoder).toDF(), spark)


def transform_with_state(
    rows: DataFrame, key: str, class_name: str, arguments: Sequence[int | StructType], output: StructType
) -> DataFrame:
    """Run a stateful processor that is written in Java.

    Args:
        rows: the input.
        key: the name of the text column that identifies a state.
        class_name: a class in kafkasse's jar, see kafkasse.tools.java.compiler. It extends
            `StatefulProcessor<String, Row, Row>`.
        arguments: the arguments of its constructor.
        output: the type of the rows that it returns.
    """
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    encoders, streaming = jvm.org.apache.spark.sql.Encoders, jvm.org.apache.spark.sql.streaming
    grouped = getattr(rows.groupBy(key)._jgd, "as")(encoders.STRING(), encoders.row(_java_type(spark, rows.schema)))
    result = grouped.transformWithState(
        new_instance(spark, class_name, arguments),
        getattr(streaming.TimeMode, "None")(),
        streaming.OutputMode.Update(),
        encoders.row(_java_type(spark, output)),
    )
    return DataFrame(result, spark)


def call(
    spark: SparkSession,
    name: str,
    class_name: str,
    arguments: Sequence[str],
    output: StructType,
    columns: Sequence[Column],
) -> Column:
    """Call a function that is written in Java, for each row.

    Args:
        spark: the session.
        name: the name of the function in Spark's plans.
        class_name: a class in kafkasse's jar, see kafkasse.tools.java.compiler. It implements Spark's UDF1, UDF2, …
        arguments: the arguments of its constructor.
        output: the type of the result.
        columns: the arguments of the function.
    """
    functions = spark._jsparkSession.udf()
    functions.register(name, new_instance(spark, class_name, arguments), _java_type(spark, output))
    return F.call_function(name, *columns)


def _java_type(spark: SparkSession, schema: StructType) -> Any:
    return spark._jsparkSession.parseDataType(schema.json())


def new_instance(spark: SparkSession, class_name: str, arguments: Sequence[int | str | StructType]) -> Any:
    context: Any = spark.sparkContext
    values = context._gateway.new_array(context._jvm.Object, len(arguments))
    for number, argument in enumerate(arguments):
        values[number] = _java_type(spark, argument) if isinstance(argument, StructType) else argument
    return java_class(spark, class_name).getConstructors()[0].newInstance(values)


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class in kafkasse's jar."""
    return _class_loader(spark.sparkContext).loadClass(name)


@lru_cache(maxsize=1)  # a process has one Spark context at a time
def _class_loader(context: Any) -> Any:
    """Return a class loader for the jar in the driver, and distribute the jar to the executors."""
    context._jsc.addJar(str(JAR))
    jvm = context._jvm
    urls = context._gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(JAR)).toURI().toURL()
    return jvm.java.net.URLClassLoader(urls, jvm.java.lang.Thread.currentThread().getContextClassLoader())
