"""A route with `newest_by` drops the records that are older than a record before them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasse.errors import KafkaUnavailable
from kafkasse.feed import backlog, snapshot, tail
from kafkasse.feed import versions as module
from kafkasse.feed.core.versions import MAX_BYTES, Versions
from kafkasse.feed.reader import Reader
from kafkasse.log import OffsetRange, Partition
from kafkasse.log.memory import MemoryCursor, MemoryLog, MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Selector
from kafkasse.records.frame import DecoderPending
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.position import IdType
from kafkasse.route import NewestBy, StartAt
from kafkasse_client.sse import Event
from tests.feed.world import Client, World
from tests.support.examples import examples
from tests.support.memory import kept_bytes
from tests.support.sse import without_positions
from tests.support.waiting import wait_until

VERSION = "kafkasse-version"
PARTITION = Partition("t", 0)


class Process(World):
    """One worker that serves the topic `t`."""

    def __init__(self, log: MemoryLog, encoder: Encoder | None = None, look_back: int = 1000, **limits: float) -> None:
        super().__init__(encoder, {}, log, **limits)
        self.newest_by = NewestBy(VERSION, look_back)

    def client(self, *last_id: str, **stream: Any) -> VersionsClient:
        reader = self.open(*last_id, newest_by=self.newest_by, **stream)
        return VersionsClient(self, reader, *last_id)


class VersionsClient(Client):
    def __init__(self, process: Process, *stream: Any) -> None:
        super().__init__(*stream)
        self.process = process

    def versions(self) -> list[Any]:
        """Return the versions that the client receives now; None for a record without a value."""
        events: list[Event] = []
        for _ in range(5):  # read through a cursor, then join the feed
            self.process.turn()
            events += without_positions(self.read())
        self.take(self.reader.id_if_moved())
        return [json.loads(event.data).get("n") for event in events]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t")
    return log


def write(log: MemoryLog, *versions: int, key: bytes = b"k", partition: int = 0) -> None:
    for version in versions:
        log.append("t", b'{"n":%d}' % version, partition, key, headers=[(VERSION, b"%d" % version)])


def test_a_live_client_does_not_receive_older_or_equal_versions(log):
    process = Process(log)
    client = process.client()
    write(log, 1, 2, 3, 1, 2, 3, 4)

    received = client.versions()

    assert [1, 2, 3, 4] == received
    assert 3 == process.feeds.stats["r"].outdated


@pytest.mark.parametrize(
    "headers", [[], [(VERSION, b"x")], [(VERSION, None)], [(VERSION, b"9" * 20)], [("other", b"1")]]
)
def test_a_record_without_a_version_is_sent(log, headers):
    """The version must be a decimal integer of at most 19 digits."""
    client = Process(log).client()
    write(log, 5)
    log.append("t", b'{"n":0}', key=b"k", headers=headers)

    received = client.versions()

    assert [5, 0] == received


def test_a_record_without_a_key_is_sent(log):
    """Such records do not replace one another."""
    client = Process(log).client()
    for version in (5, 4):
        log.append("t", b'{"n":%d}' % version, headers=[(VERSION, b"%d" % version)])

    received = client.versions()

    assert [5, 4] == received


def test_a_tombstone_has_a_version(log):
    """An older record does not bring a deleted key back."""
    client = Process(log).client()
    write(log, 1)
    log.append("t", None, key=b"k", headers=[(VERSION, b"3")])
    write(log, 1, 2)

    received = client.versions()

    assert [1, None] == received


def test_a_snapshot_contains_the_newest_version(log):
    """A repeated record does not replace the newer row, and records after the snapshot are newer than the row."""
    write(log, 1, 2, 3, 1, 2)
    client = Process(log).client(start=StartAt.SNAPSHOT)
    snapshot: list[int] = []
    wait_until(lambda: bool(snapshot.extend(client.versions()) or snapshot))
    write(log, 3, 4)

    received = client.versions()

    assert ([3], [4]) == (snapshot, received)


def test_a_snapshot_whose_decoder_waits_contains_all_records(log, monkeypatch):
    """The snapshot reads the batch again, whose versions it knows already."""
    monkeypatch.setattr(snapshot, "UNAVAILABLE_BACKOFF_S", 0.0)
    waits = iter([False, True])

    def decode(view: RecordView) -> Any:
        if next(waits, False):
            raise DecoderPending
        return json.loads(view.record.value or b"")

    write(log, 1, 2)
    write(log, 5, 1, key=b"l")
    client = Process(log, Encoder(decoder=decode)).client(start=StartAt.SNAPSHOT)
    received: list[int] = []
    wait_until(lambda: bool(received.extend(client.versions()) or received))

    assert [2, 5] == received


@pytest.mark.parametrize("is_live", [True, False])
def test_a_lost_record_does_not_make_later_records_outdated(log, monkeypatch, is_live):
    """After a truncation, a stream ends, and the versions of the records that the log still has decide again."""
    log.elect_leader("t")
    write(log, 1)
    process = Process(log)
    if not is_live:  # keep the reader from joining the feed
        monkeypatch.setattr(Reader, "_may_join", lambda *_: False)
    client = process.client(start=StartAt.EARLIEST)
    write(log, 3)
    received = client.versions()
    log.truncate("t", 1)
    write(log, 1, 2)

    received += client.versions()
    monkeypatch.undo()
    resumed = process.client(client.last_id).versions()

    assert [1, 3, None] == received  # None: the gap
    assert [2] == resumed


@pytest.mark.parametrize("overflows", [False, True])
def test_a_stream_with_hooks_reports_the_gap_before_it_ends(log, monkeypatch, overflows):
    """The backlog contains the gap. If it overflows instead, the stream ends, too, because its versions are outdated."""
    log.elect_leader("t")
    write(log, 1)
    encoder = Encoder(decoder=lambda view: json.loads(view.record.value or b""))
    process = Process(log, encoder)
    client = process.client(start=StartAt.EARLIEST, id_type=IdType.TIMESTAMP)
    received: list[int] = []
    wait_until(lambda: bool(received.extend(client.versions()) or received))
    write(log, 3)
    wait_until(lambda: received.extend(client.versions()) or len(received) == 2)
    log.truncate("t", 1)
    write(log, 1, 2)
    if overflows:
        monkeypatch.setattr(backlog, "MAX_BYTES", -1)

    wait_until(lambda: received.extend(client.versions()) or not process.tails[-1].feeds)
    received += client.versions()

    assert ([1, 3] if overflows else [1, 3, None]) == received  # None: the gap


def test_personal_streams_drop_older_versions(log):
    """A client that receives only its own key does not receive an older version of it, even after it has resumed."""
    encoder = Encoder(dimensions=Dimensions((Dimension("key"),)))
    selector = Selector.of("k")
    client = Process(log, encoder).client(selector=selector)
    write(log, 2, 1, 3)
    write(log, 9, key=b"l")
    received = client.versions()
    write(log, 2, 3, 4)

    resumed = Process(log, encoder).client(client.last_id, selector=selector).versions()

    assert ([2, 3], [4]) == (received, resumed)


def test_a_feed_knows_the_versions_of_records_that_the_tail_reads_while_the_feed_opens(log, monkeypatch):
    """Kafka returns more records than those before the position, and the tail of another feed has moved meanwhile."""
    process = Process(log)
    process.client()
    write(log, 1)
    process.turn()
    write(log, 9)
    read_versions = process.feeds._read_versions
    monkeypatch.setattr(process.feeds, "_read_versions", lambda *args: (read_versions(*args), process.turn()))

    client = process.client(encoder=Encoder("value"))
    write(log, 5, 10)

    assert [10] == client.versions()


@pytest.mark.parametrize("later", [(), (1, 1), None])
def test_a_feed_that_opens_during_a_truncation_loses_no_record(log, monkeypatch, later):
    """The tail of another feed moves back while the versions are read, which include those of lost records.

    It may have passed the lost offsets again, with other records, or another tail may have taken its place.
    """
    log.elect_leader("t")
    process = Process(log)
    process.client()
    write(log, 1, 9)
    process.turn()
    read_versions = process.feeds._read_versions

    def read_and_truncate(*args: Any) -> None:
        read_versions(*args)
        monkeypatch.undo()
        log.truncate("t", 1)
        if later is None:
            process.tails[-1].close()
        process.turn(2)
        write(log, *later or ())
        process.turn()

    monkeypatch.setattr(process.feeds, "_read_versions", read_and_truncate)
    client = process.client(encoder=Encoder("value"))
    write(log, 1, key=b"l")
    write(log, 2, 3)

    assert [1, 2, 3] == client.versions()


@pytest.mark.parametrize("has_other_records", [True, False])
def test_a_feed_opens_although_the_tail_never_stands_still(log, monkeypatch, has_other_records):
    """Whenever the versions before its position were read, the tail has moved, so it passes on what it reads."""
    log.create("other")
    process = Process(log)
    process.client()
    process.open("other")
    read_versions = process.feeds._read_versions
    versions, reads = itertools.count(), itertools.count()

    def read_and_move(*args: Any) -> None:
        assert next(reads) < 5, "the feed does not open"
        read_versions(*args)
        write(log, next(versions))
        for _ in range(2 * has_other_records):
            log.append("other", bytes(tail.MAX_BYTES))
        process.turn(3)

    monkeypatch.setattr(process.feeds, "_read_versions", read_and_move)
    write(log, next(versions))
    process.turn()
    client = process.client(encoder=Encoder("value"))
    write(log, 0, 7)

    assert [7] == client.versions()


def test_a_feed_that_cannot_open_ends_with_an_error(log, monkeypatch):
    """The records that arrive while the versions are read exceed the limit each time. The client tries again later."""
    process = Process(log, kafka_timeout_s=0.2)
    process.client()
    read_versions = process.feeds._read_versions
    reads = itertools.count()

    def read_and_move(*args: Any) -> None:
        assert next(reads) < 100, "the server tries for ever"
        read_versions(*args)
        write(log, next(reads))
        process.turn()
        gevent.sleep(0.01)

    monkeypatch.setattr(tail, "MAX_BYTES", 0)
    monkeypatch.setattr(process.feeds, "_read_versions", read_and_move)
    write(log, 0)
    process.turn()

    with pytest.raises(KafkaUnavailable):
        process.client(encoder=Encoder("value"))


def test_greenlets_that_open_one_feed_keep_the_later_batches_once(log, monkeypatch):
    """The size of each batch is computed once, and nothing is kept after the feed has opened."""
    process = Process(log)
    process.client()
    process.turn()
    sizes: list[int] = []
    size_of = tail.size_of
    monkeypatch.setattr(tail, "size_of", lambda batch: sizes.append(size_of(batch)) or sizes[-1])
    read_versions = process.feeds._read_versions

    def read_slowly(*args: Any) -> None:
        gevent.sleep(0.01)
        read_versions(*args)

    monkeypatch.setattr(process.feeds, "_read_versions", read_slowly)
    encoder = Encoder("value")
    write(log, 1)
    process.turn()
    openers = [gevent.spawn(process.client, encoder=encoder) for _ in range(3)]
    gevent.sleep(0)
    write(log, 5)
    process.turn()
    clients = [opener.get(timeout=5) for opener in openers]
    write(log, 4, 6)
    process.turn()

    assert 1 == len(sizes)
    assert [] == process.tails[-1].recordings
    assert [[6]] * 3 == [client.versions() for client in clients]


def test_looks_back_a_limited_number_of_offsets(log):
    """A record is sent if the newer one is further back, for a live client and for one that catches up."""
    process = Process(log, look_back=3)
    live = process.client()
    write(log, 5)
    write(log, 1, 2, 3, key=b"l")
    write(log, 3)
    received = live.versions()
    write(log, 2)

    resumed = Process(log, look_back=3).client(live.last_id).versions()

    assert ([5, 1, 2, 3, 3], []) == (received, resumed)


def test_a_producer_may_repeat_its_records_again_and_again(log):
    """Each repetition is compared with the one before, whose records were dropped."""
    client = Process(log, look_back=4).client()
    write(log, *[1, 2, 3, 4] * 3)

    received = client.versions()

    assert [1, 2, 3, 4] == received


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 8)), max_size=30),
    st.integers(1, 40),
    st.sampled_from([1, 3, 1000]),
)
@settings(deadline=None, max_examples=examples(60))
def test_a_view_never_moves_back(writes, step, max_ring_records):
    """Whenever and wherever a client reconnects, the versions of each key that it receives only grow."""
    log = MemoryLog()
    log.create("t", 2)
    processes = itertools.cycle([Process(log, max_ring_records=max_ring_records) for _ in range(2)])
    client = next(processes).client(start=StartAt.EARLIEST)
    newest: dict[tuple[int, int], int] = {}
    expected: dict[tuple[int, int], int] = {}
    for number, (partition, key, version) in enumerate(writes):
        identity = partition, key
        expected[identity] = max(version, expected.get(identity, -1))
        value = json.dumps({"n": [*identity, version]}).encode()
        log.append("t", value, partition, b"%d" % key, headers=[(VERSION, b"%d" % version)])
        if number % step == 0:
            follow(client, newest)
            client = next(processes).client(client.last_id)
    follow(client, newest)

    assert expected == newest


def follow(client: VersionsClient, newest: dict[tuple[int, int], int]) -> None:
    """Apply the records that the client receives now. Each must be newer than the last of its key."""
    for partition, key, version in client.versions():
        assert version > newest.get((partition, key), -1)
        newest[partition, key] = version


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4)), max_size=20), st.integers(1, 5), st.integers(0, 20))
@settings(deadline=None, max_examples=examples(200))
def test_only_the_last_offsets_decide_which_records_are_outdated(writes, look_back, start):
    """A live client and one that resumes drop the same records, also if a producer repeats its records again and again."""
    records = [record(offset, b"%d" % key, version) for offset, (key, version) in enumerate(writes)]
    live, resumed = Versions(NewestBy(VERSION, look_back)), Versions(NewestBy(VERSION, look_back))
    resumed.newest(PARTITION, records[max(0, start - look_back) : start])

    received = [received.offset for received in live.newest(PARTITION, records)]
    received_again = [received.offset for received in resumed.newest(PARTITION, records[start:])]

    expected = [
        offset
        for offset, (key, version) in enumerate(writes)
        if all(version > other for same, other in writes[max(0, offset - look_back) : offset] if same == key)
    ]
    assert expected == received
    assert [offset for offset in expected if offset >= start] == received_again


# The memory.


def record(offset: int, key: bytes, version: int = 1) -> MemoryRecord:
    return MemoryRecord(offset, 0, key, b"", [(VERSION, b"%d" % version)])


def test_the_memory_is_limited_and_counted():
    """Keys beyond the limit replace the oldest, and the count is close to the memory in use."""
    versions = Versions(NewestBy(VERSION, 100_000))

    def add() -> None:
        for offset in range(6_000):
            versions.newest(PARTITION, [record(offset, b"key-%d-%s" % (offset, b"x" * (offset % 200)))])

    kept = kept_bytes(add)

    assert MAX_BYTES * 0.9 < versions.bytes <= MAX_BYTES
    assert kept < 1.2 * MAX_BYTES


def test_many_versions_of_one_key_are_counted():
    """They are needed if each is older than the one before."""
    versions = Versions(NewestBy(VERSION, 100_000))

    def add(count: int) -> None:
        for offset in range(count):
            versions.newest(PARTITION, [record(offset, b"k", 100_000 - offset)])

    kept = kept_bytes(lambda: add(5_000))
    counted = versions.bytes
    add(20_000)

    assert kept < 1.2 * counted
    assert 0.5 * MAX_BYTES < counted <= MAX_BYTES
    assert versions.bytes <= MAX_BYTES


def test_the_versions_of_records_too_far_back_are_removed():
    """They would take up memory without an effect."""
    versions = Versions(NewestBy(VERSION, 10))
    for offset in range(1000):
        versions.newest(PARTITION, [record(offset, b"%d" % offset)])
    one = Versions(NewestBy(VERSION, 10))
    one.newest(PARTITION, [record(0, b"999")])

    assert 11 * one.bytes >= versions.bytes


def test_a_slot_that_is_revoked_between_two_batches_loses_no_record(log, monkeypatch):
    """Dropping the first batch of a partition alone would move the client past its records."""
    monkeypatch.setattr("kafkasse.log.memory.MAX_BATCH_RECORDS", 1)
    write(log, 1, 2)
    process = Process(log)
    client = process.client(start=StartAt.EARLIEST)
    poll = MemoryCursor.poll
    monkeypatch.setattr(MemoryCursor, "poll", lambda *args: [*poll(*args), *poll(*args)])
    turns = itertools.count()
    reader = client.reader
    monkeypatch.setattr(module, "take_turn", lambda: next(turns) == 1 and reader._on_revoked())

    received = client.versions()

    assert [1, 2] == received


def test_a_log_that_does_not_answer_ends_the_search(log, monkeypatch):
    """The client gets an error, or tries again, instead of a stream that may move back."""
    write(log, 1)
    monkeypatch.setattr(module, "MAX_POLL_S", 0)
    monkeypatch.setattr("kafkasse.log.memory.MemoryCursor.poll", lambda *_: [])

    with pytest.raises(KafkaUnavailable):
        module.read_versions(Versions(NewestBy(VERSION, 10)), log, {PARTITION: 1}, {PARTITION: OffsetRange(0, 1)}, 0.05)


def test_records_that_retention_removes_meanwhile_are_not_searched(log):
    """The search ends if the log no longer holds the records."""
    write(log, 1, 2, 3)
    log.drop_before("t", 3)
    versions = Versions(NewestBy(VERSION, 10))

    module.read_versions(versions, log, {PARTITION: 3}, {PARTITION: OffsetRange(0, 3)}, 5)

    assert versions.has_read({PARTITION: 3})
