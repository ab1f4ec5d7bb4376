"""Where a stream begins: what a client said meets what the log holds, and whatever is lost between them is declared."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kafkasse.errors import InvalidPosition
from kafkasse.feed.start import ResolvedPosition, resolve
from kafkasse.log import Gap, Partition
from kafkasse.memory_log import MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import StartAt

ZERO, ONE = Partition("t", 0), Partition("t", 1)
RETENTION, TRUNCATED, REMADE = "removed by retention", "the log was truncated", "the topic was deleted and recreated"


@pytest.fixture
def log() -> MemoryLog:
    """t/0 holds offsets 2 to 5 with times 1002 to 1005; t/1 holds nothing."""
    log = MemoryLog()
    log.create("t", 2)
    for offset in range(6):
        log.append("t", b"{}", timestamp=1000 + offset)
    log.drop_before("t", 2)
    return log


def entry(partition: int = 0, **members: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": partition} | members


def opened(
    log: MemoryLog, *entries: object, start_at: StartAt = StartAt.LATEST, since: int | None = None
) -> ResolvedPosition:
    """The opening of a client that sent these entries, or only named the topic."""
    position = parse(json.dumps(entries)) if entries else of_topics(["t"])
    return resolve(log, position, log.describe(position.topics), start_at, since)


def told(log: MemoryLog) -> str:
    return log.describe(["t"])["t"].topic_id


# Clients that say nothing but the topic.


@pytest.mark.parametrize(
    ("start_at", "offsets"), [(StartAt.LATEST, (6, 0)), (StartAt.EARLIEST, (2, 0)), (StartAt.SNAPSHOT, (2, 0))]
)
def test_without_an_id_the_route_says_where(log: MemoryLog, start_at: StartAt, offsets: tuple[int, int]) -> None:
    """The end, or the first record that is still there, as real offsets of every partition; nothing is lost by that."""
    opening = opened(log, start_at=start_at)

    assert dict(zip((ZERO, ONE), offsets, strict=True)) == opening.offsets
    assert ([], frozenset(), {"t": told(log)}) == (opening.gaps, opening.partial_topics, opening.topic_ids)
    assert (start_at is StartAt.SNAPSHOT) == opening.snapshot


@pytest.mark.parametrize(("since", "offset"), [(0, 2), (1003, 3), (1006, 6)])
def test_since_a_time(log: MemoryLog, since: int, offset: int) -> None:
    """The first record at or after the time, the end after the last one: also where the route would begin elsewhere."""
    for start_at in StartAt:
        opening = opened(log, start_at=start_at, since=since)

        assert {ZERO: offset, ONE: 0} == opening.offsets
        assert not opening.snapshot


# Entries written by hand, or by KafkaSSE.


def test_just_what_is_listed(log: MemoryLog) -> None:
    """An entry stands for its partition alone, and the stream stays with it."""
    opening = opened(log, entry(offset=4))

    assert ({ZERO: 4}, frozenset({"t"})) == (opening.offsets, opening.partial_topics)


def test_an_entry_beside_the_topics_name(log: MemoryLog) -> None:
    """With the name beside it, the other partitions are the route's to place."""
    opening = opened(log, "t", entry(1, offset=0), start_at=StartAt.EARLIEST)

    assert ({ZERO: 2, ONE: 0}, frozenset()) == (opening.offsets, opening.partial_topics)


def test_times_offsets_and_both(log: MemoryLog) -> None:
    """A time finds its offset; where both stand the offset counts, whatever else is in the id."""
    assert {ZERO: 3, ONE: 0} == opened(log, entry(timestamp=1003), entry(1, offset=0, timestamp=9999)).offsets
    assert {ZERO: 5, ONE: 0} == opened(log, entry(offset=5, timestamp=1003), entry(1, timestamp=0)).offsets
    assert {ZERO: 6} == opened(log, entry(timestamp=9999)).offsets


def test_a_partition_that_there_is_not(log: MemoryLog) -> None:
    """It is refused with what there is; KafkaSSE's client waits for ever."""
    with pytest.raises(InvalidPosition, match="no partition 2 in t: it has 2") as refused:
        opened(log, entry(2, offset=0))

    assert ("t", 2) == (refused.value.extra["topic"], refused.value.extra["partition"])


def test_an_offset_that_nobody_told(log: MemoryLog) -> None:
    """An offset beyond the end that no id of ours held is refused with the end; the end itself is fine."""
    with pytest.raises(InvalidPosition, match="beyond its end, 6") as refused:
        opened(log, entry(offset=7))

    assert 6 == refused.value.extra["end"]
    assert {ZERO: 6} == opened(log, entry(offset=6)).offsets


def test_what_retention_took_is_declared(log: MemoryLog) -> None:
    """Records between the id and the first one there is are a gap; an id at the first one is none."""
    opening = opened(log, entry(offset=0))

    assert ({ZERO: 2}, [Gap(ZERO, 0, 2, RETENTION)]) == (opening.offsets, opening.gaps)
    assert [] == opened(log, entry(offset=2)).gaps


def test_the_time_of_a_beginning(log: MemoryLog) -> None:
    """Ids of time go on from now where the stream begins at the end, and else from where nothing can be lost."""
    before = time.time_ns() // 1_000_000

    at_end, at_first = opened(log).timestamps, opened(log, start_at=StartAt.EARLIEST).timestamps
    at_time, at_offset = opened(log, since=1003).timestamps, opened(log, entry(offset=4)).timestamps

    assert before <= at_end[ZERO] <= time.time_ns() // 1_000_000
    assert {ZERO: 1003, ONE: 1003} == at_time
    assert (0, 0) == (at_first[ZERO], at_offset[ZERO])


# Ids that we wrote.


def test_a_partition_that_was_added_since(log: MemoryLog) -> None:
    """An id of ours names all partitions there were: one that is missing is new, and read from its first record."""
    log.append("t", b"{}", 1)
    log.append("t", b"{}", 1)
    log.drop_before("t", 1, 1)

    opening = opened(log, entry(offset=5, topic_id=told(log)))

    assert {ZERO: 5, ONE: 1} == opening.offsets
    assert [] == opening.gaps


def test_a_log_that_was_truncated(log: MemoryLog) -> None:
    """An id of ours beyond the end means that the log has lost what it had: it goes on at the end, and says so."""
    opening = opened(log, entry(offset=9, topic_id=told(log)), entry(1, offset=0))

    assert {ZERO: 6, ONE: 0} == opening.offsets
    assert [Gap(ZERO, 9, 6, TRUNCATED)] == opening.gaps


def test_a_topic_made_again(log: MemoryLog) -> None:
    """The old topic's offsets are not used for the new one: all of it is read, and a gap stands for the rest of the old."""
    before = told(log)
    log.delete("t")
    log.create("t", 1)
    for _ in range(9):
        log.append("t", b"{}")

    opening = opened(log, entry(offset=5, topic_id=before), entry(1, offset=3))

    assert {ZERO: 0} == opening.offsets
    assert [Gap(ZERO, 5, 0, REMADE)] == opening.gaps
    assert {"t": told(log)} == opening.topic_ids


def test_another_cluster(log: MemoryLog) -> None:
    """An id that tells offsets and times goes by time where the topic is another creation, and nothing is declared lost."""
    opening = opened(log, entry(offset=99, timestamp=1004, topic_id="elsewhere"), entry(1, offset=3, timestamp=1004))

    assert ({ZERO: 4, ONE: 0}, []) == (opening.offsets, opening.gaps)


def test_a_cluster_without_topic_ids(log: MemoryLog) -> None:
    """Where no topic_id is known, names have to do."""
    assert {ZERO: 4, ONE: 0} == opened(log, entry(offset=4, topic_id="")).offsets


def test_an_id_of_ours_with_just_some_partitions(log: MemoryLog) -> None:
    """A stream of some partitions stays one when it is resumed."""
    opening = opened(log, entry(1, offset=0, topic_id=told(log), only=True))

    assert ({ONE: 0}, frozenset({"t"})) == (opening.offsets, opening.partial_topics)


def test_a_snapshot_is_not_taken_twice(log: MemoryLog) -> None:
    """Who comes back with an id has the table: it goes on from there."""
    assert not opened(log, entry(offset=5, topic_id=told(log)), start_at=StartAt.SNAPSHOT).snapshot
