"""The content of an archive's Parquet files: records of one partition, in offset order, in small row groups.

A client reads one row group at a time, so the size of a row group limits the memory of a client. All pages have checksums,
so damage causes an error and never a wrong record.

Files are read in threads. There, nothing may import a module: gevent replaces the locks of imports, so that an import can
wait forever for one in another thread.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kafkasse.archive.manifest import Entry

ROW_GROUP_BYTES = 1_048_576  # of keys, values and headers; a row group is larger only if it has a single record
MAX_CACHED_ROW_GROUPS = 4000  # in the footers that a process keeps; each takes up 8 KB of memory
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema([
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("leader_epoch", pa.int32()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestamp_type", pa.int32()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", HEADERS),
])  # fmt: skip
_CONTENT_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, StopIteration)
_READ = ["offset", "timestamp", "key", "value", "headers"]


class DamagedFile(Exception):
    """A file cannot be read, or does not contain what the manifest says. Reading it again does not help.

    Attributes:
        end: the first offset after the damage, if only a part of the file is damaged.
    """

    end: int | None = None


class ArchivedRecord(NamedTuple):
    """Implements log.Record."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


class Records(Sequence[ArchivedRecord]):
    """The records of a row group. A slice creates its records, so that the caller decides how many it creates at once."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def nbytes(self) -> int:
        """The size of the records."""
        return int(self._table.nbytes)

    @overload
    def __getitem__(self, index: int) -> ArchivedRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[ArchivedRecord]: ...
    def __getitem__(self, index: int | slice) -> ArchivedRecord | list[ArchivedRecord]:
        if isinstance(index, int):
            at = index if index >= 0 else len(self) + index
            return self[at : at + 1][0]
        start, stop, _ = index.indices(len(self))
        piece = self._table.slice(start, max(0, stop - start))
        timestamps = [microseconds // 1000 for microseconds in piece.column("timestamp").cast(pa.int64()).to_pylist()]
        headers = [
            tuple((header["key"], header["value"]) for header in row) if row else ()
            for row in piece.column("headers").to_pylist()
        ]
        columns = (piece.column(name).to_pylist() for name in ("offset", "key", "value"))
        offsets, keys, values = columns
        return list(map(ArchivedRecord, offsets, timestamps, keys, values, headers))


@dataclass(frozen=True, slots=True)
class Footer:
    """The metadata of a file, and the first offset of each of its row groups."""

    metadata: Any
    starts: Sequence[int]


# The footers that were read last. A file never changes. Threads share the dict: each of its operations is atomic.
_footers: dict[Path, Footer] = {}


def _footer(path: Path) -> Footer:
    known = _footers.pop(path, None)
    footer = _footers[path] = known or _read_footer(path)  # the newest entry is the last one
    if known is not None:
        return footer
    cached = _footers.copy()
    excess = sum(len(entry.starts) for entry in cached.values()) - MAX_CACHED_ROW_GROUPS
    for oldest, entry in cached.items():
        if excess <= 0 or oldest == path:
            break
        _footers.pop(oldest, None)
        excess -= len(entry.starts)
    return footer


def _read_footer(path: Path) -> Footer:
    with _damage(path):
        metadata = pq.read_metadata(path)
        starts = [int(_statistics(metadata, number, "offset").min) for number in range(metadata.num_row_groups)]
        if not starts:
            raise DamagedFile(f"{path}: it has no records")
        return Footer(metadata, starts)


def _checked_footer(path: Path, entry: Entry) -> Footer:
    footer = _footer(path)
    if footer.metadata.num_rows != entry.records or footer.starts[0] != entry.first:
        raise DamagedFile(f"{path}: it is not the file that the manifest lists")
    return footer


def read(path: Path, entry: Entry, offset: int) -> tuple[Records, int]:
    """Read the row group that contains `offset`, or the first one after it.

    Returns:
        The records from `offset` on, and the next offset to read, which is `entry.end` after the last row group.

    Raises:
        DamagedFile: the file is damaged, or is not the one that the manifest lists.
        OSError: the file cannot be read now, or does not exist.
    """
    footer = _checked_footer(path, entry)
    number = max(0, bisect_right(footer.starts, offset) - 1)
    end = entry.end if number + 1 == len(footer.starts) else min(entry.end, footer.starts[number + 1])
    try:
        table = _read_row_group(path, footer, number)
    except DamagedFile as error:
        error.end = end
        raise
    offsets = table.column("offset")
    wanted = pc.and_(pc.greater_equal(offsets, _int64(offset)), pc.less(offsets, _int64(end)))
    if not pc.all(wanted).as_py():
        table = table.filter(wanted)
    return Records(table), end


def _read_row_group(path: Path, footer: Footer, number: int) -> pa.Table:
    with _damage(path), pq.ParquetFile(path, metadata=footer.metadata, page_checksum_verification=True) as file:
        table = file.read_row_group(number, columns=_READ, use_threads=False)
    offsets = table.column("offset")
    if offsets.null_count or offsets[0].as_py() != footer.starts[number] or not _increases(offsets):
        raise DamagedFile(f"{path}: its offsets do not increase")
    return table


def find_timestamp(path: Path, entry: Entry, timestamp_ms: int) -> int | None:
    """Return the first offset of a file with a timestamp at or after `timestamp_ms`, or None. Raises as read()."""
    footer = _checked_footer(path, entry)
    at = _int64(timestamp_ms * 1000)
    for number in range(len(footer.starts)):
        # Only row groups with such a timestamp are read: a file may have millions of records.
        newest = _statistics(footer.metadata, number, "timestamp")
        if newest is None or not newest.has_min_max or newest.max_raw >= timestamp_ms * 1000:
            table = _read_row_group(path, footer, number)
            late = pc.greater_equal(table.column("timestamp").cast(pa.int64()), at)
            offsets = table.filter(pc.and_(late, pc.less(table.column("offset"), _int64(entry.end)))).column("offset")
            if len(offsets):
                return int(offsets[0].as_py())
    return None


def describe(path: Path) -> tuple[int, int, int, int]:
    """Return the first and last offset of a file, the number of its records, and their highest timestamp in milliseconds.

    Raises:
        DamagedFile, OSError: see read().
    """
    first, last, newest_us, records = -1, -1, -1, 0
    with _damage(path), pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):  # all at once would take up a gigabyte if the records are small
            table = file.read_row_group(number, columns=["offset", "timestamp"], use_threads=False)
            offsets = table.column("offset")
            if not len(offsets) or offsets[0].as_py() <= last or not _increases(offsets):
                raise DamagedFile(f"{path}: its offsets do not increase")
            newest_us = max(newest_us, pc.max(table.column("timestamp").cast(pa.int64())).as_py())
            first, last = first if records else offsets[0].as_py(), offsets[-1].as_py()
            records += len(offsets)
    if not records:
        raise DamagedFile(f"{path}: it has no records")
    return first, last, records, newest_us // 1000


def count_key(path: Path, key: bytes) -> int:
    """Return how many records of a file have a key, including those after the end of its entry. Raises as read()."""
    with _damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        groups = (
            file.read_row_group(number, columns=["key"], use_threads=False) for number in range(file.num_row_groups)
        )
        return sum(int(pc.sum(pc.equal(group.column("key"), key)).as_py() or 0) for group in groups)


def tables(path: Path, entry: Entry) -> Iterator[pa.Table]:
    """Yield the row groups of a file, without records after the end of the entry. Raises as read()."""
    _checked_footer(path, entry)
    with _damage(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).select(SCHEMA.names).cast(SCHEMA)
            yield table.filter(pc.less(table.column("offset"), entry.end))


def write(path: Path, tables: Iterable[pa.Table]) -> int:
    """Write records to a new file, with small row groups. Return their number."""
    written = 0
    options = {
        "compression": "zstd",
        "use_dictionary": ["partition", "leader_epoch", "timestamp_type"],
        "write_statistics": ["offset", "timestamp"],  # those of values would make up most of the footer
    }
    with pq.ParquetWriter(path, SCHEMA, write_page_checksum=True, **options) as file:
        for group in _row_groups(tables):
            file.write_table(group, row_group_size=group.num_rows)
            written += group.num_rows
    return written


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Merge small tables and split large ones, so that each has about ROW_GROUP_BYTES."""
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        rest = table
        while rest.num_rows:
            count = _fitting(rest, ROW_GROUP_BYTES - size)
            if not count and waiting:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, size = [], 0
                continue
            piece = rest.slice(0, max(1, count))
            waiting.append(piece)
            size += piece.nbytes
            rest = rest.slice(piece.num_rows)
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _fitting(table: pa.Table, room: int) -> int:
    """Return how many of the first rows take up at most `room` bytes."""
    low, high = 0, table.num_rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if table.slice(0, middle).nbytes <= room else (low, middle - 1)
    return low


def _int64(number: int) -> pa.Scalar:
    # Not pa.scalar(), because that imports pandas.
    buffer = pa.py_buffer(number.to_bytes(8, sys.byteorder, signed=True))
    return pa.Array.from_buffers(pa.int64(), 1, [None, buffer])[0]


def _increases(offsets: pa.ChunkedArray) -> bool:
    later, earlier = offsets.slice(1), offsets.slice(0, max(0, len(offsets) - 1))
    return bool(pc.all(pc.greater(later, earlier), min_count=0).as_py())


def _statistics(metadata: Any, number: int, name: str) -> Any:
    """Return the statistics of a column of a row group."""
    group = metadata.row_group(number)
    columns = (group.column(at) for at in range(group.num_columns))
    return next(column for column in columns if column.path_in_schema == name).statistics


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise DamagedFile for errors of the content. Errors of the operating system are temporary, and are not changed."""
    try:
        yield
    except _CONTENT_ERRORS as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedFile(f"{path}: {reason}") from error
