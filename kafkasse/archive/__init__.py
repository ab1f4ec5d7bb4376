"""Archives: topics in Parquet files, which `kafkasse archive run` writes and routes can read before Kafka.

    manifest     which file holds which offsets of a topic; no I/O
    directory    the files and commits of an archive in a directory
    parquet      the content of a file; the only module that imports pyarrow
    maintenance  compaction of small files, and erasure of a key
    log          log.Log for a cluster with an archive: the archive first, then Kafka

An offset is in the archive if and only if the newest commit of its topic lists it. Writers create files first and then
commit them, so a crash can leave files that no commit lists, but it never archives an offset twice. This package does not
depend on Kafka, Spark or Flask.
"""

from __future__ import annotations

from kafkasse.errors import ConfigurationError
from kafkasse.log import Log

NEEDS_PYARROW = 'The setting archive needs the package pyarrow. Install it with: pip install "kafkasse[archive]"'


def check_packages() -> None:
    """Load the packages that an archive needs. Raise ConfigurationError if pyarrow is not installed."""
    try:
        import kafkasse.archive.log  # noqa: F401 - takes 0.1 s; in the first request, it would block the event loop
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ConfigurationError(NEEDS_PYARROW) from error


def with_archive(log: Log, path: str, topic_prefix: str = "") -> Log:
    """Return the log of a cluster with its archive in a directory. The directory is read when a client needs it.

    Args:
        path: the directory of the archive; "" if the cluster has none.
        topic_prefix: the prefix that the names of topics have in Kafka.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    if not path:
        return log
    check_packages()
    from kafkasse.archive.directory import ArchiveDirectory
    from kafkasse.archive.log import ArchivedLog, ArchiveReader

    return ArchivedLog(log, ArchiveReader(ArchiveDirectory(path), topic_prefix))
