"""The leader epochs in which a partition was read. This module does no I/O."""

from __future__ import annotations

from kafkasse.log import UNKNOWN_EPOCH

MAX_EPOCHS = 100  # remembered per partition; leaders change rarely


class EpochHistory:
    """The offset from which on each leader epoch was read, in one partition.

    Epochs only grow along a log. If a newer epoch than that of a record was read before this record's offset, the record
    belongs to a part of the log that was lost.

    Args:
        offset: where reading starts.
        epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.
    """

    __slots__ = ("_starts",)

    def __init__(self, offset: int = 0, epoch: int = UNKNOWN_EPOCH) -> None:
        self._starts: tuple[tuple[int, int], ...] = ()
        if epoch != UNKNOWN_EPOCH:
            self.add(offset - 1, epoch)

    def add(self, offset: int, epoch: int) -> None:
        """Add an epoch, which begins at `offset` or earlier in what is read from now on."""
        self._starts = (*self._starts[1 - MAX_EPOCHS :], (offset, epoch))

    def truncate(self, end: int) -> None:
        """Forget the epochs that began at `end` or later."""
        self._starts = tuple(start for start in self._starts if start[0] < end)

    def first_newer(self, epoch: int, default: int) -> int:
        """Return the first offset at which a newer epoch was read, or `default` if none was."""
        return min((start for start, started in self._starts if started > epoch), default=default)

    def before(self, offset: int) -> int:
        """Return the epoch in which the record before `offset` was read, or UNKNOWN_EPOCH."""
        return max((epoch for start, epoch in self._starts if start < offset), default=UNKNOWN_EPOCH)
