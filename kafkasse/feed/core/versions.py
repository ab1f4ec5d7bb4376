"""Versions: drop the records that are older than a record before them. The setting `newest_by` of a route.

If a producer repeats records after a failure, clients would otherwise see older values again. A record is outdated if
one of the `look_back` offsets before it in its partition has the same key and a version that is as high or higher. This
depends on the log alone, so a shared feed, a client that catches up and a snapshot drop the same records, and a client that
resumes receives no record that is older than those that it received before.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kafkasse.log import Gap, OffsetRange, Offsets, Partition, Ranges, Record
from kafkasse.route import NewestBy

MAX_BYTES = 1_048_576  # of one Versions object: those of about 2,500 keys
ENTRY_BYTES = 400  # the memory that a key takes up in addition to its bytes; a test measures it
OLDER_BYTES = 130  # for each older version of a key
MAX_KEY_BYTES = 64  # the hash of a longer key takes its place
MAX_VERSION_DIGITS = 19  # of a 64-bit integer


def must_end(drops_outdated: bool, gaps: Iterable[Gap]) -> bool:
    """Return whether a stream must end after these gaps: versions of lost records would make later records outdated.

    When the client reconnects, the versions are read from the records that the log still has.
    """
    return drops_outdated and any(gap.is_truncation for gap in gaps)


class Versions:
    """The newest version of each key among the latest records of some partitions.

    Args:
        newest_by: the header with the version, and how far to look back.

    Attributes:
        bytes: about the memory that the keys and versions take up; MAX_BYTES at most. The oldest are removed first.
        ends: for each partition, the offset after the records whose versions are known.
    """

    def __init__(self, newest_by: NewestBy) -> None:
        self._newest_by = newest_by
        # For each key, versions and their offsets: the newest version, then the newest of the later records, and so on up to
        # the last record, because the newest version may soon be too far back. Keys are in the order of their last records.
        self._versions: OrderedDict[tuple[Partition, bytes], list[tuple[int, int]]] = OrderedDict()
        self.bytes = 0
        self.ends: dict[Partition, int] = {}

    def newest(self, partition: Partition, records: Sequence[Record]) -> list[Record]:
        """Return the records that are not outdated, and remember their versions. The caller then moves `ends`."""
        return [record for record in records if self._is_newest(partition, record)]

    def _is_newest(self, partition: Partition, record: Record) -> bool:
        version = self._version(record)
        if version is None or record.key is None:
            return True
        key = partition, record.key if len(record.key) <= MAX_KEY_BYTES else hashlib.sha256(record.key).digest()
        versions = self._versions.get(key)
        if versions is None:
            versions = self._versions[key] = [(version, record.offset)]
            self.bytes += ENTRY_BYTES + len(key[1])
            is_outdated = False
        else:
            is_outdated = self._add(versions, version, record.offset)
            self._versions.move_to_end(key)
        self._evict(partition, record.offset)
        return not is_outdated

    def _add(self, versions: list[tuple[int, int]], version: int, offset: int) -> bool:
        """Add a version to those of a key. Return whether it is outdated."""
        count = len(versions)
        while versions and versions[-1][1] >= offset:
            versions.pop()  # a snapshot that was interrupted within a batch reads its first records again
        while versions and offset - versions[0][1] > self._newest_by.look_back:
            del versions[0]
        is_outdated = bool(versions) and version <= versions[0][0]
        while versions and versions[-1][0] <= version:
            versions.pop()
        versions.append((version, offset))
        self.bytes += OLDER_BYTES * (len(versions) - count)
        return is_outdated

    def _version(self, record: Record) -> int | None:
        values = [value for name, value in record.headers if name == self._newest_by.header]
        text = values[-1] if values else None
        return int(text) if text is not None and text.isdigit() and len(text) <= MAX_VERSION_DIGITS else None

    def _remove(self, key: tuple[Partition, bytes]) -> None:
        versions = self._versions.pop(key)
        self.bytes -= ENTRY_BYTES + len(key[1]) + OLDER_BYTES * (len(versions) - 1)

    def _evict(self, partition: Partition, offset: int) -> None:
        """Remove the oldest entries while they are too far back, or exceed the limit."""
        while self._versions:
            key = next(iter(self._versions))
            is_too_far_back = key[0] == partition and offset - self._versions[key][-1][1] > self._newest_by.look_back
            if not is_too_far_back and self.bytes <= MAX_BYTES:
                return
            self._remove(key)

    def has_read(self, ends: Offsets) -> bool:
        """Return whether the versions include those of all records before these offsets."""
        return all(self.ends.get(partition, 0) >= end for partition, end in ends.items())

    def missing(self, ends: Offsets, offset_ranges: Ranges) -> dict[Partition, OffsetRange]:
        """Return the offsets that newest() must receive before the records at `ends`.

        Args:
            ends: the next offset of each partition.
            offset_ranges: the offsets that the partitions hold. Partitions that are absent need no offsets.
        """
        missing = {}
        for partition, end in ends.items():
            first = max(self.ends.get(partition, 0), end - self._newest_by.look_back)
            if partition in offset_ranges:
                missing[partition] = OffsetRange(
                    max(first, offset_ranges[partition].start), min(end, offset_ranges[partition].end)
                )
        return {partition: offsets for partition, offsets in missing.items() if offsets.start < offsets.end}
