"""The records that a pipeline skips because its query cannot process them. They are dead letters. No I/O.

The list is a small file in the checkpoint, so that a restart skips the records too. When the pipeline starts, it removes the
records from the list that are before the last commit of its queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kafkasse.errors import CommandError
from kafkasse.pipelines.next_offsets import NextOffsets

FILE = "kafkasse-skipped.json"  # in the directory of the checkpoint: {"orders": {"0": [17, 18]}}
MAX_SKIPPED = 20  # in one run, and in the list. If a query fails for more records, the query is wrong, not the data.

SkippedRecord: TypeAlias = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class Skipped:
    """A set of records, by their positions."""

    records: frozenset[SkippedRecord] = frozenset()

    @classmethod
    def parse(cls, text: str | None) -> Skipped:
        """Parse the content of the file. None: it does not exist. Raise CommandError if the content is damaged."""
        try:
            return cls(
                frozenset(
                    (topic, int(partition), int(offset))
                    for topic, partitions in json.loads(text or "{}").items()
                    for partition, offsets in partitions.items()
                    for offset in offsets
                )
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise CommandError(
                f"the file {FILE} in the checkpoint is damaged ({error}); delete it, and the pipeline finds them again"
            ) from error

    def text(self) -> str:
        """Return the content of the file."""
        content: dict[str, dict[str, list[int]]] = {}
        for topic, partition, offset in sorted(self.records):
            content.setdefault(topic, {}).setdefault(str(partition), []).append(offset)
        return json.dumps(content)

    def offsets(self, topic: str) -> dict[int, list[int]]:
        """Return the offsets of the skipped records of a topic, by partition."""
        by_partition: dict[int, list[int]] = {}
        for _, partition, offset in sorted(record for record in self.records if record[0] == topic):
            by_partition.setdefault(partition, []).append(offset)
        return by_partition

    def plus(self, records: Iterable[SkippedRecord]) -> Skipped:
        """Return these records and the given ones."""
        return Skipped(self.records.union(records))

    def after(self, committed: NextOffsets) -> Skipped:
        """Return the records that a query with this commit has not passed."""
        return Skipped(frozenset(record for record in self.records if record[2] >= committed.get(record[:2], 0)))
