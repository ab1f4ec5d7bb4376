"""Where a reader resumes in a log that was truncated, recreated or shortened by retention, and which gap it reports."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kafkasse.log import RECREATED, TRUNCATED, UNKNOWN_EPOCH, OffsetAndEpoch, OffsetRange, Partition, gap_on_resuming

OFFSETS = st.integers(0, 12)


@given(OFFSETS, OFFSETS, OFFSETS, st.none() | OFFSETS, st.booleans())
@example(8, 4, 12, 6, False)  # truncated, and longer again
@example(8, 7, 12, 6, False)  # retention has removed the first records that differ
@example(8, 0, 5, None, True)
def test_a_reader_receives_each_record_that_the_log_still_has_once(offset, start, count, diverged_at, is_recreated):
    """It skips only records that the log no longer holds, and reports each such gap. It moves back only with a gap."""
    available = OffsetRange(start, start + count)
    if diverged_at is not None:
        diverged_at = min(diverged_at, available.end)
    divergence = None if diverged_at is None else OffsetAndEpoch(diverged_at, 3)
    same_until = 0 if is_recreated else min(offset, available.end if diverged_at is None else diverged_at)

    gap = gap_on_resuming(Partition("t", 0), offset, available, divergence, is_recreated)

    resumes_at = offset if gap is None else gap.end
    assert resumes_at == max(start, same_until)
    if resumes_at == offset and not is_recreated:
        assert gap is None
    if resumes_at != offset:
        assert gap is not None
        assert gap.start == offset
    if resumes_at < offset:
        assert gap.reason == (RECREATED if is_recreated else TRUNCATED)
    if gap is not None and gap.epoch != UNKNOWN_EPOCH:  # the epoch of the record before the offset
        assert resumes_at == diverged_at


@given(OFFSETS, st.none() | OFFSETS)
def test_a_reader_keeps_its_offset_while_a_partition_has_no_leader(offset, diverged_at):
    """The cursor notices a truncation when the partition has a leader again."""
    divergence = None if diverged_at is None else OffsetAndEpoch(diverged_at, 3)

    assert gap_on_resuming(Partition("t", 0), offset, None, divergence) is None
