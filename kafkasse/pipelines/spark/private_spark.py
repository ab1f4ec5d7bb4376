"""All access to Spark's JVM through PySpark's private attributes.

Spark has no public Python API for these functions, and Spark Connect does not have them at all. A test checks that no other
module of the pipelines uses private names of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

JAR = Path(__file__).parents[1] / "operators" / "java" / "kafkasse-operators.jar"  # `make jar` compiles it
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"  # set if spark-submit started this process
Argument: TypeAlias = int | str | StructType | Mapping[str, int]  # an argument of a constructor in Java


def java(spark: SparkSession) -> Any:
    """Return the classes of the session's JVM, by package: `java(spark).java.util.Properties()`."""
    return spark._jvm


def properties(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    """Return the settings of a Java client."""
    java_properties = java(spark).java.util.Properties()
    for name, value in settings.items():
        java_properties.setProperty(name, value)
    return java_properties


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


def variables_of_jvm(connection: Path) -> dict[str, str]:
    """Return the environment variables of a JVM that should write the address for PySpark to this file."""
    return {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection), "SPARK_CONNECT_MODE": "0"}


def variables_of_connection(connection: Path) -> dict[str, str]:
    """Return the environment variables with which PySpark connects to the JVM that has written this file."""
    content = connection.read_bytes()  # the port, and the secret after its length; the numbers have 4 bytes
    return {GATEWAY_PORT: str(int.from_bytes(content[:4])), "PYSPARK_GATEWAY_SECRET": content[8:].decode()}


def submitted_settings() -> set[str]:
    """Return the names of the settings of spark-submit, if it started this process."""
    SparkContext._ensure_initialized()  # before it, SparkConf() does not know them
    return {name for name, _ in SparkConf().getAll()}


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


def end_after_batch(spark: SparkSession, query: StreamingQuery) -> Any:
    """Make a query end when its current batch has been committed. Return its StreamExecution.

    Spark's public stop() interrupts the batch. Between two batches, Spark reads the state that stop() sets.
    """
    execution = java_query(query).streamingQuery()
    states = java(spark).org.apache.spark.sql.execution.streaming.runtime
    execution.state().set(getattr(getattr(states, "TERMINATED$"), "MODULE$"))
    return execution


def atomic_file(jvm: Any, path: Any, configuration: Any) -> Any:
    """Open a file that replaces `path` when it is closed. Spark writes its offsets in this way.

    It renames a temporary file, in the way that the file system supports.
    """
    managers = getattr(jvm.org.apache.spark.sql.execution.streaming.checkpointing, "CheckpointFileManager$")
    return getattr(managers, "MODULE$").create(path.getParent(), configuration).createAtomic(path, True)


def is_broadcast(spark: SparkSession, job: int) -> bool:
    """Whether a job collects the small side of a broadcast join."""
    context: Any = spark.sparkContext
    return "broadcast exchange" in str(context._jsc.sc().statusStore().job(job).jobTags())


@contextmanager
def listening(spark: SparkSession, listener: object) -> Iterator[None]:
    """Call a listener until the block ends. It implements Spark's PythonStreamingQueryListener, as Py4J describes."""
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]  # PySpark has no annotation
    streams = spark._jsparkSession.streams()
    wrapper = java(spark).org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    streams.addListener(wrapper)
    try:
        yield
    finally:
        streams.removeListener(wrapper)


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
    rows: DataFrame, key: str, class_name: str, arguments: Sequence[Argument], output: StructType
) -> DataFrame:
    """Run a stateful processor that is written in Java.

    Args:
        key: the name of the text column that identifies a state.
        class_name: a class in kafkasse's jar. It extends
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
    arguments: Sequence[Argument],
    output: StructType,
    columns: Sequence[Column],
) -> Column:
    """Call a function that is written in Java, for each row.

    Args:
        name: the name of the function in Spark's plans.
        class_name: a class in kafkasse's jar. It implements Spark's UDF1, UDF2, …
        arguments: the arguments of its constructor.
        columns: the arguments of the function.
    """
    functions = spark._jsparkSession.udf()
    functions.register(name, new_instance(spark, class_name, arguments), _java_type(spark, output))
    return F.call_function(name, *columns)


def _java_type(spark: SparkSession, schema: StructType) -> Any:
    return spark._jsparkSession.parseDataType(schema.json())


def new_instance(spark: SparkSession, class_name: str, arguments: Sequence[Argument]) -> Any:
    context: Any = spark.sparkContext
    values = context._gateway.new_array(context._jvm.Object, len(arguments))
    for number, argument in enumerate(arguments):
        match argument:
            case StructType():
                values[number] = _java_type(spark, argument)
            case Mapping():
                values[number] = context._jvm.java.util.HashMap(dict(argument))  # Py4J converts the dict
            case _:
                values[number] = argument
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
