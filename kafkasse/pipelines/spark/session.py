"""Start, replace and stop the Spark session of a pipeline: a local one, or the session that spark-submit started.

This module does not depend on topics or queries.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped,unused-ignore]
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kafkasse.errors import CommandError
from kafkasse.pipelines.spark import jvm, private_spark
from kafkasse.pipelines.spark.jvm import Jvm
from kafkasse.pipelines.spark.temporary_directory import temporary_directory
from kafkasse.pipelines.supervisor import Crashed, Interrupted, RunStopped
from kafkasse.tools.java import runtime

# 16 is the number of slots, not of cores. In real-time mode, each partition of the source and each task of a stateful stage
# occupies a slot all the time, but it is mostly idle.
MASTER = "local[16]"
EXIT_DELAY_S = 1.0  # from the end of the JVM's connections to the end of its process
MIN_HEAP = "512m"
TOO_SMALL = ("INVALID_DRIVER_MEMORY", "INVALID_EXECUTOR_MEMORY")
# PySpark logs some of the exceptions that it raises, with the stack trace of the JVM. The commands report them in one line.
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
OUT_OF_MEMORY = 3  # the JVM's exit code because of -XX:+ExitOnOutOfMemoryError
NO_LOCAL_DIRECTORY = 53  # Spark's exit code if it cannot create a directory in any of spark.local.dir

# Pipelines need these settings, both locally and on a cluster.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",  # each shuffle partition occupies a slot
    "spark.sql.session.timeZone": "UTC",  # times in JSON must not depend on the machine
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A commit writes the changes of the state, and not all of it. Otherwise records wait while a large state is saved.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Every tenth commit writes a snapshot of the state, for which it waits for the disk dozens of times, so this is no lower
    # than Spark's default. A restart loads the last saved snapshot and repeats all later changes.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",  # snapshots are saved at this interval, not within commits
    # Otherwise RocksDB reserves up to 70 MB for each new file, which makes waiting for the disk twice as long.
    "spark.sql.streaming.stateStore.rocksdb.allowFAllocate": "false",
    # Spark keeps the files of this many batches. With its default, 100, a checkpoint has 1,900 files.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # with version 1, real-time mode cannot repeat a batch
    # Between two stages of real-time mode, a thread sends the rows at this interval. With Spark's default, 50 ms, a record
    # that passes two shuffles, as with ranked(), waits for about 50 ms.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "5",
    # Wait for all executors: Spark rejects the query if too few slots are registered when it starts. Settings such as
    # spark.cores.max define how many to expect.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.liveUpdate.period": "0",  # otherwise the status of a task is seconds old
    "spark.ui.showConsoleProgress": "false",
}
# Keep a local JVM small and quick to start. With spark-submit, the user decides.
LOCAL_SETTINGS = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
# Hadoop's own classes start a process for each new file and for each renamed file, so a commit starts dozens of processes.
# The executors of a cluster cannot use kafkasse's classes, because they open their first file before they have its jar.
SINGLE_JVM_SETTINGS = {
    "spark.hadoop.fs.file.impl": "kafkasse.files.LocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "kafkasse.files.LocalFs",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@contextmanager
def session(
    name: str, master: str | None = None, user_settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Provide a Spark session until the block ends. Then the JVM ends too, unless spark-submit started it.

    Args:
        name: the application's name in Spark's web UI.
        master: such as `local[16]` or `spark://host:7077`. The default is the master of spark-submit, or else MASTER.
        user_settings: Spark settings that override SETTINGS and LOCAL_SETTINGS. Settings of spark-submit override them.

    Raises:
        CommandError: Java is missing or does not start, the heap is too small, or spark.local.dir cannot be used.
        Crashed: Spark did not start, or the JVM exited while the block ran.
        RunStopped: SIGINT or SIGTERM arrived while Spark was starting, and the command's handler raised no exception.
    """
    for logger in LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    with temporary_directory("kafkasse-spark-") as directory:
        process = None if private_spark.GATEWAY_PORT in os.environ else Jvm(directory)  # None: spark-submit started it
        settings = SETTINGS | {"spark.app.name": name} | dict(user_settings or {})
        settings |= {"spark.master": master} if master else {}
        try:
            if process is None:
                spark = SparkSession.builder.config(map=_without_submitted(settings, master)).getOrCreate()
            else:
                spark = _start(settings, directory, process)
            yield spark
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # the JVM has ended
                spark.stop()
        except (CommandError, Interrupted, RunStopped):
            raise
        except Exception as error:
            _check_jvm(error, process)
            raise
        finally:
            if process is not None:
                process.close()


class Sessions:
    """A session with the arguments of session(). If its JVM or context has ended, the next use replaces it."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self._opened: tuple[SparkSession, ExitStack] | None = None

    @contextmanager
    def use(self) -> Iterator[SparkSession]:
        """Provide the session, and start it if necessary. Raises as session()."""
        if self._opened is None:
            stack = ExitStack()
            self._opened = stack.enter_context(session(*self._arguments)), stack
        spark, stack = self._opened
        try:
            yield spark
        except Exception as error:
            if not _is_usable(spark):
                self._opened = None
                stack.__exit__(type(error), error, error.__traceback__)
            raise

    def close(self) -> None:
        """Stop the session. Ignore errors of a JVM that has ended."""
        if self._opened:
            with suppress(Crashed):
                self._opened[1].close()


def _is_usable(spark: SparkSession) -> bool:
    """Whether the JVM and the context run. The context ends if, for example, a cluster removes the application."""
    try:
        return not private_spark.is_stopped(spark)
    except (Py4JError, OSError):
        return False


def _check_jvm(error: Exception, process: Jvm | None) -> None:
    """Raise another error if the JVM has ended, or does not respond. Not only network errors result from this."""
    is_disconnected = isinstance(error, Py4JNetworkError | ConnectionError)
    if process is None:
        if is_disconnected:
            raise CommandError("the JVM of spark-submit has ended; submit the application again") from error
        return
    code = process.wait(jvm.EXIT_TIMEOUT_S if is_disconnected else EXIT_DELAY_S)
    if code is not None:
        raise _exit_error(code) from error
    if is_disconnected:
        raise Crashed("Spark's JVM does not respond") from error


def _exit_error(code: int) -> CommandError | Crashed:
    """Return the error for a JVM that has exited with this code."""
    if code == NO_LOCAL_DIRECTORY:
        return CommandError(
            "Spark cannot create a directory in spark.local.dir; use another directory, or change its permissions"
        )
    if code == OUT_OF_MEMORY:
        return Crashed("Spark's JVM ran out of memory; give it a larger heap with --memory")
    return Crashed(f"Spark's JVM was killed by signal {-code}" if code < 0 else f"Spark's JVM exited with code {code}")


def _without_submitted(settings: Mapping[str, str], master: str | None) -> dict[str, Any]:
    """Leave out the settings that spark-submit has, except the name, which it always sets, and `master`."""
    kept = {"spark.app.name"} | ({"spark.master"} if master else set())
    submitted = private_spark.submitted_settings() - kept
    return {name: value for name, value in settings.items() if name not in submitted}


def _start(settings: dict[str, str], directory: Path, process: Jvm) -> SparkSession:
    with _ended_by_signals(_interrupt):
        connector_jars = jvm.connector_jars()  # a download may take minutes
    master = settings.get("spark.master", MASTER)
    chosen: dict[str, Any] = {"spark.local.dir": str(directory)}
    chosen |= LOCAL_SETTINGS | (SINGLE_JVM_SETTINGS if is_local(master) else {})
    chosen |= settings | {"spark.master": master}
    if not is_local(master):  # the executors load these jars from the driver
        chosen["spark.jars"] = ",".join([*map(str, connector_jars), *filter(None, [chosen.get("spark.jars")])])
    options = [f"-Xmx{chosen['spark.driver.memory']}", *shlex.split(chosen.get("spark.driver.extraJavaOptions", ""))]
    classpath = [jvm.spark_classpath(connector_jars), *filter(None, [chosen.get("spark.driver.extraClassPath")])]
    with _ended_by_signals(process.kill):
        connection = process.start(chosen, options, classpath)
        if connection is None:
            code = process.wait(EXIT_DELAY_S) or 0
            if code < 0:
                raise _exit_error(code)
            raise CommandError(
                f"Spark's JVM ({runtime.java_executable()}) did not start: it exited with code {code}; see its output above"
            )
        with _environment(connection):
            try:
                return SparkSession.builder.config(map=chosen).getOrCreate()
            except Py4JJavaError as error:  # read its text now, because the JVM is about to exit
                reason = str(error.java_exception.toString()).splitlines()[0]
                if any(name in reason for name in TOO_SMALL):
                    raise CommandError(f"the heap is too small for Spark; use --memory {MIN_HEAP} or more") from error
                raise Crashed(f"Spark did not start: {reason}") from error


def is_local(master: str) -> bool:
    """Whether Spark runs in a single JVM on this machine."""
    return master.split("[")[0] == "local"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while PySpark connects to the JVM."""
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


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def _ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` at SIGINT or SIGTERM, so that the block fails. Then pass the signals on to the handlers of the command.

    Args:
        end: must make the block fail. Where PySpark calls the JVM, kill the JVM instead of raising an exception, which
            could interrupt PySpark in the middle of a call.

    Raises:
        RunStopped: a signal arrived, and the command's handler raised no exception.
    """
    if threading.current_thread() is not threading.main_thread():  # Python calls handlers only in the main thread
        yield
        return
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        received.append(number)
        end()

    handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        if not received:  # from PySpark's own handler, which it installs near the end of the start
            received.append(signal.SIGINT)
    except Exception:
        if not received:
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for signal_number in received:
        signal.raise_signal(signal_number)
    if received:
        raise RunStopped
