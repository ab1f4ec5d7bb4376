"""What every log promises, shown for each: the one in memory and the one that is Kafka. See kafkasse/log.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Protocol

import gevent
import pytest
from kafka.admin import OffsetSpec

from kafkasse.broker import EmbeddedBroker
from kafkasse.errors import ConfigurationError, KafkaUnavailable, ServerFull, TopicNotAvailable
from kafkasse.kafka import batches
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, Cursor, Log, OffsetOutOfRange, OffsetRange, Partition, Topic
from kafkasse.memory_log import MemoryLog
from tests.kafka.logs import open_log
from tests.support.kafka import Cluster

PATIENCE_S = 30  # a hang becomes a failure


class Writer(Protocol):
    """How a test changes what a log reads."""

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
        self.drop_before, self.delete, self.skip = log.drop_before, log.delete, log.mark

    def send(
        self, topic: str, *values: bytes | None, partition: int = 0, timestamp_ms: int | None = None, **rest: Any
    ) -> list[int]:
        return [self._log.append(topic, value, partition, timestamp=timestamp_ms, **rest) for value in values]


class KafkaWriter(Cluster):
    def skip(self, topic: str) -> None:
        """An offset without a record: the marker of a transaction that holds nothing that is read."""
        self.transaction(topic, b"aborted", commit=False)


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> Iterator[KafkaWriter]:
    with closing(KafkaWriter(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kafka_log(broker: EmbeddedBroker) -> Iterator[KafkaLog]:
    with closing(open_log(broker.bootstrap_servers)) as log:
        yield log


@pytest.fixture(params=["memory", "kafka", "kafka, decoded plainly"])
def world(request: pytest.FixtureRequest) -> tuple[Log, Writer]:
    """A log and how to write to it. Where the compiled decoder has no wheel, Kafka's records are decoded plainly."""
    if request.param == "memory":
        log = MemoryLog()
        return log, MemoryWriter(log)
    if request.param != "kafka":
        request.getfixturevalue("plainly")
    return request.getfixturevalue("kafka_log"), request.getfixturevalue("cluster")


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkasse.kafka.batches.CompiledDecoder", None)


@pytest.fixture(params=["compiled", "plainly"])
def decoded(request: pytest.FixtureRequest) -> None:
    """For what only Kafka has: by each of the decoders."""
    if request.param == "plainly":
        request.getfixturevalue("plainly")
    else:
        assert batches.CompiledDecoder is not None


@pytest.fixture
def log(world: tuple[Log, Writer]) -> Log:
    return world[0]


@pytest.fixture
def writer(world: tuple[Log, Writer]) -> Writer:
    return world[1]


@pytest.fixture
def topic(writer: Writer, fresh_name: str) -> str:
    """A topic with two partitions."""
    writer.create(fresh_name, 2)
    return fresh_name


@pytest.fixture(params=["catching up", "following"])
def read(request: pytest.FixtureRequest, log: Log) -> Iterator[Callable[[dict[Partition, int]], Cursor]]:
    """Opens cursors, of each kind."""
    opened: list[Cursor] = []

    def cursor(offsets: dict[Partition, int]) -> Cursor:
        opened.append(log.cursor(offsets, tail=request.param == "following"))
        return opened[-1]

    yield cursor
    for each in opened:
        each.close()


def take(cursor: Cursor, count: int) -> list[Batch]:
    """Batches until they hold `count` records."""
    batches: list[Batch] = []
    with gevent.Timeout(PATIENCE_S):
        while sum(len(batch.records) for batch in batches) < count:
            batches += cursor.poll(1)
    return batches


def values(batches: list[Batch], partition: int = 0) -> list[bytes | None]:
    return [record.value for batch in batches if batch.partition.partition == partition for record in batch.records]


# What there is.


def test_describes_what_exists(log: Log, topic: str) -> None:
    """Topics that exist have partitions and an topic_id; those that do not are absent, whatever their names."""
    found = log.describe([topic, f"{topic}-missing", "no topic", "ü", "", "x" * 300, "."])

    assert [topic] == list(found)
    assert 2 == found[topic].partitions
    assert {} == log.describe([])


def test_a_remade_topic_is_another_one(log: Log, writer: Writer, topic: str) -> None:
    """A topic that grows stays itself; one that was deleted and made again under its name does not."""
    before = log.describe([topic])[topic]

    writer.grow(topic, 3)
    grown = log.describe([topic])[topic]
    writer.delete(topic)
    gone = log.describe([topic])
    writer.create(topic, 3)
    remade = log.describe([topic])[topic]

    assert Topic(3, before.topic_id) == grown
    assert {} == gone
    assert grown.topic_id != remade.topic_id


def test_incarnations_fit_into_ids(log: Log, topic: str) -> None:
    """An topic_id is as an id may hold it."""
    topic_id = log.describe([topic])[topic].topic_id

    assert topic_id.replace("-", "a").replace("_", "a").isalnum()
    assert len(topic_id) <= 22


def test_bounds(log: Log, writer: Writer, topic: str) -> None:
    """What a partition holds: from its first record, retention included, up to the next one to come."""
    writer.send(topic, b"a", b"b", b"c")
    writer.drop_before(topic, 1)

    assert {Partition(topic, 0): OffsetRange(1, 3), Partition(topic, 1): OffsetRange(0, 0)} == log.offset_ranges(
        [Partition(topic, 0), Partition(topic, 1)]
    )
    assert {} == log.offset_ranges([])


def test_offsets_at_a_time(log: Log, writer: Writer, topic: str) -> None:
    """The first record at or after a time; the end where there is none, be it of an empty partition."""
    for timestamp in (1000, 2000, 2000, 3000):
        writer.send(topic, b"x", timestamp_ms=timestamp)
    one, empty = Partition(topic, 0), Partition(topic, 1)

    asked = {0: 0, 1000: 0, 1001: 1, 2000: 1, 2001: 3, 3000: 3, 3001: 4, 2**63 - 1: 4}

    assert asked == {when: log.offsets_at({one: when})[one] for when in asked}
    assert {one: 1, empty: 0} == log.offsets_at({one: 2000, empty: 2000})
    assert {} == log.offsets_at({})


def test_what_is_not_there_has_no_bounds(log: Log, topic: str) -> None:
    """A topic or partition that does not exist, or no longer, is said so: no hang, no zeros."""
    for missing in (Partition(f"{topic}-missing", 0), Partition(topic, 2)):
        with pytest.raises(TopicNotAvailable):
            log.offset_ranges([missing])
        with pytest.raises(TopicNotAvailable):
            log.offsets_at({missing: 0})


# Reading.


def test_reads_from_where_it_stands(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """Records come in order, each once, from the offset that was asked for, with all that was written."""
    headers = [("h", b"1"), ("h", b"\xff")]
    writer.send(topic, b"a")
    writer.send(topic, b"b", key=b"k", timestamp_ms=2000, headers=headers)
    writer.send(topic, None, key=b"k")

    batches = take(read({Partition(topic, 0): 1}), 2)

    first, second = [record for batch in batches for record in batch.records]
    assert (1, b"k", b"b", 2000, headers) == (
        first.offset,
        first.key,
        first.value,
        first.timestamp,
        list(first.headers),
    )
    assert (2, b"k", None) == (second.offset, second.key, second.value)
    assert {Partition(topic, 0)} == {batch.partition for batch in batches}
    assert 3 == batches[-1].next_offset


def test_reads_several_partitions(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """Each partition has its own place, and its own order."""
    writer.send(topic, b"a0", b"a1", b"a2")
    writer.send(topic, b"b0", b"b1", partition=1)

    batches = take(read({Partition(topic, 0): 1, Partition(topic, 1): 0}), 4)

    assert ([b"a1", b"a2"], [b"b0", b"b1"]) == (values(batches), values(batches, 1))


def test_reads_more_than_one_batch(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """Many records come in batches that follow each other: each begins where the one before ended."""
    sent = [b"%d" % index for index in range(5000)]
    writer.send(topic, *sent)

    batches = take(read({Partition(topic, 0): 0}), 5000)

    assert sent == values(batches)
    assert [batch.next_offset for batch in batches[:-1]] == [batch.records[0].offset for batch in batches[1:]]


@pytest.mark.parametrize("others", [(), (1,)])
def test_what_was_lost_and_found_again_is_read_on(
    read: Callable[..., Cursor], writer: Writer, topic: str, others: tuple[int, ...]
) -> None:
    """A partition that a seek() brought back is read from then on, be it alone or one of several."""
    one = Partition(topic, 0)
    cursor = read({one: 99} | {Partition(topic, each): 0 for each in others})
    for turn in range(3):
        with pytest.raises(OffsetOutOfRange):
            take(cursor, 1)
        cursor.seek({one: turn})
        writer.send(topic, b"%d" % turn)
        assert [b"%d" % turn] == values(take(cursor, 1))
        cursor.seek({one: 99})


def test_waits_for_what_comes(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """At the end poll() waits, returns nothing when its time is over, and what comes as soon as it comes."""
    writer.send(topic, b"old")
    cursor = read({Partition(topic, 0): 1})

    assert [] == cursor.poll(0)
    assert [] == cursor.poll(0.1)

    writing = gevent.spawn_later(0.1, writer.send, topic, b"new")
    assert [b"new"] == values(take(cursor, 1))
    writing.get()


def test_moves_past_offsets_without_records(log: Log, read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """Markers take offsets and are no records: the position moves past them, and no record is lost before or after."""
    writer.send(topic, b"a")
    writer.skip(topic)
    writer.send(topic, b"b")
    writer.skip(topic)
    end = log.offset_ranges([Partition(topic, 0)])[Partition(topic, 0)].end
    cursor = read({Partition(topic, 0): 0})

    batches: list[Batch] = []
    with gevent.Timeout(PATIENCE_S):
        while not batches or batches[-1].next_offset < end:
            batches += cursor.poll(1)

    assert [b"a", b"b"] == values(batches)
    assert end == batches[-1].next_offset


def test_seek_moves_and_adds(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """seek() moves a partition back or on, and adds ones that were not read before; the others stay."""
    writer.send(topic, b"a0", b"a1", b"a2")
    writer.send(topic, b"b0", partition=1)
    cursor = read({Partition(topic, 0): 2})
    assert [b"a2"] == values(take(cursor, 1))

    cursor.seek({Partition(topic, 1): 0})
    assert [b"b0"] == values(take(cursor, 1), 1)

    cursor.seek({Partition(topic, 0): 1})
    assert [b"a1", b"a2"] == values(take(cursor, 2))


def test_reads_a_new_partition(log: Log, read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """A partition that was added while a cursor was open can be read by it, from its first record."""
    cursor = read({Partition(topic, 0): 0, Partition(topic, 1): 0})
    cursor.poll(0)
    writer.grow(topic, 3)
    writer.send(topic, b"c0", b"c1", partition=2)

    cursor.seek({Partition(topic, 2): 0})

    assert [b"c0", b"c1"] == values(take(cursor, 2), 2)


@pytest.mark.parametrize("offset", [0, 5, 2**40])
def test_a_place_that_the_log_does_not_have(
    read: Callable[..., Cursor], writer: Writer, topic: str, offset: int
) -> None:
    """Before the first record and beyond the end nothing can be read: said with the partition, until seek() mends it."""
    writer.send(topic, b"a", b"b", b"c")
    writer.drop_before(topic, 2)
    cursor = read({Partition(topic, 0): offset, Partition(topic, 1): 0})

    with pytest.raises(OffsetOutOfRange) as out_of_range:
        take(cursor, 1)

    assert (Partition(topic, 0),) == out_of_range.value.partitions
    cursor.seek({Partition(topic, 0): 2})
    assert [b"c"] == values(take(cursor, 1))


def test_retention_under_way(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """Retention that overtakes a cursor is said as well, and nothing is jumped over in silence."""
    cursor = read({Partition(topic, 0): 0})
    writer.send(topic, b"a", b"b", b"c")
    writer.drop_before(topic, 2)

    with pytest.raises(OffsetOutOfRange):
        take(cursor, 1)


def test_close_twice(log: Log, topic: str) -> None:
    """close() may be called again."""
    cursor = log.cursor({Partition(topic, 0): 0})

    cursor.close()
    cursor.close()


def test_cursors_keep_apart(read: Callable[..., Cursor], writer: Writer, topic: str) -> None:
    """What one cursor has read another still gets."""
    writer.send(topic, b"a")
    one, other = read({Partition(topic, 0): 0}), read({Partition(topic, 0): 0})

    assert [b"a"] == values(take(one, 1)) == values(take(other, 1))


# What only Kafka has.


@pytest.mark.usefixtures("decoded")
def test_times_that_the_broker_sets(kafka_log: KafkaLog, cluster: KafkaWriter, fresh_name: str) -> None:
    """Where a topic's times are those of appending, its records have them, and not what the producer said."""
    cluster.create(fresh_name, message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    cluster.send(fresh_name, b"a", timestamp_ms=1000)

    with closing(kafka_log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert before <= (take(cursor, 1)[0].records[0].timestamp or 0) <= time.time_ns() // 1_000_000


@pytest.mark.usefixtures("decoded")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(kafka_log: KafkaLog, cluster: KafkaWriter, fresh_name: str, codec: str) -> None:
    """Records are read however their producer compressed them."""
    cluster.create(fresh_name)
    cluster.compressed(fresh_name, codec, b"a" * 1000, b"b" * 1000)

    with closing(kafka_log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert [b"a" * 1000, b"b" * 1000] == values(take(cursor, 2))


@pytest.mark.usefixtures("decoded")
def test_transactions(broker: EmbeddedBroker, kafka_log: KafkaLog, cluster: KafkaWriter, fresh_name: str) -> None:
    """Committed records are read and aborted ones are not, unless one asks for the uncommitted."""
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


def test_a_time_while_records_come(kafka_log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that comes between two questions is neither found by its time nor passed over by the end after it."""
    partition, end = Partition("t", 0), 38

    def answer(*questions: dict[Partition, int]) -> list[dict[Partition, int]]:
        nonlocal end
        answers = [{partition: end if question[partition] == OffsetSpec.LATEST else -1} for question in questions]
        end += 6
        return answers

    monkeypatch.setattr(kafka_log, "_list_offsets", answer)

    assert {partition: 38} == kafka_log.offsets_at({partition: 1000})


def test_a_topic_prefix(broker: EmbeddedBroker, cluster: KafkaWriter, fresh_name: str) -> None:
    """With a prefix, clients see only topics below it, under the rest of their names."""
    cluster.create(f"wabash-1.{fresh_name}")
    cluster.create(f"other.{fresh_name}")
    cluster.send(f"wabash-1.{fresh_name}", b"a")
    log = open_log(broker.bootstrap_servers, topic_prefix="wabash-1.")

    with closing(log), closing(log.cursor({Partition(fresh_name, 0): 0})) as cursor:
        assert [fresh_name] == list(log.describe([fresh_name, f"other.{fresh_name}", f"wabash-1.{fresh_name}"]))
        assert {Partition(fresh_name, 0): OffsetRange(0, 1)} == log.offset_ranges([Partition(fresh_name, 0)])
        assert [Partition(fresh_name, 0)] == [batch.partition for batch in take(cursor, 1)]


def test_settings_that_kafka_does_not_take(caplog: pytest.LogCaptureFixture) -> None:
    """They are the operator's mistake: the log names them, and what strangers are told shows none of them."""
    with pytest.raises(ConfigurationError) as refused:
        open_log("127.0.0.1:1", {"no_such_setting": "secret"})

    assert "no_such_setting" in caplog.text
    assert "secret" not in str(refused.value.problem()) + caplog.text


def test_no_broker() -> None:
    """Where nobody answers, each call says so instead of waiting for half a minute."""
    log = open_log("127.0.0.1:1", kafka_timeout_s=0.5)
    partition = Partition("t", 0)
    calls: list[Callable[[], object]] = [
        lambda: log.describe(["t"]),
        lambda: log.offset_ranges([partition]),
        lambda: log.offsets_at({partition: 0}),
        lambda: log.cursor({partition: 0}),
    ]

    with gevent.Timeout(PATIENCE_S), closing(log):
        for call in calls:
            with pytest.raises(KafkaUnavailable) as unavailable:
                call()
            assert "127.0.0.1" not in str(unavailable.value.problem())


def test_places(broker: EmbeddedBroker, cluster: KafkaWriter, fresh_name: str) -> None:
    """Readers of one client each cannot take the places of those that are read for all."""
    cluster.create(fresh_name)
    begin = {Partition(fresh_name, 0): 0}

    with closing(open_log(broker.bootstrap_servers, kafka_timeout_s=0.5, max_cursors=4)) as log, ExitStack() as cursors:
        for _ in range(3):
            cursors.enter_context(closing(log.cursor(begin)))
        with pytest.raises(ServerFull):
            log.cursor(begin)
        shared = cursors.enter_context(closing(log.cursor(begin, tail=True, shared=True)))
        with pytest.raises(ServerFull):
            log.cursor(begin, tail=True, shared=True)
        shared.close()
        cursors.enter_context(closing(log.cursor(begin, tail=True, shared=True)))
