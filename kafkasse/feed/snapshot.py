"""A snapshot: the newest record of each key. A client of a compacted topic that represents a table receives it first."""

from __future__ import annotations

from collections.abc import Mapping

from kafkasse.errors import ConfigurationError
from kafkasse.log import Batch, OffsetRange, Partition, Record


class Snapshot:
    """Collects the newest record of each key, up to the end that the log had when the stream was opened.

    Args:
        held: the offsets that each partition held at that time.
        max_keys: the maximum number of keys, because all newest records are in memory.
    """

    def __init__(self, held: Mapping[Partition, OffsetRange], max_keys: int) -> None:
        self._ends = {partition: offsets.end for partition, offsets in held.items()}
        self._max_keys = max_keys
        self._newest: dict[object, tuple[Partition, Record]] = {}

    def add(self, batch: Batch) -> None:
        """Add the records of a batch.

        Raises:
            ConfigurationError: there are more than `max_keys` keys.
        """
        for record in batch.records:
            # A record without a key replaces no other. A newer record moves its key to the end, which keeps the log's order.
            key = (batch.partition.topic, record.key) if record.key is not None else (batch.partition, record.offset)
            self._newest.pop(key, None)
            if record.value is not None:
                self._newest[key] = (batch.partition, record)
        if len(self._newest) > self._max_keys:
            raise ConfigurationError(
                f"The snapshot has more than {self._max_keys} keys (max_snapshot_keys={self._max_keys})."
                " Increase max_snapshot_keys in the server's configuration, or start at another position."
            )

    def is_complete(self, offsets: Mapping[Partition, int]) -> bool:
        """Return whether a reader at `offsets` has read the whole snapshot."""
        return all(offsets[partition] >= end for partition, end in self._ends.items())

    def records(self) -> list[tuple[Partition, Record]]:
        """Return the newest record of each key, in the order in which they were written."""
        return list(self._newest.values())
