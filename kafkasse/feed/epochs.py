"""Detects readers that have read records which a truncation removed from the log, by the leader epochs of their positions.

After a truncation, the log may have grown past a client's offset, so the offset alone does not show that records before it
were replaced. A leader epoch ends at the offset where the next epoch starts. A client that has read records of the epoch
after this offset has read lost records. EpochEnds asks the log where an epoch ends, for clients that return. FeedEpochs
compares the position of a reader with what a feed has read, before the reader joins it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kafkasse.feed.lookup import FreshLookup
from kafkasse.log import RECREATED_AT, UNKNOWN_EPOCH, Batch, EpochPosition, Gap, Log, OffsetRange, Partition
from kafkasse.log.epoch_history import EpochHistory
from kafkasse.records.position import IdWriter

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
        self, positions: Mapping[Partition, EpochPosition], held: Mapping[Partition, OffsetRange] | None = None
    ) -> dict[Partition, EpochPosition]:
        """Return those partitions in which a client has read lost records.

        The values are the offset of the first of these records, and the newest leader epoch before it.

        Args:
            positions: the positions of a client.
            held: the current offsets of the partitions, if known. They show which topics may have been recreated.

        Raises:
            Unavailable: the log does not answer.
        """
        ends = self._ends.get((each, position.epoch) for each, position in positions.items())
        diverged = {each: end for (each, _), end in ends.items() if end.offset < positions[each].offset}
        shorter = {
            each: positions[each].epoch
            for each, (_, end) in (held or {}).items()
            if each in positions and end < positions[each].offset
        }
        return diverged | {each: at for (each, _), at in self._recreated.get(shorter.items()).items()}


def _topic(key: _Key) -> str:
    return key[0].topic


def _look_up(
    look_up: Callable[[Mapping[Partition, int]], Mapping[Partition, EpochPosition]], keys: Iterable[_Key]
) -> dict[_Key, EpochPosition]:
    found: dict[_Key, EpochPosition] = {}
    remaining = set(keys)
    while remaining:
        epochs = dict(remaining)  # a request can contain one epoch of each partition
        values = look_up(epochs)
        found |= {(each, epoch): values[each] for each, epoch in epochs.items() if each in values}
        remaining -= epochs.items()
    return found


class FeedEpochs:
    """The leader epochs that a feed has read.

    Args:
        ids: the position of the feed, which moves.
    """

    def __init__(self, ids: IdWriter) -> None:
        self._ids = ids
        self._truncated_at: dict[Partition, int] = {}  # the offset of the last truncation
        self._read: defaultdict[Partition, EpochHistory]
        self.restart()

    def restart(self) -> None:
        """Forget what was read before the position of the feed."""
        known = {each: EpochHistory(self._ids.offsets[each], epoch) for each, epoch in self._ids.epochs.items()}
        self._read = defaultdict(EpochHistory, known)

    def append(self, batch: Batch) -> None:
        """Remember the epoch of a batch that the feed is about to append."""
        if batch.leader_epoch not in (UNKNOWN_EPOCH, self._ids.epochs.get(batch.partition)):
            start = batch.records[0].offset if batch.records else batch.next_offset - 1
            self._read[batch.partition].add(start, batch.leader_epoch)

    def truncate(self, gap: Gap) -> None:
        """Remember that the log was truncated at the end of this gap, to which the feed has moved."""
        self._truncated_at[gap.partition] = gap.end
        self._read[gap.partition].truncate(gap.end)

    def match(self, ids: IdWriter) -> bool:
        """Return whether a reader at `ids` has read the same log as the feed, as far as their epochs show."""
        return (
            all(self._follows_truncation(ids, *each) for each in self._truncated_at.items())
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
            epoch != current.get(each) and self._read[each].first_newer(epoch, offsets[each]) < offsets[each]
            for each, epoch in ids.epochs.items()
        )
