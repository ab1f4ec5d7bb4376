"""Finite reads: chunks contain every record once, and a full chunk follows from its offset and the log alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.errors import FilterError, KafkaUnavailable, OffsetGone, ServerFull, TopicGone
from kafkasse.feed import chunks, continuations
from kafkasse.feed.core import chunk as core
from kafkasse.feed.core.chunk import Chunk, TopicsChanged, plan
from kafkasse.feed.slots import Clients
from kafkasse.log import OffsetOutOfRange, OffsetRange, Partition, memory
from kafkasse.log.memory import MemoryCursor, MemoryLog
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import JsonLines
from kafkasse.records.position import of_topics, stream_offset
from kafkasse.route import NewestBy, StartAt
from tests.feed.world import World, before_next_lookup
from tests.support.waiting import wait_until

BLOCK = 10


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "BLOCK_OFFSETS", BLOCK)
        patch.setattr(core, "MAX_CHUNK_BYTES", 1500)  # about 14 records
        yield


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CHUNK_BLOCKS", 1)


class Source(World):
    """A log with finite reads of all topics."""

    def __init__(self, *partitions: int, **options: Any) -> None:
        topics = {f"t{at}": count for at, count in enumerate(partitions or (1,))}
        super().__init__(Encoder(wire=JsonLines(), **options), topics, kafka_timeout_s=0.2)
        self.topics = list(topics)

    def read(self, offset: str = "-1", topics: list[str] | None = None, **options: Any) -> Chunk:
        position = of_topics(topics or self.topics) if offset in ("-1", "now") else stream_offset.parse(offset)
        start_at = StartAt.LATEST if offset == "now" else StartAt.EARLIEST
        start = self.feeds.chunks.resolve(position, self.log.describe(position.topics), start_at, offset=offset)
        return self.feeds.chunks.read(
            start, self.encoder, None, Clients(""), options.get("newest_by"), self.feeds.stats["r"]
        )

    def read_to_end(self, offset: str = "-1") -> list[Chunk]:
        chunks = [self.read(offset)]
        while not chunks[-1].is_up_to_date:
            chunks.append(self.read(chunks[-1].next_offset))
        return chunks

    def fill(self, count: int, topic: str = "t0", partition: int = 0) -> None:
        self.write(*range(count), topic=topic, partition=partition)


def messages(*chunks: Chunk) -> list[Any]:
    return [message for chunk in chunks for message in json.loads(b"".join(chunk.parts))]


def places(*chunks: Chunk) -> list[tuple[str, int, int]]:
    metadata = [message["_kafka"] for message in messages(*chunks)]
    return [(place["topic"], place["partition"], place["offset"]) for place in metadata]


# Which records a chunk contains.


@pytest.mark.parametrize(
    ("offsets", "ends", "expected", "is_full"),
    [
        ([0], [25], {0: 20}, True),
        ([0], [19], {0: 10}, True),
        ([10], [35], {0: 20}, True),
        ([3], [25], {0: 10}, True),
        ([3], [10], {0: 10}, True),
        ([20], [25], {0: 25}, False),
        ([25], [25], {}, False),
        ([20, 10], [30, 20], {1: 20}, True),  # the lowest block
        ([10, 10], [30, 30], {0: 20}, True),
        ([20, 5], [30, 7], {0: 30}, True),  # an idle partition
        ([20, 5, 7], [25, 7, 7], {0: 25, 1: 7}, False),
        ([20, 5], [30, None], {0: 30}, True),  # no leader
        ([20, 5], [25, None], {0: 25}, False),
        ([152, 5], [180, 7], {1: 7}, False),  # the turn of others
        ([150, 6, 1], [180, 7, 7], {1: 7, 2: 7}, False),
        ([150, 5], [180, 5], {0: 160}, True),
        ([120, 5], [180, 7], {0: 140}, True),
        ([140, 5], [180, 7], {0: 150}, True),  # does not skip the turn of others
        ([144, 5], [180, 7], {0: 150}, True),
        ([10, 80, 60, 5], [90, 90, 90, 7], {2: 70}, True),
        ([20, 80, 210, 5], [90, 90, 220, 7], {2: 220}, True),
        ([20, 240, 210, 5], [90, 250, 220, 7], {3: 7}, False),
    ],
)
def test_plan(offsets, ends, expected, is_full):
    """A full chunk contains one partition, mostly the one with the lowest block. Other chunks contain all new records."""
    held = {Partition("t", at): OffsetRange(0, end) for at, end in enumerate(ends) if end is not None}

    planned = plan({Partition("t", at): offset for at, offset in enumerate(offsets)}, held)

    assert ({Partition("t", at): end for at, end in expected.items()}, is_full) == planned


@given(st.lists(st.integers(0, 45), min_size=1, max_size=4), st.data())
def test_chunks_contain_every_record_once(counts, data):
    """Also if records arrive between reads. The offsets of the chunks sort in the order of the stream."""
    source = Source(len(counts))
    for partition, count in enumerate(counts):
        source.fill(count, partition=partition)
    chunks = [source.read()]
    for _ in range(3):
        partition = data.draw(st.integers(0, len(counts) - 1))
        new = data.draw(st.integers(1, 25))
        source.fill(new, partition=partition)
        counts[partition] += new
        chunks += source.read_to_end(chunks[-1].next_offset)

    received = defaultdict(list)
    for _, partition, offset in places(*chunks):
        received[partition].append(offset)
    assert {at: list(range(count)) for at, count in enumerate(counts) if count} == received
    offsets = [chunk.next_offset for chunk in chunks]
    assert sorted(offsets) == offsets


@given(st.lists(st.integers(0, 45), min_size=1, max_size=4), st.data())
def test_a_full_chunk_is_the_same_at_every_server_and_time(counts, data):
    """The URL of a full chunk keeps its bytes while the same partitions have records, whatever arrives at their ends."""
    source = Source(len(counts))
    for partition, count in enumerate(counts):
        source.fill(count, partition=partition)
    full = [(offset, chunk) for offset, chunk in _path(source) if chunk.is_full]
    for partition, count in enumerate(counts):
        source.fill(data.draw(st.integers(0, 9 - count % BLOCK)), partition=partition)  # does not complete a block
    source.new_feeds()

    for offset, chunk in full:
        is_turn = (
            int(offset.partition(".")[0][1:]) - len(counts) if offset != "-1" else 0
        ) // BLOCK % core.TURN_BLOCKS == core.TURN_BLOCKS - 1
        assert is_turn or source.read(offset) == chunk


def _path(source: Source, offset: str = "-1") -> list[tuple[str, Chunk]]:
    path = []
    while True:
        chunk = source.read(offset)
        path.append((offset, chunk))
        if chunk.is_up_to_date:
            return path
        offset = chunk.next_offset


def test_clients_at_different_positions_request_the_same_offsets_later():
    """After two chunks of each partition. An idle partition has no influence."""
    source = Source(3)
    for partition, count in enumerate((0, 0, 3)):
        source.fill(count, partition=partition)
    starts = []
    for at in range(8):
        source.fill(at % 3, partition=0)
        source.fill(at % 2, partition=1)
        starts.append(source.read("now").next_offset)
    for partition in (0, 1):
        source.fill(55, partition=partition)

    paths = [[offset for offset, _ in _path(source, start)] for start in starts]

    assert len(set(starts)) > 5
    assert 1 == len({tuple(path[path.index(paths[0][4]) :]) for path in paths})


@pytest.mark.parametrize(
    ("weights", "behind", "share", "for_each"),
    [
        ((1, 1, 1), 5_000, 0.72, 2.0),
        ((1, 1, 1), 50_000, 0.94, 2.0),
        ((100, 10, 1), 5_000, 0.71, 1.4),
        ((100, 10, 1), 50_000, 0.86, 4.7),
        ((1, 1, 0), 5_000, 0.75, 1.5),
        ((1, 1, 0), 50_000, 0.96, 1.5),
        ((1,) * 12, 5_000, 0.0, 1.0),
        ((1,) * 12, 50_000, 0.84, 6.5),
    ],
)
def test_a_shared_cache_answers_most_requests_of_clients_that_return(monkeypatch, weights, behind, share, for_each):
    """1,000 clients were cut off at different positions, and return later. docs/cdn.md quotes some of these figures."""
    monkeypatch.setattr(core, "BLOCK_OFFSETS", 1000)
    clients, partitions = 1_000, [Partition("t", number) for number in range(len(weights))]
    ends = dict.fromkeys(partitions, 0)
    written = iter(Random(1).choices(partitions, weights, k=100_000 + clients + behind))  # noqa: S311 - not for secrets

    def write(count: int) -> None:
        for partition in islice(written, count):
            ends[partition] += 1

    write(100_000)
    positions = []
    for _ in range(clients):
        write(1)
        positions.append(dict(ends))
    write(behind)
    held = {partition: OffsetRange(0, end) for partition, end in ends.items()}
    requests = []
    for position in positions:
        while position != ends:
            requests.append(tuple(position.values()))
            position |= plan(position, held).ends

    assert share == round(1 - len(set(requests)) / len(requests), 2)
    assert for_each == round(len(set(requests)) / clients, 1)


def test_no_partition_waits_for_ever():
    """The client never reaches the end of one partition, and the other one is faster than the client."""
    source = Source(3)
    source.fill(500, partition=1)
    chunk = source.read()
    for _ in range(3):
        received = set()
        for _ in range(2 * core.TURN_BLOCKS * BLOCK):
            source.fill(1, partition=0)
            source.log.append("t0", json.dumps({"text": "x" * core.MAX_CHUNK_BYTES}).encode(), partition=2)
            source.fill(BLOCK, partition=1)
            chunk = source.read(chunk.next_offset)
            received |= {partition for _, partition, _ in places(chunk)}
        assert {0, 1, 2} == received


def test_a_chunk_is_limited_in_bytes():
    """It ends between two records, wherever batches and pieces end, and is full, because every server cuts it there."""
    source = Source()
    source.write(*range(4), topic="t0")
    source.log.append("t0", json.dumps({"text": "x" * 1400}).encode())
    source.write(*range(20), topic="t0")

    first, second, *_ = source.read_to_end()

    assert (5, True, False) == (len(messages(first)), first.is_full, first.is_up_to_date)
    assert [5, 6, 7, 8, 9] == [offset for _, _, offset in places(second)]
    assert core.MAX_CHUNK_BYTES <= first.size < core.MAX_CHUNK_BYTES + 1500


def test_the_last_chunk_is_limited_in_bytes_too():
    source = Source(4)
    for partition in range(4):
        source.fill(8, partition=partition)

    first, *rest = source.read_to_end()

    assert (False, False) == (first.is_full, first.is_up_to_date)
    assert first.size < core.MAX_CHUNK_BYTES + 150
    assert 32 == len(set(places(first, *rest)))


def test_a_chunk_that_ends_at_the_end_of_the_log_is_not_full():
    """A stored response that says that its client is up to date would stop clients that read to the end."""
    source = Source()
    source.fill(BLOCK)

    assert source.read().is_up_to_date
    assert not source.read().is_full
    source.fill(1)
    assert source.read().is_full


@pytest.mark.usefixtures("one_block")
def test_offsets_without_records_lead_to_an_empty_chunk():
    """Transaction markers and filtered records take up offsets."""
    source = Source(filterer=lambda message: message["n"] < 3)
    source.fill(25)
    for _ in range(7):
        source.log.append_marker("t0")

    chunks = source.read_to_end()

    assert [3, 0, 0, 0] == [len(messages(chunk)) for chunk in chunks]
    assert [11, 21, 31, 33] == [int(chunk.next_offset.partition(".")[0][1:]) for chunk in chunks]


@given(st.lists(st.lists(st.integers(1, 900), max_size=4), min_size=1, max_size=3))
def test_a_client_requests_no_empty_block(partitions):
    """Compaction may leave few records in many offsets. Each gap takes two chunks, if the turn of others is in it."""
    source = Source(len(partitions))
    for partition, gaps in enumerate(partitions):
        for gap in gaps:
            for _ in range(gap):
                source.log.append_marker("t0", partition)
            source.fill(1, partition=partition)

    chunks = source.read_to_end()

    assert sum(map(len, partitions)) == len(set(places(*chunks)))
    assert len(chunks) <= 4 * sum(map(len, partitions)) + 2 * core.TURN_BLOCKS


@pytest.mark.parametrize(
    ("offsets", "record", "expected"),
    [
        ([0], 505, 500),
        ([0], 25, 20),
        ([0], 605, 20),  # newer than the lookup
        ([0, 5], 505, 470),  # the last turn of others before the record
        ([5, 0], 145, 140),
    ],
)
def test_a_chunk_without_records_ends_at_the_next_one(offsets, record, expected):
    position = {Partition("t", at): offset for at, offset in enumerate(offsets)}

    assert expected == core.end_without_records(20, record, Partition("t", 0), position, OffsetRange(0, 600))


def test_a_partition_does_not_wait_for_one_with_empty_blocks():
    """The blocks with records are never those at the turn of others."""
    source = Source(2)
    source.fill(3, partition=1)
    for _ in range(20):
        source.fill(1)
        for _ in range(core.TURN_BLOCKS * BLOCK - 1):
            source.log.append_marker("t0")

    chunks = [source.read()]
    while len(chunks) < 4:
        chunks.append(source.read(chunks[-1].next_offset))

    assert [0, 1, 1, 1] == [partition for _, partition, _ in places(*chunks)]


def test_a_small_chunk_is_sent_at_once():
    source = Source(2)
    source.fill(3, partition=0)
    source.fill(3, partition=1)

    assert 1 == len(source.read().parts)


def test_an_etag_differs_if_anything_differs():
    chunk = Chunk((b"[]",), "b10.x", True, False, 0, read_at=0)
    changes: list[Any] = [{"parts": (b"[1]",)}, {"next_offset": "b11.x"}, {"is_up_to_date": True}]

    assert 4 == len({variant.etag for variant in (chunk, *(replace(chunk, **change) for change in changes))})
    assert chunk.etag == replace(chunk).etag


# Offsets that are gone.


def gone(source: Source, offset: str) -> tuple[dict[str, Any], str]:
    """Return the first gap that the error names, and its next offset."""
    with pytest.raises(OffsetGone) as error:
        source.read(offset)
    gap, *_ = error.value.extra["gaps"]
    assert error.value.headers["Stream-Next-Offset"] == error.value.extra["next_offset"]
    return gap, error.value.extra["next_offset"]


@pytest.mark.usefixtures("one_block")
def test_removed_records_are_gone():
    source = Source()
    source.fill(25)
    offset = source.read().next_offset
    source.new_feeds()
    source.log.drop_before("t0", 12)

    gap, next_offset = gone(source, offset)

    assert {"topic": "t0", "partition": 0, "from": 10, "to": 12, "reason": "removed by retention"} == gap
    assert ("t0", 0, 12) == places(source.read(next_offset))[0]
    assert ("t0", 0, 12) == places(source.read("-1"))[0]


def truncated_source(refilled: int) -> tuple[Source, str]:
    """Return a source that has lost the last three of eight records, and the offset after them."""
    source = Source()
    source.log.elect_leader("t0")
    source.fill(8)
    offset = source.read().next_offset
    source.log.truncate("t0", 5)
    source.fill(refilled)
    return source, offset


def test_truncated_records_are_gone():
    """The offset has the leader epoch of the last record, as event IDs do. The order of the offsets starts anew."""
    source, offset = truncated_source(refilled=10)

    gap, next_offset = gone(source, offset)

    assert {"topic": "t0", "partition": 0, "from": 8, "to": 5, "reason": "the log was truncated"} == gap
    assert next_offset < offset
    assert ("t0", 0, 5) == places(source.read(next_offset))[0]


def test_lost_records_are_noticed_without_new_records():
    """The log has as many records again, so that the client seems to be at its end."""
    source, offset = truncated_source(refilled=3)

    assert 5 == gone(source, offset)[0]["to"]


@pytest.mark.parametrize("has_new_leader", [False, True])
def test_the_offset_of_now_is_that_of_a_client_that_has_read_the_last_record(has_new_leader):
    """It has the leader epoch of this record, also if a new leader has not written any. So a truncation is noticed."""
    source = Source(2)
    source.log.elect_leader("t0")
    source.fill(8)
    for _ in range(3 if has_new_leader else 0):
        source.log.elect_leader("t0")
    offset = source.read("now").next_offset

    chunk = source.read()
    assert 8 == len(messages(chunk))
    assert chunk.next_offset == offset == source.read(offset).next_offset
    source.log.truncate("t0", 5)
    source.fill(3)
    assert 5 == gone(source, offset)[0]["to"]


@pytest.mark.parametrize("first", [0, 9])
def test_records_that_are_lost_during_a_read_are_gone(monkeypatch, first):
    """The cursor knows the leader epoch of the offset. Retention may remove the records that replaced the lost ones."""
    source = Source()
    source.log.elect_leader("t0")
    source.fill(8)
    offset = source.read().next_offset
    source.fill(1)

    class Cursor(MemoryCursor):
        def poll(self, timeout_s: float) -> Any:
            source.log.truncate("t0", 5)
            source.fill(10)
            before_next_lookup(source.log, lambda: source.log.drop_before("t0", first))
            return super().poll(timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(source.log, "cursor", lambda *args, **options: Cursor(source.log, *args, **options))
        gap, next_offset = gone(source, offset)

    assert 5 == gap["to"]
    assert ("t0", 0, max(5, first)) == places(source.read(next_offset))[0]


def test_an_offset_of_a_recreated_topic_is_gone():
    source = Source()
    source.fill(5)
    offset = source.read().next_offset
    source.log.delete("t0")
    source.log.create("t0")
    source.fill(8)

    gap, next_offset = gone(source, offset)

    assert "the topic was deleted and recreated" == gap["reason"]
    assert 8 == len(messages(source.read(next_offset)))


def test_records_that_are_removed_during_a_read_are_gone():
    source = Source()
    source.fill(25)

    class Cursor(MemoryCursor):
        def poll(self, timeout_s: float) -> Any:
            source.log.drop_before("t0", 15)
            return super().poll(timeout_s)

    source.log.cursor = lambda offsets, tail=False, epochs=None, topic_ids=None: Cursor(
        source.log, offsets, epochs, topic_ids
    )

    gap, _ = gone(source, "-1")

    assert (0, 15) == (gap["from"], gap["to"])


@pytest.mark.usefixtures("one_block")
def test_a_batch_that_cannot_be_read_is_a_gap():
    source = Source()
    source.fill(25)
    partition = Partition("t0", 0)

    class Cursor(MemoryCursor):
        failed = False

        def poll(self, timeout_s: float) -> Any:
            if not self.failed:
                self.failed = True
                raise OffsetOutOfRange([partition], unreadable={partition: (4, "the batch is damaged")})
            return super().poll(timeout_s)

    source.log.cursor = lambda offsets, tail=False, epochs=None, topic_ids=None: Cursor(
        source.log, offsets, epochs, topic_ids
    )

    gap, *rest = messages(chunk := source.read())

    assert {"event": "gap", "topic": "t0", "partition": 0, "from": 0, "to": 4, "reason": "the batch is damaged"} == gap
    assert {"the batch is damaged": 1} == source.feeds.stats["r"].gaps
    assert (6, "b11") == (len(rest), chunk.next_offset.partition(".")[0])


# Failures.


def test_an_error_does_not_discard_the_records_before_it():
    """The next read reports the error."""

    def reject(message: Any) -> bool:
        return bool(message["n"] / (message["n"] - 5))

    source = Source(filterer=reject)
    source.fill(9)

    first = source.read()

    assert ([1, 2, 3, 4], False) == ([message["n"] for message in messages(first)], first.is_up_to_date)
    with pytest.raises(FilterError):
        source.read(first.next_offset)


def test_a_partition_that_cannot_be_read_is_an_error():
    source = Source()
    source.fill(3)
    source.log.fail_partition("t0", TopicGone("The topic was deleted."))

    with pytest.raises(TopicGone):
        source.read()


def test_a_partition_without_a_leader_does_not_delay_the_others():
    """Its offset stays the same. Without a known offset, there is no position to return."""
    source = Source(2)
    source.fill(3, partition=0)
    offset = source.read("now").next_offset
    source.log.lose_leader("t0", 1)
    source.fill(2, partition=0)

    chunk = source.read(offset)

    assert ([("t0", 0, 3), ("t0", 0, 4)], False) == (places(chunk), chunk.is_up_to_date)
    for no_records in ("now", chunk.next_offset):
        with pytest.raises(KafkaUnavailable, match="The partition 1 of t0 has no leader"):
            source.read(no_records)


def test_a_chunk_that_is_incomplete_is_not_full():
    """Another read would return more."""
    source = Source()
    source.fill(25)
    read = source.log.read
    source.log.read = lambda partition, offset, epoch: (
        None
        if offset
        else read(partition, 0, epoch)._replace(records=read(partition, 0, epoch).records[:3], next_offset=3)
    )

    chunk = source.read()

    assert (3, False, False) == (len(messages(chunk)), chunk.is_full, chunk.is_up_to_date)


def test_a_log_that_sends_no_records_is_unavailable():
    source = Source()
    source.fill(3)
    source.log.read = lambda *_: None

    with pytest.raises(KafkaUnavailable, match=r"Kafka did not send the records within 0\.2 s"):
        source.read()
    assert 0 == source.log.open_cursors


def test_a_read_needs_a_slot_for_its_cursor():
    """Readers that catch up share the slots."""
    source = Source()
    source.fill(3)
    offset = source.read().next_offset
    source.fill(3)
    cursors = len(source.log.cursors)
    source.new_feeds(max_catch_ups=0, kafka_timeout_s=0.05)

    for newest_by in (None, NewestBy("v", 1000)):
        with pytest.raises(ServerFull, match="Too many clients are catching up"):
            source.read(offset, newest_by=newest_by)
    assert cursors == len(source.log.cursors)


# As for streams.


def test_new_partitions_and_topics_join():
    source = Source()
    source.fill(3)
    offset = source.read().next_offset
    source.log.create("t0", 2)
    source.fill(2, partition=1)

    assert [("t0", 1, 0), ("t0", 1, 1)] == places(source.read(offset))


def test_outdated_records_are_dropped():
    """The versions of the records before the chunk are read, so that each server drops the same records."""
    source = Source()
    for n, version in enumerate([1, 5, 2, 6, *range(7, 20)]):
        source.log.append("t0", b'{"n":%d}' % n, key=b"k", headers=[("v", b"%d" % version)])
    source.log.append("t0", b'{"n":17}', key=b"k", headers=[("v", b"3")])
    newest_by = NewestBy("v", 1000)
    first = source.read(newest_by=newest_by)

    second = source.read(first.next_offset, newest_by=newest_by)

    assert [0, 1, 3, *range(4, 10)] == [message["n"] for message in messages(first)]
    assert list(range(10, 17)) == [message["n"] for message in messages(second)]


# The next chunk of a client.


def test_the_next_chunks_need_no_new_cursors_and_lookups(monkeypatch):
    """The cursor of a partition continues with its next block, also if that of another partition was read in between."""
    lookups = []
    offset_ranges = MemoryLog.offset_ranges
    monkeypatch.setattr(MemoryLog, "offset_ranges", lambda *args: lookups.append(1) or offset_ranges(*args))
    source = Source(2)
    source.fill(35)
    source.fill(35, partition=1)

    chunks = source.read_to_end()

    assert [("t0", partition, offset) for partition in range(2) for offset in range(35)] == sorted(places(*chunks))
    assert 2 + 1 == len(source.log.cursors)  # those of full chunks, and that of the last one
    assert 2 == len(lookups)  # that of the first chunk, and before the last one


@pytest.mark.usefixtures("one_block")
def test_a_client_that_returns_later_notices_what_has_changed(monkeypatch):
    """Nothing is kept for longer than a moment."""
    monkeypatch.setattr(continuations, "MAX_AGE_S", 0.01)
    source, _ = truncated_source(refilled=25)
    first = source.read()
    wait_until(lambda: source.log.open_cursors == 0)
    source.log.drop_before("t0", 15)

    gap, _ = gone(source, first.next_offset)

    assert (10, 15) == (gap["from"], gap["to"])


@pytest.mark.usefixtures("one_block")
def test_a_client_that_reads_chunk_after_chunk_notices_what_has_changed(monkeypatch):
    """The position is resolved again when the last lookup is too old, although a cursor has fetched the records."""
    monkeypatch.setattr(chunks, "MAX_AGE_S", 0.0)
    source = Source()
    source.fill(35)
    first = source.read()
    source.log.drop_before("t0", 15)

    gap, _ = gone(source, first.next_offset)

    assert (10, 15) == (gap["from"], gap["to"])


@pytest.mark.usefixtures("one_block")
def test_a_cursor_that_was_kept_and_returns_nothing_makes_the_server_resolve_the_position_again(monkeypatch):
    """The log has lost all records after the position since the lookup, so the client is at its end."""
    monkeypatch.setattr(memory, "MAX_BATCH_RECORDS", BLOCK)  # the cursor has fetched no records of the next chunk
    source = Source()
    source.log.elect_leader("t0")
    source.fill(35)
    offset = source.read().next_offset
    source.log.truncate("t0", BLOCK)

    with pytest.raises(TopicsChanged):
        source.read(offset)
    chunk = source.read(offset)

    assert ([], True, offset) == (places(chunk), chunk.is_up_to_date, chunk.next_offset)
    assert 0 == source.log.open_cursors


@pytest.mark.usefixtures("one_block")
def test_a_chunk_ends_where_a_cursor_that_was_kept_returns_nothing(monkeypatch):
    """The log has lost some of the chunk's records since the lookup."""
    monkeypatch.setattr(memory, "MAX_BATCH_RECORDS", BLOCK)
    source = Source()
    source.log.elect_leader("t0")
    source.fill(35)
    offset = source.read().next_offset
    source.log.truncate("t0", BLOCK + 2)

    chunk = source.read(offset)
    last = source.read(chunk.next_offset)

    assert ([10, 11], False) == ([at for _, _, at in places(chunk)], chunk.is_full)
    assert (chunk.next_offset, True) == (last.next_offset, last.is_up_to_date)


def test_cursors_are_kept_for_a_few_clients_only():
    source = Source(*[1] * 20)
    for at in range(20):
        source.fill(25, f"t{at}")
        source.read(topics=[f"t{at}"])

    assert continuations.MAX_CURSORS == source.log.open_cursors


def test_the_cursor_of_an_incomplete_chunk_is_closed():
    source = Source()
    source.fill(5)

    source.read()

    assert (1, 0) == (len(source.log.cursors), source.log.open_cursors)


@pytest.mark.usefixtures("one_block")
def test_a_cursor_is_closed_after_an_error():
    source = Source(filterer=lambda message: 1 / (message["n"] - 12))
    source.fill(25)
    first = source.read()

    for _ in range(2):
        chunk = source.read(first.next_offset)
    with pytest.raises(FilterError):
        source.read(chunk.next_offset)

    assert 0 == source.log.open_cursors


@pytest.mark.usefixtures("one_block")
def test_a_cursor_that_was_kept_is_not_older_than_the_lookup(monkeypatch):
    """Otherwise, a client that reads slowly receives lost records for as long as the cursor has fetched some."""
    monkeypatch.setattr(chunks, "MAX_AGE_S", 0.0)
    source = Source()
    source.log.elect_leader("t0")
    source.fill(35)
    first = source.read()
    source.log.truncate("t0", 15)
    source.write(*range(100, 135), topic="t0")

    second = source.read(first.next_offset)

    assert [*range(10, 15), *range(100, 105)] == [message["n"] for message in messages(second)]
