"""Where a stream starts: the client's position is resolved against the offsets that the log holds."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkasse.errors import InvalidPosition, TopicGone, Unavailable
from kafkasse.feed.core.start import (
    Describe,
    FindDiverged,
    FindRanges,
    FindTimestamps,
    ResolvedPosition,
    check_partitions,
    find_starts,
)
from kafkasse.feed.start import resolve
from kafkasse.log import Gap, OffsetRange, Partition, Topic
from kafkasse.log.memory import MemoryLog
from kafkasse.records.position import IdType, Place, Position, of_topics, parse
from kafkasse.route import StartAt

ZERO, ONE = Partition("t", 0), Partition("t", 1)
ISSUED = "memory1"  # the ID of the topic
RETENTION, TRUNCATED, RECREATED = "removed by retention", "the log was truncated", "the topic was deleted and recreated"


@pytest.fixture
def log() -> MemoryLog:
    """t/0 holds offsets 2 to 5 with timestamps 1002 to 1005; t/1 is empty."""
    log = MemoryLog()
    log.create("t", 2)
    for offset in range(6):
        log.append("t", b"{}", timestamp=1000 + offset)
    log.drop_before("t", 2)
    return log


class Counted(dict[Partition, Place]):
    """A dict that counts how many of its entries are visited."""

    visited = 0

    def __iter__(self) -> Iterator[Partition]:
        for partition in super().__iter__():
            self.visited += 1
            yield partition


def entry(partition: int = 0, **members: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": partition} | members


def resolved(log, *entries, start_at=StartAt.LATEST, since=None) -> ResolvedPosition:
    """Resolve the position of a client that sent these entries, or only the topic's name."""
    position = parse(json.dumps(entries)) if entries else of_topics(["t"])
    return resolve(log, position, log.describe(position.topics), start_at, since)


def topic_id_of(log: MemoryLog) -> str:
    return log.describe(["t"])["t"].topic_id


@pytest.mark.parametrize(
    ("start_at", "offsets"), [(StartAt.LATEST, (6, 0)), (StartAt.EARLIEST, (2, 0)), (StartAt.SNAPSHOT, (2, 0))]
)
def test_the_route_decides_where_a_client_without_an_event_id_starts(log, start_at, offsets):
    """The stream starts at the end or at the first record of every partition, without gaps."""
    start = resolved(log, start_at=start_at)

    assert dict(zip((ZERO, ONE), offsets, strict=True)) == start.offsets
    assert ([], frozenset(), {"t": topic_id_of(log)}) == (start.gaps, start.partial_topics, start.topic_ids)
    assert (start_at is StartAt.SNAPSHOT) == start.snapshot


@pytest.mark.parametrize(("since", "offset"), [(0, 2), (1003, 3), (1006, 6)])
def test_since_starts_at_the_first_record_at_or_after_a_time(log, since, offset):
    """A time after the last record is the end. `since` takes precedence over the route."""
    for start_at in StartAt:
        start = resolved(log, start_at=start_at, since=since)

        assert {ZERO: offset, ONE: 0} == start.offsets
        assert not start.snapshot


# What a client sends, the offsets and the gaps of its stream, and whether the stream omits the topic's other partitions.
POSITIONS = {
    "one partition": ([entry(offset=4)], {ZERO: 4}, [], True),
    "the other partitions start as the route says": (["t", entry(1, offset=0)], {ZERO: 6, ONE: 0}, [], False),
    "a timestamp": ([entry(timestamp=1003), entry(1, offset=0)], {ZERO: 3, ONE: 0}, [], True),
    "an offset and a timestamp": ([entry(offset=5, timestamp=1003), entry(1, timestamp=0)], {ZERO: 5, ONE: 0}, [], True),
    "a timestamp after the last record": ([entry(timestamp=9999)], {ZERO: 6}, [], True),
    "the end": ([entry(offset=6)], {ZERO: 6}, [], True),
    "the first record": ([entry(offset=2)], {ZERO: 2}, [], True),
    "records that retention removed": ([entry(offset=0)], {ZERO: 2}, [Gap(ZERO, 0, 2, RETENTION)], True),
    "records that a truncation removed": (
        [entry(offset=9, topic_id=ISSUED), entry(1, offset=0)], {ZERO: 6, ONE: 0}, [Gap(ZERO, 9, 6, TRUNCATED)], False,
    ),
    "an event ID of another cluster": (
        [entry(offset=99, timestamp=1004, topic_id="elsewhere"), entry(1, offset=3, timestamp=1004)],
        {ZERO: 4, ONE: 0}, [], False,
    ),
    "a cluster without topic IDs": ([entry(offset=4, topic_id="")], {ZERO: 4, ONE: 0}, [], False),
    "an event ID of one partition": ([entry(1, offset=0, topic_id=ISSUED, only=True)], {ONE: 0}, [], True),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "offsets", "gaps", "is_partial"), POSITIONS.values(), ids=POSITIONS)
def test_a_stream_starts_at_the_position_of_the_client(log, entries, offsets, gaps, is_partial):
    """An offset takes precedence over a timestamp. Records that the log has lost are a gap."""
    start = resolved(log, *entries)

    assert (offsets, gaps) == (start.offsets, start.gaps)
    assert is_partial is ("t" in start.partial_topics)


@pytest.mark.parametrize("start_at", StartAt)
def test_the_offset_minus_one_is_the_end(log, start_at):
    """KafkaSSE's IDs contain it for partitions without records. The route, a timestamp and an epoch do not matter."""
    start = resolved(log, entry(offset=-1, timestamp=1003, leader_epoch=7), entry(1, timestamp=0), start_at=start_at)

    assert ({ZERO: 6, ONE: 0}, [], {}) == (start.offsets, start.gaps, start.epochs)


def test_the_offset_minus_one_of_a_recreated_topic_is_its_end(log):
    """The client has no records of the former topic, so it misses none. A partition that no longer exists is a gap."""
    start = resolved(log, entry(offset=-1, topic_id="former"), entry(1, offset=0), entry(2, offset=-1))

    assert {ZERO: 6, ONE: 0} == start.offsets
    assert Gap(Partition("t", 2), 0, 0, RECREATED) == start.gaps[-1]


def test_rejects_a_partition_that_does_not_exist(log):
    """The error says which partitions exist. KafkaSSE's client waits forever."""
    with pytest.raises(InvalidPosition, match="no partition 2 in t: it has 2") as rejected:
        resolved(log, entry(2, offset=0))

    assert ("t", 2) == (rejected.value.extra["topic"], rejected.value.extra["partition"])


def test_checks_the_partitions_of_many_topics_in_linear_time(log):
    """The check visits each of the 2,500 entries once, not once for each of the 50 topics."""
    for number in range(50):
        log.create(f"many.{number}", 50)
    names = [f"many.{number}" for number in range(50)]
    starts = Counted({Partition(name, index): Place(0) for name in names for index in range(50)})

    check_partitions(Position(starts), log.describe(names))

    assert 2500 == starts.visited


def test_rejects_an_offset_beyond_the_end_that_kafkasse_did_not_issue(log):
    """The error names the end. The end itself is valid."""
    with pytest.raises(InvalidPosition, match="beyond its end, 6") as rejected:
        resolved(log, entry(offset=7))

    assert 6 == rejected.value.extra["end"]
    assert {ZERO: 6} == resolved(log, entry(offset=6)).offsets


def test_knows_the_timestamp_of_a_position_only_if_the_client_sent_it(log):
    """The event ID contains the offset of a partition whose timestamp is unknown. A guessed timestamp could skip records."""
    assert {ZERO: 1003, ONE: 1003} == resolved(log, since=1003).timestamps
    assert {ZERO: 1003} == resolved(log, entry(offset=4, timestamp=1003), entry(1, offset=0)).timestamps
    assert {} == resolved(log).timestamps == resolved(log, start_at=StartAt.EARLIEST).timestamps


def test_an_event_id_for_a_copy_has_a_timestamp_only_at_the_end(log):
    """At the end of a partition, new records have later timestamps. Elsewhere, a guessed timestamp could skip records."""
    position, topics = of_topics(["t"]), log.describe(["t"])

    at_end = resolve(log, position, topics, StartAt.LATEST, id_type=IdType.BOTH)
    at_start = resolve(log, position, topics, StartAt.EARLIEST, id_type=IdType.BOTH)

    assert {ZERO, ONE} == at_end.timestamps.keys()
    assert {ONE} == at_start.timestamps.keys()


def test_reads_a_partition_that_was_added_since_from_its_start(log):
    """An event ID of kafkasse lists all partitions that existed when it was issued, so a missing partition is new.

    If retention has removed its first records, the client has lost them.
    """
    log.append("t", b"{}", 1)
    log.append("t", b"{}", 1)
    log.drop_before("t", 1, 1)

    start = resolved(log, entry(offset=5, topic_id=topic_id_of(log)))

    assert {ZERO: 5, ONE: 1} == start.offsets
    assert [(ONE, 0, 1)] == [(gap.partition, gap.start, gap.end) for gap in start.gaps]


def test_keeps_the_leader_epoch_of_an_offset_that_does_not_change(log):
    """The epoch belongs to the record before that offset. Without it, kafkasse could not detect a later truncation."""
    log.elect_leader("t")
    epoch = entry(offset=6, leader_epoch=0)

    assert {ZERO: 0} == resolved(log, epoch).epochs
    log.drop_before("t", 6)
    assert {} == resolved(log, entry(offset=1, leader_epoch=0)).epochs


def test_a_recreated_topic_is_read_from_its_start(log):
    """The old offsets are ignored, and the rest of the old topic is a gap, even in partitions that no longer exist."""
    before = topic_id_of(log)
    log.delete("t")
    log.create("t", 1)
    for _ in range(9):
        log.append("t", b"{}")

    start = resolved(log, entry(offset=5, topic_id=before), entry(1, offset=3))

    assert {ZERO: 0} == start.offsets
    assert [Gap(ZERO, 5, 0, RECREATED), Gap(ONE, 3, 0, RECREATED)] == start.gaps
    assert {"t": topic_id_of(log)} == start.topic_ids


def decided(start: int, end: int, described: dict[str, Topic]) -> tuple[list[type], ResolvedPosition]:
    """Return the lookups for a client at offset 4 of t/0, which holds `[start, end)`, and where its stream starts."""
    position = parse(json.dumps([entry(offset=4, topic_id="former", leader_epoch=2)]))
    steps = find_starts(position, {"t": Topic(1, "former")}, StartAt.LATEST, None, IdType.OFFSET, now_ms=0)
    answers: dict[type, Any] = {FindRanges: {ZERO: OffsetRange(start, end)}, FindTimestamps: {}, FindDiverged: {}}
    answers[Describe] = described
    lookups = [type(next(steps))]
    while True:
        try:
            lookups.append(type(steps.send(answers[lookups[-1]])))
        except StopIteration as end_of_lookups:
            return lookups, end_of_lookups.value


FIRST_LOOKUPS = [FindRanges, FindTimestamps, FindDiverged]


@pytest.mark.parametrize(("start", "end"), [(0, 2), (8, 9)])
def test_a_topic_that_is_recreated_during_the_lookups_is_not_a_log_that_lost_records(start, end):
    """The topic is described again, and its offsets are looked up again."""
    lookups, resolved = decided(start, end, {"t": Topic(1, "new")})

    assert [*FIRST_LOOKUPS, Describe, *FIRST_LOOKUPS] == lookups
    assert ([Gap(ZERO, 4, start, RECREATED)], {"t": "new"}) == (resolved.gaps, resolved.topic_ids)


@pytest.mark.parametrize("described", [Topic(1, "former"), Topic(0, "", Unavailable("no answer"))])
def test_a_truncated_log_is_described_once_more(described):
    """The client receives the gap if the topic ID has not changed, or if the cluster cannot describe the topic now."""
    lookups, resolved = decided(0, 2, {"t": described})

    assert [*FIRST_LOOKUPS, Describe] == lookups
    assert ([Gap(ZERO, 4, 2, TRUNCATED)], {"t": "former"}) == (resolved.gaps, resolved.topic_ids)


def test_a_topic_that_is_deleted_during_the_lookups_is_gone():
    with pytest.raises(TopicGone):
        decided(0, 2, {})


def test_a_position_that_the_log_holds_needs_no_second_description():
    lookups, resolved = decided(0, 9, {})

    assert FIRST_LOOKUPS == lookups
    assert {ZERO: 4} == resolved.offsets


def test_reports_a_recreated_topic_that_has_none_of_the_selected_partitions(log):
    """A stream without partitions would never receive a record."""
    before = topic_id_of(log)
    log.delete("t")
    log.create("t", 1)

    with pytest.raises(TopicGone, match="none of those"):
        resolved(log, entry(1, offset=3, topic_id=before, only=True))


def test_a_client_that_resumes_receives_no_second_snapshot(log):
    """It already has the table, and continues from its event ID."""
    assert not resolved(log, entry(offset=5, topic_id=topic_id_of(log)), start_at=StartAt.SNAPSHOT).snapshot


@pytest.mark.parametrize("start_at", StartAt)
def test_a_partition_without_a_leader_starts_when_it_has_one(log, start_at):
    """The other partition starts at once. The timestamp selects the record at which the partition starts later."""
    before_ms = time.time_ns() // 1_000_000
    log.lose_leader("t")

    start = resolved(log, start_at=start_at)

    assert {ONE: 0} == start.offsets
    assert (start.pending[ZERO] >= before_ms) if start_at is StartAt.LATEST else {ZERO: 0} == start.pending


def test_a_recreated_topic_without_a_leader_is_read_from_its_first_offset(log):
    """The client learns that the records of the former topic are lost, although no leader can tell what the topic holds."""
    log.lose_leader("t")

    start = resolved(log, entry(offset=4, topic_id="former"), entry(1, offset=0))

    assert {ZERO: 0, ONE: 0} == start.offsets
    assert {} == start.pending
    assert Gap(ZERO, 4, 0, RECREATED) in start.gaps


@pytest.mark.parametrize("offset", [0, 4])
def test_a_client_keeps_its_offset_in_a_partition_without_a_leader(log, offset):
    """The cursor waits for the leader. A timestamp waits too, because only the leader can resolve it."""
    log.lose_leader("t")

    by_offset = resolved(log, entry(offset=offset, topic_id=topic_id_of(log)), entry(1, offset=0))
    by_time = resolved(log, entry(timestamp=1003), entry(1, offset=0))

    assert ({ZERO: offset, ONE: 0}, {}) == (by_offset.offsets, by_offset.pending)
    assert ({ONE: 0}, {ZERO: 1003}) == (by_time.offsets, by_time.pending)
