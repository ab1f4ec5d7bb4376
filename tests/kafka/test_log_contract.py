"""The contract in kafkasse/log/contract.py, tested against MemoryLog and KafkaLog."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol

import gevent
import pytest
from kafka.admin import OffsetSpec

from kafkasse.errors import ConfigurationError, KafkaUnavailable, TopicNotAvailable
from kafkasse.kafka import batches
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, Cursor, Log, OffsetAndEpoch, OffsetOutOfRange, OffsetRange, Partition, Topic
from kafkasse.log.memory import MemoryLog
from kafkasse.records.position.position import INT32_MAX
from kafkasse.tools.broker import EmbeddedBroker
from tests.kafka.logs import POLL_TIMEOUT_S, KafkaWriter, open_log, take, values
from tests.support.broker_versions import WITHOUT_TOPIC_IDS


class Writer(Protocol):
    """Changes the topics that a log reads."""

    def create(self, topic: str, partitions: int = 1) -> object: ...
    def send(self, topic: str, *values: bytes | None, partition: int = 0, **rest: Any) -> list[int]: ...
    def skip(self, topic: str) -> None: ...
    def grow(self, topic: str, partitions: int) -> None: ...
    def drop_before(self, topic: str, offset: int, partition: int = 0) -> None: ...
    def delete(self, topic: str) -> None: ...


class MemoryWriter:
    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.create = self.grow = log.create
        self.drop_before, self.delete, self.skip = log.drop_before, log.delete, log.append_marker

    def send(
        self, topic: str, *values: bytes | None, partition: int = 0, timestamp_ms: int | None = None, **rest: Any
    ) -> list[int]:
        return [self._log.append(topic, value, partition, timestamp=timestamp_ms, **rest) for value in values]


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[KafkaWriter]:
    with closing(KafkaWriter(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_log(broker: EmbeddedBroker) -> Iterator[KafkaLog]:
    with closing(open_log(broker.bootstrap_servers)) as log:
        yield log


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.processes)])
def world(request: pytest.FixtureRequest) -> tuple[Log, Writer]:
    """A log and a writer. test_batches.py tests both decoders of KafkaLog in all cases."""
    if request.param == "memory":
        log = MemoryLog()
        return log, MemoryWriter(log)
    return request.getfixturevalue("kafka_log"), request.getfixturevalue("cluster")


@pytest.fixture
def needs_topic_ids() -> None:
    if os.environ.get("BROKER_VERSION") in WITHOUT_TOPIC_IDS:
        pytest.skip("this broker has no topic IDs")


@pytest.fixture(params=["compiled", "python"])
def both_decoders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with both decoders: the compiled one has no wheel for some platforms."""
    assert batches.CompiledDecoder is not None
    if request.param == "python":
        monkeypatch.setattr(batches, "CompiledDecoder", None)


@pytest.fixture
def log(world: tuple[Log, Writer]) -> Log:
    return world[0]


@pytest.fixture
def writer(world: tuple[Log, Writer]) -> Writer:
    return world[1]


@pytest.fixture
def topic(writer: Writer, fresh_name: str) -> str:
    writer.create(fresh_name, 2)
    return fresh_name


def test_lists_the_topics(log, writer, topic):
    writer.create(f"{topic}-deleted")
    writer.delete(f"{topic}-deleted")

    names = log.topic_names()

    assert (True, False) == (topic in names, f"{topic}-deleted" in names)


@pytest.fixture(params=["catch up", "tail"])
def read(request: pytest.FixtureRequest, log: Log) -> Iterator[Callable[..., Cursor]]:
    """Opens cursors for tails and cursors for catching up."""
    opened: list[Cursor] = []

    def cursor(offsets: dict[Partition, int], *epochs: dict[Partition, int], **topic_ids: dict[str, str]) -> Cursor:
        opened.append(log.cursor(offsets, request.param == "tail", *epochs, **topic_ids))
        return opened[-1]

    yield cursor
    for opened_cursor in [*opened, *opened]:  # a second call of close() has no effect
        opened_cursor.close()


# Topics and offsets


def test_describes_existing_topics(log, topic):
    """Topics that do not exist are absent, whatever their names."""
    topics = log.describe([topic, f"{topic}-missing", "no topic", "ü", "", "x" * 300, "."])

    assert [topic] == list(topics)
    assert 2 == topics[topic].partitions
    assert {} == log.describe([])


@pytest.mark.usefixtures("needs_topic_ids")
def test_recreated_topic_has_another_id(log, writer, topic):
    """A topic that gets more partitions keeps its topic ID. A topic that is deleted and recreated does not."""
    before = log.describe([topic])[topic]

    writer.grow(topic, 3)
    grown = log.describe([topic])[topic]
    writer.delete(topic)
    gone = log.describe([topic])
    writer.create(topic, 3)
    recreated = log.describe([topic])[topic]

    assert Topic(3, before.topic_id) == grown
    assert {} == gone
    assert grown.topic_id != recreated.topic_id
    assert recreated.topic_id.replace("-", "a").replace("_", "a").isalnum()  # as an event ID requires
    assert len(recreated.topic_id) <= 22


@pytest.mark.usefixtures("needs_topic_ids")
def test_a_cursor_of_a_former_topic_does_not_read_the_recreated_one(log, writer, topic, read):
    """A client would receive records of the new topic with event IDs of the old one, and receive them again later."""
    former = log.describe([topic])[topic].topic_id
    writer.delete(topic)
    writer.create(topic, 2)
    writer.send(topic, b"new")
    current = log.describe([topic])[topic].topic_id
    at = {Partition(topic, 0): 0}

    behind, live = read(at, topic_ids={topic: former}), read(at, topic_ids={topic: current})

    assert [b"new"] == values(take(live, 1))
    assert [] == behind.poll(0.5)


def test_offset_range_starts_at_the_first_record_kept(log, writer, topic):
    """The range ends at the offset of the next record to be written."""
    writer.send(topic, b"a", b"b", b"c")
    writer.drop_before(topic, 1)

    ranges = log.offset_ranges([Partition(topic, 0), Partition(topic, 1)])
    assert [(1, 3), (0, 0)] == [ranges[Partition(topic, number)][:2] for number in range(2)]
    assert {} == log.offset_ranges([])


def test_offset_at_a_timestamp_is_that_of_the_next_record(log, writer, topic):
    """If there is no later record, the offset is the end of the partition."""
    for timestamp in (1000, 2000, 2000, 3000):
        writer.send(topic, b"x", timestamp_ms=timestamp)
    one, empty = Partition(topic, 0), Partition(topic, 1)

    asked = {0: 0, 1000: 0, 1001: 1, 2000: 1, 2001: 3, 3000: 3, 3001: 4, 2**63 - 1: 4}

    assert asked == {when: log.offsets_at({one: when})[one] for when in asked}
    assert {one: 1, empty: 0} == log.offsets_at({one: 2000, empty: 2000})
    assert {} == log.offsets_at({})


def test_missing_partition_has_no_offsets(log, topic):
    """A topic or partition that does not exist raises an error instead of hanging or returning zeros."""
    for missing in (Partition(f"{topic}-missing", 0), Partition(topic, 2)):
        with pytest.raises(TopicNotAvailable):
            log.offset_ranges([missing])
        with pytest.raises(TopicNotAvailable):
            log.offsets_at({missing: 0})


# Cursors


def test_reads_from_the_given_offset(read, writer, topic):
    """Records come in order, each once, with all their fields."""
    headers = [("h", b"1"), ("h", b"\xff")]
    writer.send(topic, b"a")
    writer.send(topic, b"b", key=b"k", timestamp_ms=2000, headers=headers)
    writer.send(topic, None, key=b"k")

    batches = take(read({Partition(topic, 0): 1}), 2)

    first, second = [record for batch in batches for record in batch.records]
    assert (1, b"k", b"b", 2000) == (first.offset, first.key, first.value, first.timestamp)
    assert headers == list(first.headers)
    assert (2, b"k", None) == (second.offset, second.key, second.value)
    assert {Partition(topic, 0)} == {batch.partition for batch in batches}
    assert 3 == batches[-1].next_offset


def test_reads_consecutive_batches(read, writer, topic):
    """Each batch starts where the previous one ended."""
    sent = [b"%d" % index for index in range(5000)]
    writer.send(topic, *sent)

    batches = take(read({Partition(topic, 0): 0}), 5000)

    assert sent == values(batches)
    assert [batch.next_offset for batch in batches[:-1]] == [batch.records[0].offset for batch in batches[1:]]


def test_poll_waits_for_new_records(read, writer, topic):
    """At the end, poll() returns nothing after its timeout, and new records as soon as they arrive."""
    writer.send(topic, b"old")
    cursor = read({Partition(topic, 0): 1})

    assert [] == cursor.poll(0)
    assert [] == cursor.poll(0.1)

    writing = gevent.spawn_later(0.1, writer.send, topic, b"new")
    assert [b"new"] == values(take(cursor, 1))
    writing.get()


def test_moves_past_offsets_without_records(log, read, writer, topic):
    """Transaction markers take up offsets. No record before or after them is lost."""
    writer.send(topic, b"a")
    writer.skip(topic)
    writer.send(topic, b"b")
    writer.skip(topic)
    end = log.offset_ranges([Partition(topic, 0)])[Partition(topic, 0)].end
    cursor = read({Partition(topic, 0): 0})

    batches: list[Batch] = []
    with gevent.Timeout(POLL_TIMEOUT_S):
        while not batches or batches[-1].next_offset < end:
            batches += cursor.poll(1)

    assert [b"a", b"b"] == values(batches)
    assert end == batches[-1].next_offset


def test_seek_moves_and_adds_partitions(read, writer, topic):
    """seek() moves a partition in either direction and adds new ones. The other partitions keep their offsets."""
    writer.send(topic, b"a0", b"a1", b"a2")
    writer.send(topic, b"b0", partition=1)
    cursor = read({Partition(topic, 0): 2})
    assert [b"a2"] == values(take(cursor, 1))

    cursor.seek({Partition(topic, 1): 0})
    assert [b"b0"] == values(take(cursor, 1), 1)

    cursor.seek({Partition(topic, 0): 1})
    assert [b"a1", b"a2"] == values(take(cursor, 2))


def test_remove_stops_reading_a_partition(read, writer, topic):
    """The other partition is read as before. seek() adds the removed partition again."""
    cursor = read({Partition(topic, 0): 0, Partition(topic, 1): 0})
    cursor.poll(0)
    cursor.remove([Partition(topic, 0), Partition(topic, 9)])
    writer.send(topic, b"a0", b"a1")
    writer.send(topic, b"b0", partition=1)

    without = take(cursor, 1)
    cursor.seek({Partition(topic, 0): 1})

    assert ([], [b"b0"]) == (values(without), values(without, 1))
    assert [b"a1"] == values(take(cursor, 1))


def test_cursor_without_partitions_waits_for_seek(read, writer, topic):
    """A cursor may be opened without partitions, and may lose all its partitions."""
    writer.send(topic, b"a")
    cursor = read({})
    assert [] == cursor.poll(0.05)

    cursor.seek({Partition(topic, 0): 0})
    assert [b"a"] == values(take(cursor, 1))

    cursor.remove([Partition(topic, 0)])
    assert [] == cursor.poll(0.05)


def test_reads_a_new_partition(log, read, writer, topic):
    """A cursor can read a partition that was created after the cursor, from its first record."""
    cursor = read({Partition(topic, 0): 0, Partition(topic, 1): 0})
    cursor.poll(0)
    writer.grow(topic, 3)
    writer.send(topic, b"c0", b"c1", partition=2)

    cursor.seek({Partition(topic, 2): 0})

    assert [b"c0", b"c1"] == values(take(cursor, 2), 2)


@pytest.mark.parametrize(
    ("offset", "is_open", "others"), [(0, False, [1]), (0, True, []), (5, False, []), (2**40, False, [1])]
)
def test_offset_outside_the_log_is_an_error_until_seek(read, writer, topic, offset, is_open, others):
    """The error names the partition, for offsets before the start and after the end. No record is skipped silently."""
    one = Partition(topic, 0)
    start = {one: offset} | {Partition(topic, number): 0 for number in others}
    cursor = read(start if is_open else {})
    writer.send(topic, b"a", b"b", b"c")
    writer.drop_before(topic, 2)
    cursor.seek({} if is_open else start)

    for _ in range(2):
        with pytest.raises(OffsetOutOfRange) as out_of_range:
            take(cursor, 1)
        assert (one,) == out_of_range.value.partitions
        cursor.seek({one: 2})
        assert [b"c"] == values(take(cursor, 1))
        cursor.seek({one: offset})


def test_cursors_are_independent(read, writer, topic):
    writer.send(topic, b"a")
    one, other = read({Partition(topic, 0): 0}), read({Partition(topic, 0): 0})

    assert [b"a"] == values(take(one, 1)) == values(take(other, 1))


@pytest.mark.usefixtures("needs_topic_ids")  # without them, the epoch is that of a former topic
def test_epoch_that_the_log_does_not_know(log, read, writer, topic):
    """The cursor reports it, because it cannot tell whether the log was truncated. It continues after a seek without it."""
    writer.send(topic, b"a", b"b")
    partition = Partition(topic, 0)
    cursor = read({partition: 1}, epochs={partition: INT32_MAX})

    with pytest.raises(OffsetOutOfRange) as raised:
        take(cursor, 1)

    assert ((partition,), {}) == (raised.value.partitions, raised.value.diverged_at)
    assert {} == log.epoch_ends({partition: INT32_MAX})
    cursor.seek({partition: 1})
    assert [b"b"] == values(take(cursor, 1))


# KafkaLog only


def test_epoch_ends_at_the_end_of_the_log(kafka_log, cluster, fresh_name):
    """The first leader wrote all records, so its epoch ends at the end of the log."""
    cluster.create(fresh_name)
    cluster.send(fresh_name, b"a", b"b")
    partition = Partition(fresh_name, 0)

    with closing(kafka_log.cursor({partition: 0})) as cursor:
        epoch = take(cursor, 2)[0].leader_epoch

    assert epoch >= 0
    assert {partition: (2, epoch)} == kafka_log.epoch_ends({partition: epoch})
    with closing(kafka_log.cursor({partition: 2}, epochs={partition: epoch})) as cursor:
        cluster.send(fresh_name, b"c")
        assert [b"c"] == values(take(cursor, 1))


@pytest.mark.usefixtures("both_decoders")
def test_returns_log_append_time(kafka_log, cluster, fresh_name):
    cluster.create(fresh_name, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    cluster.send(fresh_name, b"a", timestamp_ms=1000)

    with closing(kafka_log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert before <= (take(cursor, 1)[0].records[0].timestamp or 0) <= time.time_ns() // 1_000_000


@pytest.mark.usefixtures("both_decoders")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_reads_every_codec(kafka_log, cluster, fresh_name, codec):
    cluster.create(fresh_name)
    cluster.compressed(fresh_name, codec, b"a" * 1000, b"b" * 1000)

    with closing(kafka_log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert [b"a" * 1000, b"b" * 1000] == values(take(cursor, 2))


@pytest.mark.usefixtures("both_decoders")
def test_isolation_level_hides_or_shows_aborted_records(broker, kafka_log, cluster, fresh_name):
    cluster.create(fresh_name)
    cluster.transaction(fresh_name, b"committed")
    cluster.transaction(fresh_name, b"aborted", commit=False)
    cluster.send(fresh_name, b"last")

    with closing(kafka_log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert [b"committed", b"last"] == values(take(cursor, 2))
    with (
        closing(open_log(broker.bootstrap_servers, isolation_level="read_uncommitted")) as log,
        closing(log.cursor({Partition(fresh_name, 0): 0})) as cursor,
    ):
        assert [b"committed", b"aborted", b"last"] == values(take(cursor, 3))


def test_offset_at_a_timestamp_does_not_skip_new_records(kafka_log, monkeypatch):
    partition, end = Partition("t", 0), 38

    def answer(*questions: dict[Partition, int]) -> list[dict[Partition, OffsetAndEpoch]]:
        nonlocal end
        offsets = [end if question[partition] == OffsetSpec.LATEST else -1 for question in questions]
        answers = [{partition: OffsetAndEpoch(offset, 0)} for offset in offsets]
        end += 6
        return answers

    monkeypatch.setattr(kafka_log, "_list_offsets", answer)

    assert {partition: 38} == kafka_log.offsets_at({partition: 1000})


def test_topic_prefix_limits_and_shortens_names(broker, cluster, fresh_name):
    cluster.create(f"wabash-1.{fresh_name}")
    cluster.create(f"other.{fresh_name}")
    cluster.send(f"wabash-1.{fresh_name}", b"a")
    log = open_log(broker.bootstrap_servers, topic_prefix="wabash-1.")
    partition = Partition(fresh_name, 0)

    with closing(log), closing(log.cursor({partition: 0})) as cursor:
        assert [fresh_name] == list(log.describe([fresh_name, f"other.{fresh_name}", f"wabash-1.{fresh_name}"]))
        assert {partition: OffsetRange(0, 1, epoch=0)} == log.offset_ranges([partition])
        (batch,) = take(cursor, 1)
        assert partition == batch.partition
        assert {partition: (1, batch.leader_epoch)} == log.epoch_ends({partition: batch.leader_epoch})


def test_rejects_unknown_client_settings(caplog):
    """The log names the setting. Neither the log nor the client's error shows its value."""
    with pytest.raises(ConfigurationError) as rejected:
        open_log("127.0.0.1:1", {"no_such_setting": "secret"})

    assert "no_such_setting" in caplog.text
    assert "secret" not in str(rejected.value.problem()) + caplog.text


def test_unreachable_cluster_is_an_error_after_the_timeout():
    """Each call raises KafkaUnavailable, and the error for the client does not show the address."""
    log = open_log("127.0.0.1:1", kafka_timeout_s=0.5)
    partition = Partition("t", 0)
    calls: list[Callable[[], object]] = [
        lambda: log.describe(["t"]),
        lambda: log.offset_ranges([partition]),
        lambda: log.offsets_at({partition: 0}),
        lambda: log.cursor({partition: 0}),
    ]

    with gevent.Timeout(POLL_TIMEOUT_S), closing(log):
        for call in calls:
            with pytest.raises(KafkaUnavailable) as unavailable:
                call()
            assert "127.0.0.1" not in str(unavailable.value.problem())
