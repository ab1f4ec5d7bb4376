"""The leader epochs that a feed has read. They show whether a reader that joins has read records that the log has lost.

After a truncation, the log may have grown past a reader's offset, so the offset alone does not show that records before it
were replaced. See epochs.py for clients whose position no feed covers.
"""

from __future__ import annotations

from collections import defaultdict

from kafkasse.log import UNKNOWN_EPOCH, Batch, Gap, Partition
from kafkasse.log.epoch_history import EpochHistory
from kafkasse.records.position import IdWriter


class FeedEpochs:
    """The leader epochs that a feed has read.

    Args:
        ids: the position of the feed, which moves.

    Attributes:
        truncations: how many truncations the feed has noticed.
    """

    def __init__(self, ids: IdWriter) -> None:
        self.truncations = 0
        self._ids = ids
        self._truncated_at: dict[Partition, int] = {}  # the offset of the last truncation
        self._read: defaultdict[Partition, EpochHistory]
        self.restart()

    def restart(self) -> None:
        """Forget what was read before the position of the feed."""
        known = {
            partition: EpochHistory(self._ids.offsets[partition], epoch)
            for partition, epoch in self._ids.epochs.items()
        }
        self._read = defaultdict(EpochHistory, known)

    def append(self, batch: Batch) -> None:
        """Remember the epoch of a batch that the feed is about to append."""
        if batch.leader_epoch not in (UNKNOWN_EPOCH, self._ids.epochs.get(batch.partition)):
            start = batch.records[0].offset if batch.records else batch.next_offset - 1
            self._read[batch.partition].add(start, batch.leader_epoch)

    def truncate(self, gap: Gap) -> None:
        """Remember that the log was truncated at the end of this gap, to which the feed has moved."""
        self.truncations += 1
        self._truncated_at[gap.partition] = gap.end
        self._read[gap.partition].truncate(gap.end)

    def match(self, ids: IdWriter) -> bool:
        """Return whether a reader at `ids` has read the same log as the feed, as far as their epochs show."""
        return (
            all(self._follows_truncation(ids, *truncation) for truncation in self._truncated_at.items())
            and not self._has_missed_truncation(ids)
            and not self.has_diverged(ids)
        )

    def _follows_truncation(self, ids: IdWriter, partition: Partition, end: int) -> bool:
        """Return whether `ids` is a position in the log after its truncation, and not one among the lost records."""
        offset, at = ids.offsets[partition], self._ids
        epoch = ids.epochs.get(partition)  # without an epoch, a cursor could not detect lost records either
        is_same_epoch = epoch is None or epoch == at.epochs.get(partition)
        return offset == end or (offset <= at.offsets[partition] and is_same_epoch)

    def _has_missed_truncation(self, ids: IdWriter) -> bool:
        """Return whether `ids` has a newer leader epoch. The feed may have to report lost records to its readers then."""
        epochs = self._ids.epochs
        return any(epoch > epochs.get(partition, epoch) for partition, epoch in ids.epochs.items())

    def has_diverged(self, ids: IdWriter) -> bool:
        """Return whether `ids` has read records that the log has lost, and replaced by records of a newer epoch.

        The feed reports no truncation if it has never read the lost records. A reader that was ahead may have read them.
        """
        current, offsets = self._ids.epochs, ids.offsets
        return any(
            epoch != current.get(partition)
            and self._read[partition].first_newer(epoch, offsets[partition]) < offsets[partition]
            for partition, epoch in ids.epochs.items()
        )
