"""Small files next to a checkpoint. They can be on any file system that Spark can access, such as hdfs:// or s3a://."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafkasse.pipelines.spark import private_spark


class Files:
    """Reads and writes small files with Hadoop's FileSystem.

    Args:
        spark: its Hadoop configuration defines the file systems and their credentials.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = private_spark.java(spark)
        self._path_type = self._jvm.org.apache.hadoop.fs.Path  # once, because Py4J asks the JVM for each part of a name
        self._configuration = private_spark.hadoop_configuration(spark)

    def read(self, path: str) -> str | None:
        """Return the content of a file, or None if the file does not exist."""
        system, file = self._open(path)
        if not system.exists(file):
            return None
        stream = system.open(file)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a file, or replace it. If the process is killed meanwhile, the previous file stays complete."""
        system, file = self._open(path)
        system.mkdirs(file.getParent())
        stream = private_spark.atomic_file(self._jvm, file, self._configuration)
        try:
            stream.write(text.encode())
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        system, file = self._open(path)
        return bool(system.exists(file))

    def local(self, path: str) -> Path | None:
        """Return the path of a file or directory if it is on a file system that the system has mounted, or else None."""
        system, file = self._open(path)
        return Path(str(system.makeQualified(file).toUri().getPath())) if str(system.getScheme()) == "file" else None

    def delete(self, path: str) -> None:
        """Delete a file or a directory with its content. Nothing happens if it does not exist."""
        system, file = self._open(path)
        system.delete(file, True)

    def changed_at_ms(self, directory: str) -> int | None:
        """Return when the newest file of a directory was changed, in ms since the epoch, or None if there is no file."""
        system, path = self._open(directory)
        if not system.exists(path):
            return None
        return max((int(status.getModificationTime()) for status in system.listStatus(path)), default=None)

    def names(self, directory: str) -> list[str]:
        """Return the names of the files and directories in a directory. A directory that does not exist has none."""
        system, path = self._open(directory)
        return [str(status.getPath().getName()) for status in system.listStatus(path)] if system.exists(path) else []

    def _open(self, path: str) -> tuple[Any, Any]:
        file = self._path_type(path)
        return file.getFileSystem(self._configuration), file
