"""Detects clients that have read records which a truncation removed from the log, by the leader epochs in their event IDs.

After a truncation, the log may have grown past a client's offset, so the offset alone does not show that records before it
were replaced. A leader epoch ends at the offset where the next epoch starts. A client that has read records of the epoch
after this offset has read lost records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkasse.feed.lookup import SharedLookup
from kafkasse.log import Log, OffsetRange, Partition

MAX_END_AGE_S = 1.0
MAX_CACHED_ENDS = 10_000


class EpochPosition(NamedTuple):
    """A client's next offset in a partition, and the leader epoch of the record before it."""

    offset: int
    epoch: int


class EpochEnds:
    """Compares the positions of clients with the leader epochs of the log.

    All clients that return after a leader election share one lookup for each partition and epoch.

    Args:
        log: the log to read.
        timeout_s: how long a lookup may take.
    """

    def __init__(self, log: Log, timeout_s: float) -> None:
        self._log = log
        self._ends = SharedLookup(self._look_up, timeout_s, max_cached=MAX_CACHED_ENDS)

    def diverged_at(
        self, positions: Mapping[Partition, EpochPosition], held: Mapping[Partition, OffsetRange] | None = None
    ) -> dict[Partition, int]:
        """Return those partitions in which a client has read lost records, with the offset of the first of these records.

        Args:
            positions: the positions of a client.
            held: the current offsets of the partitions, if known. A cached end may be older.

        Raises:
            Unavailable: the log does not answer.
        """
        ends = self._ends.get([(each, position.epoch) for each, position in positions.items()], MAX_END_AGE_S)
        for each, (_, end) in (held or {}).items():
            if each in positions:
                key = each, positions[each].epoch
                ends[key] = min(ends.get(key, end), end)
        suspects = {
            each: position
            for each, position in positions.items()
            if ends.get((each, position.epoch), position.offset) < position.offset
        }
        if not suspects:
            return {}
        # The cached end may be older than the client's last record.
        current = self._log.epoch_ends({each: epoch for each, (_, epoch) in suspects.items()})
        diverged = {each: end for each, end in current.items() if end < suspects[each][0]}
        shorter = {
            each: suspects[each].epoch
            for each, (_, end) in (held or {}).items()
            if each in suspects and end < suspects[each].offset
        }
        return diverged | dict.fromkeys(self._log.recreated(shorter), 0)

    def _look_up(self, keys: list[tuple[Partition, int]]) -> dict[tuple[Partition, int], int]:
        found: dict[tuple[Partition, int], int] = {}
        while keys:
            epochs = dict(keys)  # a request can contain one epoch of each partition
            ends = self._log.epoch_ends(epochs)
            found |= {(each, epoch): ends[each] for each, epoch in epochs.items() if each in ends}
            keys = [key for key in keys if key not in epochs.items()]
        return found
