"""Where a reader resumes in a log that was truncated, recreated or shortened by retention, and which gaps it reports."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kafkasse.log import (
    RECREATED,
    TRUNCATED,
    UNKNOWN_EPOCH,
    Gap,
    OffsetAndEpoch,
    OffsetRange,
    Partition,
    gaps_on_resuming,
)

OFFSETS = st.integers(0, 12)


@given(OFFSETS, OFFSETS, OFFSETS, st.none() | OFFSETS, st.booleans())
@example(8, 4, 12, 6, False)  # truncated, and longer again
@example(8, 7, 12, 6, False)  # retention has removed the first records that differ
@example(8, 9, 12, 6, False)  # retention has also removed the record at the offset
@example(8, 0, 5, None, True)
def test_a_reader_receives_each_record_that_the_log_still_has_once(offset, start, count, diverged_at, is_recreated):
    """It skips only records that the log no longer holds, and reports each such gap. It moves back only with a gap.

    If the reader has read lost records, the first gap reports the truncation, wherever the log starts.
    """
    available = OffsetRange(start, start + count)
    if diverged_at is not None:
        diverged_at = min(diverged_at, available.end)
    divergence = None if diverged_at is None else OffsetAndEpoch(diverged_at, 3)
    same_until = 0 if is_recreated else min(offset, available.end if diverged_at is None else diverged_at)

    gaps = gaps_on_resuming(Partition("t", 0), offset, available, divergence, is_recreated)

    at = offset
    for gap in gaps:
        assert (gap.partition, gap.start) == (Partition("t", 0), at)
        at = gap.end
        if gap.epoch != UNKNOWN_EPOCH:  # the epoch of the record before the offset
            assert at == diverged_at
    assert at == max(start, same_until)
    if is_recreated:
        assert [RECREATED] == [gap.reason for gap in gaps]
    else:
        expected = [TRUNCATED] * (same_until < offset) + ["removed by retention"] * (min(offset, same_until) < start)
        assert expected == [gap.reason for gap in gaps]
        assert [gap.is_truncation for gap in gaps] == [gap.reason == TRUNCATED for gap in gaps]


def test_retention_does_not_hide_a_truncation():
    divergence = OffsetAndEpoch(6, 3)

    gaps = gaps_on_resuming(Partition("t", 0), 8, OffsetRange(10, 12), divergence)

    retention = Gap(Partition("t", 0), 6, 10, "removed by retention")
    assert [Gap(Partition("t", 0), 8, 6, TRUNCATED, 3), retention] == gaps


@given(OFFSETS, st.none() | OFFSETS)
def test_a_reader_keeps_its_offset_while_a_partition_has_no_leader(offset, diverged_at):
    """The cursor notices a truncation when the partition has a leader again."""
    divergence = None if diverged_at is None else OffsetAndEpoch(diverged_at, 3)

    assert [] == gaps_on_resuming(Partition("t", 0), offset, None, divergence)
