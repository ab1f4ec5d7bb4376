"""A manifest lists the files of one archived topic and the offsets that each file accounts for. This module does no I/O.

A topic ID identifies one incarnation of a topic, so the offsets in a manifest never belong to a recreated topic. The entries
of a partition are in offset order and do not overlap. Each has one leader epoch. The offsets of a hole between two entries
were removed from Kafka before they were archived.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

FORMAT = 1


class InvalidManifest(Exception):
    """A manifest cannot be parsed, or its entries contradict each other."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The offsets `[start, end)` of a partition.

    Some have no record: those of transaction markers, and of records that Kafka compacted or that were erased.
    """

    partition: int
    start: int
    end: int
    epoch: int  # the leader epoch of the records, or UNKNOWN_EPOCH
    day: str  # the UTC day under which the records are filed, such as 2026-11-22
    first: int = -1  # the offset of the first record in the file
    records: int = 0  # the number of records in the file
    max_timestamp: int = -1  # the highest timestamp of the records, in milliseconds since the epoch
    size: int = 0  # the size of the file in bytes
    path: str = ""  # the file, relative to the directory of the topic; "" if there is no record

    def without_records(self, end: int | None = None) -> Entry:
        """Return an entry that accounts for the same offsets, or for those before `end`, and has no file."""
        return Entry(self.partition, self.start, self.end if end is None else end, self.epoch, self.day)


@dataclass(frozen=True)
class Manifest:
    """The files of one archived topic."""

    topic: str  # the name of the topic in Kafka
    topic_id: str  # 22 characters in base64url
    version: int = 0  # the number of the newest commit that it contains; 0 if there is none
    partitions: Mapping[int, Sequence[Entry]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Entry]:
        for entries in self.partitions.values():
            yield from entries

    @property
    def paths(self) -> set[str]:
        """The files that hold records, relative to the directory of the topic."""
        return {entry.path for entry in self if entry.path}

    def first(self, partition: int) -> int | None:
        """Return the first offset of a partition, or None if the archive has none."""
        entries = self.partitions.get(partition, ())
        return entries[0].start if entries else None

    def end(self, partition: int) -> int | None:
        """Return the offset after the last one of a partition, or None if the archive has none."""
        entries = self.partitions.get(partition, ())
        return entries[-1].end if entries else None

    def entry_at(self, partition: int, offset: int) -> Entry | None:
        """Return the entry that accounts for an offset, or None."""
        entries = self.partitions.get(partition, ())
        index = bisect_right(entries, offset, key=lambda entry: entry.start) - 1
        return entries[index] if index >= 0 and offset < entries[index].end else None

    def next_from(self, partition: int, offset: int) -> int | None:
        """Return the first archived offset at or after `offset`, or None if there is none."""
        entries = self.partitions.get(partition, ())
        index = bisect_right(entries, offset, key=lambda entry: entry.end)
        return max(offset, entries[index].start) if index < len(entries) else None

    def epoch_end(self, partition: int, epoch: int) -> int | None:
        """Return the first archived offset of a leader epoch after `epoch`, or None if the archive has none."""
        entries = self.partitions.get(partition, ())
        return next((entry.start for entry in entries if entry.epoch > epoch), None)

    def holes(self) -> Iterator[tuple[int, int, int]]:
        """Yield the partition and the offsets `[start, end)` of each hole."""
        for partition, entries in self.partitions.items():
            for before, after in pairwise(entries):
                if before.end < after.start:
                    yield partition, before.end, after.start

    def append(self, entries: Iterable[Entry]) -> Manifest:
        """Return the manifest with more entries. Raise InvalidManifest if an offset is archived already."""
        return self._with([*self, *entries])

    def replace(self, old: Iterable[Entry], new: Iterable[Entry]) -> Manifest:
        """Return the manifest with `new` in place of `old`.

        Raises:
            InvalidManifest: an entry of `old` is missing, or `new` accounts for other offsets than `old`.
        """
        removed = set(old)
        kept = [entry for entry in self if entry not in removed]
        added = list(new)
        if len(kept) + len(removed) != sum(map(len, self.partitions.values())):
            raise InvalidManifest("an entry to replace is missing")
        if _ranges(removed) != _ranges(added):
            raise InvalidManifest("the new entries account for other offsets than the old ones")
        return self._with([*kept, *added])

    def truncate(self, partition: int, end: int) -> Manifest:
        """Return the manifest without the offsets of a partition from `end` on, which Kafka has replaced.

        A file that holds offsets on both sides stays. Its readers ignore the records after the end of the entry.
        """
        kept = [entry for entry in self if entry.partition != partition or entry.end <= end]
        cut = self.entry_at(partition, end)
        if cut is not None and cut.start < end:
            has_records = cut.path and cut.first < end
            kept.append(replace(cut, end=end) if has_records else cut.without_records(end))
        return self._with(kept)

    def _with(self, entries: Iterable[Entry]) -> Manifest:
        partitions: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=lambda entry: (entry.partition, entry.start)):
            before = partitions.setdefault(entry.partition, [])
            if entry.start >= entry.end or (before and entry.start < before[-1].end):
                raise InvalidManifest(
                    f"the offsets [{entry.start}, {entry.end}) of {self.topic}/{entry.partition} are empty or overlap"
                )
            before.append(entry)
        return Manifest(self.topic, self.topic_id, self.version, partitions)

    def to_json(self) -> str:
        """Return the manifest as text."""
        entries = [asdict(entry) for entry in self]
        return json.dumps(
            {
                "format": FORMAT,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "version": self.version,
                "files": entries,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse a manifest. Raise InvalidManifest if the text is not a manifest, or its entries overlap."""
        try:
            # The hook lets other threads run. Otherwise, a text of 10 MB would block the event loop for 0.1 s.
            parsed = json.loads(text, object_hook=_entry_or_members)
            if parsed["format"] != FORMAT:
                raise InvalidManifest(f"its format is {parsed['format']}, and this version of kafkasse reads {FORMAT}")
            return cls(parsed["topic"], parsed["topic_id"], parsed["version"])._with(parsed["files"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidManifest(f"it is not a manifest: {error}") from error


def _entry_or_members(members: dict[str, Any]) -> Entry | dict[str, Any]:
    return Entry(**members) if "partition" in members else members


def _ranges(entries: Iterable[Entry]) -> list[tuple[int, int, int]]:
    """Return the offsets of entries, with adjacent ranges merged."""
    merged: list[tuple[int, int, int]] = []
    for entry in sorted(entries, key=lambda entry: (entry.partition, entry.start)):
        if merged and merged[-1][0] == entry.partition and merged[-1][2] == entry.start:
            merged[-1] = (entry.partition, merged[-1][1], entry.end)
        else:
            merged.append((entry.partition, entry.start, entry.end))
    return merged
