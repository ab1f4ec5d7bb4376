"""Compaction of small files, and erasure of a key, while other processes write and read the archive.

Both write new files, and commit them in place of the old ones. The manifest rejects a replacement that accounts for other
offsets. Erasure removes the old files at once. Compaction keeps them for an hour, because readers on NFS see commits late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kafkasse.archive import parquet
from kafkasse.archive.directory import RUN, Conflict, TopicDirectory
from kafkasse.archive.manifest import Entry, InvalidManifest, Manifest
from kafkasse.archive.parquet import DamagedFile

MAX_FILE_BYTES = 134_217_728  # larger files are not merged
MAX_CONFLICTS = 10
STAGED = "maintenance"
UNREADABLE = (DamagedFile, FileNotFoundError)  # errors of one file

Show = Callable[[int, int], None]  # receives how many files are done, and of how many


def compact(directory: TopicDirectory, show: Show = lambda done, total: None) -> int:
    """Merge adjacent files of the same partition, day and leader epoch. Return by how much the number of files decreased.

    Raises:
        Conflict: another process compacts or erases the same topic.
        DamagedFile, FileNotFoundError: a file cannot be read. The others have been merged.
        InvalidManifest, OSError: the archive cannot be read or written.
    """
    damage: Exception | None = None
    with directory.staging_for(STAGED) as staging:
        groups = [*_groups(directory.read())]
        saved = 0
        for number, group in enumerate(groups):
            tables = (
                table for entry in group if entry.path for table in parquet.tables(directory.path / entry.path, entry)
            )
            try:
                if _replace(directory, group, tables, staging):
                    saved += sum(bool(entry.path) for entry in group) - 1
            except UNREADABLE as error:
                damage = error
            show(number + 1, len(groups))
        directory.remove_unlisted()
    if damage is not None:
        raise damage
    return saved


def _groups(manifest: Manifest) -> Iterator[list[Entry]]:
    """Yield groups of entries that can be merged into one."""
    for entries in manifest.partitions.values():
        group: list[Entry] = []
        for entry in entries:
            if group and not _fits(group, entry):
                if len(group) > 1:
                    yield group
                group = []
            group.append(entry)
        if len(group) > 1:
            yield group


def _fits(group: Sequence[Entry], entry: Entry) -> bool:
    last = group[-1]
    is_adjacent = (last.end, last.day, last.epoch) == (entry.start, entry.day, entry.epoch)
    return is_adjacent and sum(member.size for member in group) + entry.size <= MAX_FILE_BYTES


def erase(directory: TopicDirectory, key: bytes, show: Show = lambda done, total: None) -> int:
    """Rewrite the files with records of a key without these records. Return how many records were erased.

    The archive still accounts for their offsets, so readers skip them without a gap.

    Raises:
        Conflict: another process compacts or erases the same topic.
        DamagedFile, FileNotFoundError: a file cannot be read. The key has been erased from the others.
        InvalidManifest, OSError: the archive cannot be read or written.
    """
    erased = 0
    damage: Exception | None = None
    with directory.staging_for(STAGED) as staging:
        entries = [entry for entry in directory.read() if entry.path]
        for number, entry in enumerate(entries):
            try:
                erased += _erase(directory, entry, key, staging)
            except UNREADABLE as error:
                damage = error
            show(number + 1, len(entries))
        directory.remove_unlisted()
        for path, status in directory.unlisted().items():
            # A file that the pipeline is adding has two links.
            if status.st_nlink == 1 and parquet.count_key(path, key):
                path.unlink()
    with suppress(Conflict), directory.staging_for(RUN):
        pass  # remove the files of a killed pipeline
    if damage is not None:
        raise damage
    return erased


def _erase(directory: TopicDirectory, entry: Entry, key: bytes, staging: Path) -> int:
    path = directory.path / entry.path
    count = parquet.count_key(path, key)
    if count:
        tables = parquet.tables(path, entry)
        kept = (table.filter(pc.fill_null(pc.not_equal(table.column("key"), key), True)) for table in tables)
        if not _replace(directory, [entry], kept, staging):
            raise Conflict(f"another process has changed the archive of {directory.topic}; erase the key again")
        path.unlink(missing_ok=True)
    return count


def _replace(directory: TopicDirectory, old: Sequence[Entry], tables: Iterator[pa.Table], staging: Path) -> bool:
    """Replace entries by one with these records. Return False if another process has replaced them meanwhile."""
    file = staging / "file.parquet"
    written = parquet.write(file, tables)
    entry = replace(old[0], end=old[-1].end).without_records()
    if written:
        first, _, records, max_timestamp = parquet.describe(file)
        path = directory.new_path(entry.day, entry.partition, entry.start)
        size = file.stat().st_size
        directory.add_file(file, path)
        entry = replace(entry, first=first, records=records, max_timestamp=max_timestamp, size=size, path=path)
    directory.keep(entry.path for entry in old if entry.path)
    for _ in range(MAX_CONFLICTS):
        try:
            directory.commit(directory.read().replace(old, [entry]))
        except Conflict:  # the pipeline has committed meanwhile
            continue
        except InvalidManifest:
            break
        return True
    return False
