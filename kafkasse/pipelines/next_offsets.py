"""The next offset of each partition that a query reads, from the files and the progress that Spark writes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

NextOffsets: TypeAlias = dict[tuple[str, int], int]
"""(topic, partition) -> the next offset."""


def of_topics(topics: Mapping[str, Mapping[str, int]]) -> NextOffsets:
    """Return the offsets of a source, which Spark writes as `{"orders": {"0": 17}}`."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def of_progress(progress: Mapping[str, Any]) -> NextOffsets:
    """Return the offsets after a batch, given its progress."""
    offsets: NextOffsets = {}
    for source in progress["sources"]:
        offsets |= of_topics(source["endOffset"] or {})
    return offsets
