"""The contract between kafkasse and the log that it reads, and a log in memory.

contract       partitions, offsets, records and cursors: what every log provides
memory         MemoryLog, a log in the memory of this process
epoch_history  the leader epochs in which a partition was read
"""

from kafkasse.log.contract import (
    RECREATED,
    RECREATED_AT,
    TRUNCATED,
    UNKNOWN_EPOCH,
    Batch,
    Cursor,
    Epochs,
    Gap,
    Log,
    OffsetAndEpoch,
    OffsetOutOfRange,
    OffsetRange,
    Offsets,
    Partition,
    PartitionsFailed,
    Ranges,
    Record,
    Resumption,
    Topic,
    Topics,
    Total,
    gaps_on_resuming,
)

__all__ = [
    "RECREATED", "RECREATED_AT", "TRUNCATED", "UNKNOWN_EPOCH", "Batch", "Cursor", "Epochs", "Gap", "Log", "OffsetAndEpoch",
    "OffsetOutOfRange", "OffsetRange", "Offsets", "Partition", "PartitionsFailed", "Ranges", "Record", "Resumption",
    "Topic", "Topics", "Total", "gaps_on_resuming",
]  # fmt: skip
