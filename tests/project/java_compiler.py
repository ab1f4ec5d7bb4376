"""`make jar`: compile the Java classes of the pipelines into a jar, without a JDK.

The jar is part of the repository and of the wheel, so that installing kafkasse needs neither Java nor Spark. The compiler is
Eclipse's: one pinned jar that runs on any Java runtime. Equal sources give equal bytes, so that a test can compare the jar
with its sources.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from kafkasse.errors import CommandError
from kafkasse.pipelines.spark.private_spark import JAR
from kafkasse.tools.java import jars, runtime

SOURCES = JAR.parent
JAVA_VERSION = "17"  # the lowest version that Spark 4 supports
CLASS_PATH = (
    "scala-library-*.jar",
    "spark-sql-api_*.jar",
    "spark-common-utils_*.jar",
    "hadoop-client-api-*.jar",
    "avro-1*.jar",
    "jackson-core-2*.jar",
    "jackson-databind-2*.jar",
    "jackson-annotations-2*.jar",
)
TIMEOUT_S = 120.0
HASH_NAME = "Sources-SHA-256"
FIRST_TIME = (1980, 1, 1, 0, 0, 0)  # zip files cannot express an earlier time


def sources() -> list[Path]:
    """Return the Java files in a fixed order."""
    return sorted(SOURCES.rglob("*.java"))


def sources_hash() -> str:
    """Return the SHA-256 of the names and the contents of the sources."""
    digest = hashlib.sha256()
    for path in sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(SOURCES).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def hash_in_jar() -> str:
    """Return the hash of the sources that the jar was compiled from."""
    with zipfile.ZipFile(JAR) as archive:
        lines = archive.read("META-INF/MANIFEST.MF").decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)[HASH_NAME]


def compile_jar(path: Path) -> None:
    """Compile the sources and write the jar to this path.

    Raises:
        CommandError: PySpark, Java or the compiler is missing, or a source has an error or a warning.
    """
    [compiler] = jars.fetch("java-compiler")
    with tempfile.TemporaryDirectory(prefix="kafkasse-java-") as name:
        classes = Path(name)
        command = [
            str(runtime.java_executable()),
            "-jar",
            str(compiler),
            "-source",
            JAVA_VERSION,
            "-target",
            JAVA_VERSION,
        ]
        command += ["-encoding", "UTF-8", "-proc:none", "-g:lines,source", "-failOnWarning", "-warn:-serial"]
        command += ["-classpath", ":".join(map(str, _class_path())), "-d", str(classes), *map(str, sources())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode:
            raise CommandError(f"the Java sources cannot be compiled:\n{done.stdout}{done.stderr}")
        _write_jar(path, {file.relative_to(classes).as_posix(): file for file in classes.rglob("*.class")})


def _class_path() -> Iterable[Path]:
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise CommandError("PySpark is required to compile the Java sources; run pip install '.[pipelines]'")
    for pattern in CLASS_PATH:
        yield from Path(pyspark.origin).parent.glob(f"jars/{pattern}")


def _write_jar(path: Path, classes: dict[str, Path]) -> None:
    manifest = f"Manifest-Version: 1.0\r\n{HASH_NAME}: {sources_hash()}\r\n\r\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_entry(archive, "META-INF/MANIFEST.MF", manifest.encode())
        for name, file in sorted(classes.items()):
            _write_entry(archive, name, file.read_bytes())


def _write_entry(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, FIRST_TIME)
    entry.external_attr = 0o644 << 16
    entry.create_system = 3  # Unix, on all systems
    entry.compress_type = zipfile.ZIP_STORED  # the output of zlib differs between its versions
    archive.writestr(entry, content)


if __name__ == "__main__":
    compile_jar(JAR)
    sys.stdout.write(f"wrote {JAR.name}\n")
