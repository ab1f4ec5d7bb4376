"""The files and commits of an archive in a directory, which may be a mounted network file system.

    ARCHIVE/kafkasse-archive.json                                marks the directory as an archive
    ARCHIVE/topic=orders/topic_id=kQ3d…/day=2026-11-22/*.parquet   records
    ARCHIVE/topic=orders/topic_id=kQ3d…/_commits/000…042.json    the manifest after commit 42
    ARCHIVE/topic=orders/topic_id=kQ3d…/_staging/                files that are not committed yet

A commit is a new manifest. It is created under the next number, which fails if another process has committed meanwhile.
Therefore an archive needs no lock, and a reader always sees a complete commit. Each call may block on I/O.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from kafkasse.archive.manifest import FORMAT, InvalidManifest, Manifest

MARKER = "kafkasse-archive.json"
RUN = "run"  # the staged files of the pipeline
COMMITS_KEPT = 10
MIN_UNLISTED_AGE_S = 3600.0
LOCK_WAITS_S = 0.1, 0.4, 0.0  # erasure removes the staged files of a killed pipeline, and uses its lock meanwhile
MAX_READ_ATTEMPTS = 5  # a writer may remove an old commit between listing and reading
TOPIC_ID_CHARS = 8  # how many characters of a topic ID the web process knows
_COMMIT = re.compile(r"(\d{20})\.json")

log = logging.getLogger(__name__)


class NotAnArchive(Exception):
    """The directory does not exist, is not mounted, or is not an archive."""


class Conflict(Exception):
    """Another process has committed meanwhile. Read the manifest again, and repeat the change."""


class TopicDirectory:
    """The archive of one incarnation of a topic. `topic` is its name in Kafka."""

    def __init__(self, path: Path, topic: str, topic_id: str) -> None:
        self.path = path
        self.topic = topic
        self.topic_id = topic_id
        self._commits = path / "_commits"
        self.staging = path / "_staging"

    def read(self) -> Manifest:
        """Return the newest manifest, or an empty one if nothing is committed.

        Raises:
            InvalidManifest: the newest commit is damaged.
            OSError: the directory cannot be read.
        """
        for attempt in range(MAX_READ_ATTEMPTS):
            versions = self._versions()
            if not versions:
                return Manifest(self.topic, self.topic_id)
            newest = self._commit(versions[-1])
            try:
                manifest = Manifest.from_json(newest.read_text(encoding="utf-8"))
            except FileNotFoundError:
                if attempt == MAX_READ_ATTEMPTS - 1:  # NFS caches the list of commits
                    raise InvalidManifest(f"{newest} does not exist") from None
            except (InvalidManifest, UnicodeDecodeError) as error:
                raise InvalidManifest(f"{newest}: {error}") from error
            else:
                if (manifest.topic, manifest.topic_id, manifest.version) != (self.topic, self.topic_id, versions[-1]):
                    raise InvalidManifest(f"{newest}: it is the manifest of another topic or commit")
                return manifest
        raise AssertionError("unreachable")

    def newest_version(self) -> int:
        """Return the number of the newest commit; 0 if there is none."""
        return max(self._versions(), default=0)

    def commit(self, manifest: Manifest) -> Manifest:
        """Commit a changed manifest, whose files must exist. Return it with its new version.

        Raises:
            Conflict: another process has committed since the manifest was read.
        """
        manifest = replace(manifest, version=manifest.version + 1)
        self._commits.mkdir(parents=True, exist_ok=True)
        temporary = self._commits / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, self._commit(manifest.version))  # unlike a rename, this never replaces a file
        except FileExistsError:
            # If the answer of an NFS server is lost, the call fails although the link exists; see link(2).
            if temporary.stat().st_nlink != 2:
                raise Conflict(f"another process has changed the archive of {self.topic}") from None
        finally:
            temporary.unlink(missing_ok=True)
        _sync(self._commits)
        for version in self._versions()[:-COMMITS_KEPT]:
            self._commit(version).unlink(missing_ok=True)
        return manifest

    def new_path(self, day: str, partition: int, start: int) -> str:
        """Return the path of a new file, relative to this directory."""
        return f"day={day}/{partition}-{start:020d}-{uuid.uuid4().hex[:12]}.parquet"

    def add_file(self, source: Path, path: str) -> None:
        """Move a complete file to its final path. It is not part of the archive until it is committed."""
        target = self.path / path
        target.parent.mkdir(exist_ok=True)
        with source.open("rb") as file:
            os.fsync(file.fileno())
        os.utime(source)  # remove_unlisted() counts from now on
        source.rename(target)
        _sync(target.parent)

    def keep(self, paths: Iterable[str]) -> None:
        """Let remove_unlisted() keep files that the next commit replaces: on NFS, readers see the commit a minute later."""
        for path in paths:
            with suppress(OSError):  # it does not exist, or belongs to another user
                os.utime(self.path / path)

    def unlisted(self) -> dict[Path, os.stat_result]:
        """Return the files that the newest manifest does not list. They were replaced, or a killed process has left them."""
        files = {path: path.stat() for path in self.path.glob("day=*/*")}  # before the manifest is read
        listed = self.read().paths
        return {path: status for path, status in files.items() if str(path.relative_to(self.path)) not in listed}

    def remove_unlisted(self, min_age_s: float = MIN_UNLISTED_AGE_S) -> int:
        """Remove the files that the newest manifest does not list. Return their number.

        Args:
            min_age_s: keep files that were added or replaced later. Another process may be about to commit them.
        """
        before = time.time() - min_age_s
        removed = [path for path, status in self.unlisted().items() if status.st_mtime < before]
        for path in removed:
            path.unlink(missing_ok=True)
        return len(removed)

    @contextmanager
    def staging_for(self, name: str) -> Iterator[Path]:
        """Provide an empty directory for files that are not complete yet. At most one process may use a name.

        Raises:
            Conflict: another process uses the name.
            NotAnArchive: the directory of the archive is not mounted any more, for example.
        """
        ArchiveDirectory(self.path.parent.parent).check()
        self.staging.mkdir(parents=True, exist_ok=True)
        with (self.staging / f"{name}.lock").open("w") as lock:
            self._lock(lock)
            directory = self.staging / name
            shutil.rmtree(directory, ignore_errors=True)  # what a killed process has left
            directory.mkdir()
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    def _lock(self, file: IO[str]) -> None:
        for wait_s in LOCK_WAITS_S:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(wait_s)
        raise Conflict(f"another process changes the archive of {self.topic}")

    def _versions(self) -> list[int]:
        try:
            names = os.listdir(self._commits)  # noqa: PTH208 - a Path for each name is slow
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _COMMIT.fullmatch(name)))

    def _commit(self, version: int) -> Path:
        return self._commits / f"{version:020d}.json"


class ArchiveDirectory:
    """An archive of any number of topics."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def create(self) -> None:
        """Mark the directory as an archive. Raise NotAnArchive if it contains other files."""
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / MARKER).exists():
            return self.check()
        temporary = self.path / f".{MARKER}"
        if any(path != temporary for path in self.path.iterdir()):
            raise NotAnArchive(f"{self.path} contains other files and no {MARKER}; use an empty directory")
        temporary.write_text(json.dumps({"format": FORMAT}), encoding="utf-8")
        temporary.rename(self.path / MARKER)
        log.info("%s was empty, and is a new archive now", self.path)
        return _sync(self.path)

    def check(self) -> None:
        """Check that the directory is an archive. An unmounted file system leaves an empty directory, for example.

        Raises:
            NotAnArchive: it is not.
        """
        try:
            marker = json.loads((self.path / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise NotAnArchive(f"{self.path} is not an archive: {MARKER} cannot be read") from error
        if marker != {"format": FORMAT}:
            raise NotAnArchive(f"{self.path} has another format than {FORMAT}; upgrade kafkasse")

    def topic(self, topic: str, topic_id: str) -> TopicDirectory:
        """Return the directory of a topic, which may not exist yet."""
        return TopicDirectory(self.path / f"topic={topic}" / f"topic_id={topic_id}", topic, topic_id)

    def find(self, topic: str, short_topic_id: str) -> TopicDirectory | None:
        """Return the directory of the topic whose ID starts with `short_topic_id`, or None if it is not archived.

        Raises:
            NotAnArchive: the directory of the archive cannot be read.
        """
        self.check()
        directories = [
            directory
            for directory in self._incarnations(topic)
            if directory.topic_id[:TOPIC_ID_CHARS] == short_topic_id
        ]
        return directories[0] if directories else None

    def topics(self) -> Iterator[TopicDirectory]:
        """Yield all incarnations of all topics in alphabetical order. Raise NotAnArchive if the directory is unreadable."""
        self.check()
        for path in sorted(self.path.glob("topic=*")):
            yield from self._incarnations(path.name.removeprefix("topic="))

    def _incarnations(self, topic: str) -> list[TopicDirectory]:
        paths = sorted((self.path / f"topic={topic}").glob("topic_id=*"))
        return [TopicDirectory(path, topic, path.name.removeprefix("topic_id=")) for path in paths]


def _sync(directory: Path) -> None:
    """Flush the entries of a directory to the disk, so that they survive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
