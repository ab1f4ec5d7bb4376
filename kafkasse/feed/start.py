"""Resolve a position: the lookups with which core/start.py finds the offset at which a stream starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from kafkasse.feed.core.start import Describe, FindDiverged, FindRanges, FindTimestamps, ResolvedPosition, find_starts
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.lookup import OffsetRanges
from kafkasse.log import Log, Topics
from kafkasse.records.position import IdType, Position
from kafkasse.route import StartAt


def resolve(
    log: Log,
    position: Position,
    topics: Topics,
    start_at: StartAt,
    since: int | None = None,
    id_type: IdType = IdType.OFFSET,
    epoch_ends: EpochEnds | None = None,
    offset_ranges: OffsetRanges | None = None,
    describe: Callable[[Collection[str]], Topics] | None = None,
) -> ResolvedPosition:
    """Run find_starts(), which describes the other arguments and errors, with the lookups that it needs.

    Args:
        log: the log that holds the topics.
        topics: every topic of the position, as log.describe() returns it.
        epoch_ends: compares the leader epochs of the position with those of the log. None: do not compare them.
        offset_ranges, describe: share lookups with other callers. None: ask the log.

    Raises:
        KafkasseError: the position is not valid.
        TopicNotAvailable: a topic was deleted meanwhile.
        Unavailable: the log does not answer.
    """
    steps = find_starts(position, topics, start_at, since, id_type, time.time_ns() // 1_000_000)
    answer: Any = None
    while True:
        try:
            lookup = steps.send(answer)
        except StopIteration as end:
            resolved: ResolvedPosition = end.value
            return resolved
        match lookup:
            case FindRanges(partitions):
                answer = (offset_ranges.get if offset_ranges else log.offset_ranges)(partitions)
            case FindTimestamps(timestamps):
                answer = log.offsets_at(timestamps)
            case FindDiverged(positions, known):
                answer = epoch_ends.diverged_at(positions, known) if epoch_ends else {}
            case Describe(names):
                answer = (describe or log.describe)(names)
