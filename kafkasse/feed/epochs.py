"""Detects clients that have read records which a truncation removed from the log, by the leader epochs of their positions.

A leader epoch ends at the offset where the next epoch starts. A client that has read records of the epoch after this offset
has read lost records. See core/epochs.py for the clients whose position a feed covers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kafkasse.feed.lookup import FreshLookup
from kafkasse.log import RECREATED_AT, UNKNOWN_EPOCH, Epochs, Log, OffsetAndEpoch, Partition, Ranges

_Key = tuple[Partition, int]  # a partition and a leader epoch


class EpochEnds:
    """Compares the positions of clients with the leader epochs of the log.

    Args:
        log: the log to read.
        timeout_s: how long a lookup may take.
    """

    def __init__(self, log: Log, timeout_s: float) -> None:
        self._ends = FreshLookup(partial(_look_up, log.epoch_ends), _topic, timeout_s)
        self._recreated = FreshLookup(
            partial(_look_up, lambda epochs: dict.fromkeys(log.recreated(epochs), RECREATED_AT)), _topic, timeout_s
        )

    def diverged_at(
        self, positions: Mapping[Partition, OffsetAndEpoch], offset_ranges: Ranges | None = None
    ) -> dict[Partition, OffsetAndEpoch]:
        """Return those partitions in which a client has read lost records.

        The values are the offset of the first of these records, and the newest leader epoch before it.

        Args:
            positions: the positions of a client.
            offset_ranges: the current offsets of the partitions, if known. They show which topics may have been recreated.

        Raises:
            Unavailable: the log does not answer.
        """
        ends = self.ends(positions)
        diverged = {partition: end for partition, end in ends.items() if end.offset < positions[partition].offset}
        shorter = {
            partition: positions[partition].epoch
            for partition, offsets in (offset_ranges or {}).items()
            if partition in positions and offsets.end < positions[partition].offset
        }
        return diverged | {partition: at for (partition, _), at in self._recreated.get(shorter.items()).items()}

    def ends(self, positions: Mapping[Partition, OffsetAndEpoch]) -> dict[Partition, OffsetAndEpoch]:
        """Return where the epoch of each position ends in the log, and the newest epoch before this end.

        Raises:
            Unavailable: the log does not answer.
        """
        ends = self._ends.get((partition, position.epoch) for partition, position in positions.items())
        return {partition: end for (partition, _), end in ends.items()}

    def last_epochs(self, offset_ranges: Ranges) -> dict[Partition, int]:
        """Return the leader epoch of the last record of each partition, where it is known for certain.

        Args:
            offset_ranges: the current offsets of the partitions.

        Raises:
            Unavailable: the log does not answer.
        """
        with_records = {
            partition: offsets for partition, offsets in offset_ranges.items() if offsets.start < offsets.end
        }
        epochs = {partition: 0 for partition, offsets in with_records.items() if offsets.epoch == 0}
        before = self._ends.get(
            (partition, offsets.epoch - 1) for partition, offsets in with_records.items() if offsets.epoch > 0
        )
        for (partition, _), (offset, epoch) in before.items():
            offsets = with_records[partition]
            if offset < offsets.end:
                epochs[partition] = offsets.epoch
            elif offset == offsets.end and epoch != UNKNOWN_EPOCH:  # the current leader has not written a record yet
                epochs[partition] = epoch
            # Otherwise, an open transaction began before the current epoch: the last visible record may have any older one.
        return epochs


def _topic(key: _Key) -> str:
    return key[0].topic


def _look_up(
    look_up: Callable[[Epochs], Mapping[Partition, OffsetAndEpoch]], keys: Iterable[_Key]
) -> dict[_Key, OffsetAndEpoch]:
    ends: dict[_Key, OffsetAndEpoch] = {}
    remaining = set(keys)
    while remaining:
        epochs = dict(remaining)  # a request can contain one epoch of each partition
        values = look_up(epochs)
        ends |= {(partition, epoch): values[partition] for partition, epoch in epochs.items() if partition in values}
        remaining -= epochs.items()
    return ends
