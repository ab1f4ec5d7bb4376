"""A cursor returns each record exactly once and never hangs, even if brokers respond late, wrongly or not at all."""

from __future__ import annotations

import gc
import ssl
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any
from uuid import UUID

import gevent
import pytest
from crc32c import crc32c
from gevent.event import Event

from kafkasse.errors import ConfigurationError, KafkasseError, TopicNotAvailable
from kafkasse.kafka import broker_node, client
from kafkasse.kafka import cursor as cursor_module
from kafkasse.kafka.connection import Connection
from kafkasse.kafka.connection_pool import ConnectionPool
from kafkasse.kafka.cursor import MAX_POLL_COST, KafkaCursor
from kafkasse.kafka.cursor_core import MAX_UNDECODED_FETCHES
from kafkasse.kafka.decoding import MAX_SMALL_BYTES
from kafkasse.kafka.fetch_protocol import short_topic_id
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, OffsetOutOfRange, Partition, PartitionsFailed
from tests.kafka import fake_broker
from tests.kafka.fake_broker import (
    METADATA,
    NO_LEADER,
    SESSION_ID,
    FakeBroker,
    FakeCluster,
    FakeTopic,
    PartitionData,
    PendingFetch,
    batch,
    partition_data,
)
from tests.kafka.logs import DEFAULTS, POLL_TIMEOUT_S, at, exchange, offsets, open_log, start_poll
from tests.support.certificates import Authority
from tests.support.turns import TurnClock, poll_events
from tests.support.waiting import wait_until

TIMEOUT_S = 0.5
NOT_LEADER, OUT_OF_RANGE, NOT_AUTHORIZED, UNSUPPORTED_COMPRESSION = 6, 1, 29, 76
UNKNOWN_TOPIC_ID, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR = 100, 70, 106
SOON_S = 5.0
CURSORS = 3
TURNS = 10  # a request or a response needs fewer
CONTROL = struct.pack(">h", 0x30)  # the attributes of a batch with a transaction marker
LARGE = b"x" * 600_000  # more than half of max_fetch_bytes: the cursor fetches ahead
MAX_RECORDS = MAX_POLL_COST  # small records; poll() returns at most about this many


@pytest.fixture(autouse=True)
def time_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, one poll() returns all records that a test expects from it."""
    monkeypatch.setattr(cursor_module, "MAX_DECODE_S", POLL_TIMEOUT_S)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster(brokers=2)) as running:
        running.topics["t"] = FakeTopic([0])
        yield running


@pytest.fixture
def broker(cluster) -> FakeBroker:
    return cluster.brokers[0]


@pytest.fixture
def other(cluster) -> FakeBroker:
    return cluster.brokers[1]


@pytest.fixture
def kafka_timeout_s() -> float:
    return POLL_TIMEOUT_S


@pytest.fixture
def log(cluster, kafka_timeout_s) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers, kafka_timeout_s=kafka_timeout_s)) as opened:
        yield opened


@pytest.fixture
def opened(cluster, log) -> Iterator[Callable[..., KafkaCursor]]:
    """Opens cursors over one partition per leader, all at the same offset."""
    cursors = []

    def open(*leaders: int, offset: int = 0, tail: bool = False) -> KafkaCursor:
        cluster.topics["t"].leaders = list(leaders)
        log.describe(["t"])
        cursors.append(log.cursor({at(number): offset for number in range(len(leaders))}, tail))
        return cursors[-1]

    yield open
    for each in cursors:
        each.close()


def count_records(batches: list[Batch]) -> int:
    return sum(len(each.records) for each in batches)


def poll_until(cursor: KafkaCursor, done: Callable[[list[Batch]], bool]) -> list[Batch]:
    """Poll until `done` is true of all batches that were returned."""
    found: list[Batch] = []
    with gevent.Timeout(POLL_TIMEOUT_S):
        while not done(found):
            found += cursor.poll(POLL_TIMEOUT_S)
    return found


def run_event_loop() -> None:
    """Run all events that are ready, here and in the fake brokers, so that a test can check what did not happen."""
    for _ in range(TURNS):
        poll_events()


def await_response(cursor: KafkaCursor) -> None:
    """Wait until the cursor has a response that it has not processed."""
    wait_until(lambda: cursor._responses)


# Each record exactly once


def test_returns_records_fetched_ahead_once(broker, opened):
    """Records that were fetched ahead are returned once, however late poll() takes them."""
    cursor = opened(0)
    exchange(cursor, broker, partition_data(0, batch(0, LARGE)))
    broker.respond(partition_data(0, batch(1, LARGE)))
    await_response(cursor)

    found = cursor.poll(POLL_TIMEOUT_S)

    assert [1] == offsets(found)
    assert {0: 2} == broker.next_fetch().offsets


def test_returns_records_once_while_the_topic_grows(broker, opened):
    """Two fetches ahead of a slow reader do not both return records that are written in between.

    The next response must not overwrite the bytes of one that is not completely decoded.
    """
    cursor = opened(0, 0)
    exchange(cursor, broker, partition_data(0, batch(0, b"x" * 900_000)))
    many, few = batch(1, *[b"y" * 300] * MAX_RECORDS), batch(0, b"a", b"b")
    broker.respond(partition_data(0, many), partition_data(1, few))
    await_response(cursor)
    found = cursor.poll(POLL_TIMEOUT_S)
    run_event_loop()
    if broker.pending_fetches:  # the same request again
        new = partition_data(0, many + batch(MAX_RECORDS + 1, b"new")), partition_data(1, few + batch(2, b"c"))
        broker.respond(*new)
        await_response(cursor)
    found += poll_until(cursor, lambda batches: MAX_RECORDS == len(offsets(found + batches)))
    found += exchange(cursor, broker, partition_data(1, batch(2, b"c") + batch(3, b"d")))

    assert [0, 1, 2, 3] == offsets(found, 1)


def test_reads_other_partitions_while_a_large_batch_is_decoded(broker, opened):
    """A tail fetches the other partitions between two polls, and later the busy one again."""
    cursor = opened(0, 0, tail=True)
    large = batch(0, *[b"x"] * 4 * MAX_RECORDS)
    found = exchange(cursor, broker, partition_data(0, large), partition_data(1))
    found += cursor.poll(POLL_TIMEOUT_S)
    meanwhile = broker.respond(partition_data(1, batch(0, b"a")))
    await_response(cursor)
    found += cursor.poll(POLL_TIMEOUT_S)
    during = offsets(found, 1), len(offsets(found))
    found += poll_until(cursor, lambda batches: 4 * MAX_RECORDS == len(offsets(found + batches)))
    start_poll(cursor)
    broker.fetch_at(0, 4 * MAX_RECORDS)  # others were sent while the large batch was decoded

    assert ([0], {}) == (meanwhile.forgotten, meanwhile.offsets)
    assert [0] == during[0]
    assert during[1] < 4 * MAX_RECORDS
    assert list(range(4 * MAX_RECORDS)) == offsets(found)


def test_reports_an_error_while_a_large_batch_is_decoded(broker, opened):
    """A tail with too many records may always have some to decode. The clients of other partitions must receive the gap."""
    cursor = opened(0, 0, tail=True)
    large = batch(0, *[b"x"] * 4 * MAX_RECORDS)
    found = exchange(cursor, broker, partition_data(0, large), partition_data(1, error=OUT_OF_RANGE))

    with pytest.raises(OffsetOutOfRange) as raised:
        cursor.poll(POLL_TIMEOUT_S)
    cursor.remove([at(1)])
    found += poll_until(cursor, lambda batches: 4 * MAX_RECORDS == len(offsets(found + batches)))

    assert (at(1),) == raised.value.partitions
    assert list(range(4 * MAX_RECORDS)) == offsets(found)


def test_a_quiet_partition_does_not_wait_for_large_ones(broker, opened):
    """While too much is undecoded, a tail fetches on. It discards large records, on average at most twice."""
    large, count = [b"x" * 100] * 4 * MAX_RECORDS, 40
    quiet = count  # its number
    log = batch(0, *large)
    cursor = opened(*[0] * (count + 1), tail=True)
    requested: dict[int, int] = {}  # in the order of the session
    limits, found, fetch = set(), [], None
    polls = responses = due_at = before = waited = 0
    while count_records(found) < count * len(large) + 1:
        run_event_loop()
        if fetch is None and broker.pending_fetches:
            fetch, due_at = broker.next_fetch(), polls + 5
            kept = requested.keys() - fetch.forgotten
            requested = {number: offset for number, offset in requested.items() if number in kept} | fetch.offsets
            limits |= {entry.partition_max_bytes for entry in fetch.partitions.values()}
        if fetch is not None:
            # As Kafka: one large batch, and all small ones.
            due = [number for number, offset in requested.items() if number < count and offset == 0][:1]
            partitions = [partition_data(number, log) for number in due]
            responses += len(due)
            if polls > count and requested.get(quiet) == 0:
                before = before or count_records(found)
                partitions.append(partition_data(quiet, batch(0, b"quiet")))
            if partitions or polls >= due_at:
                fetch.respond(*partitions)
                fetch = None
                await_response(cursor)
        found += cursor.poll(0.01)
        polls += 1
        if offsets(found, quiet):
            waited = waited or count_records(found) - before

    assert 0 < waited < 5 * MAX_RECORDS  # other records arrived meanwhile
    assert count < responses < 3 * count
    assert {MAX_SMALL_BYTES, DEFAULTS["max_fetch_bytes"]} == limits
    assert [[*range(len(large))]] * count == [offsets(found, number) for number in range(count)]
    assert [0] == offsets(found, quiet)


@pytest.mark.parametrize("max_fetch_bytes", [1024, DEFAULTS["max_fetch_bytes"]])
def test_a_tail_stops_fetching_while_too_much_is_undecoded(cluster, broker, max_fetch_bytes):
    """It fetches again when it has decoded enough. It loses no record."""
    count, width = 2 * MAX_UNDECODED_FETCHES, 57
    many = [b"x" * 100] * 140  # almost MAX_SMALL_BYTES; a response has more than three quarters of MIN_FETCH_BYTES
    cluster.topics["t"].leaders = [0] * (count * width + 1)
    with closing(open_log(cluster.bootstrap_servers, max_fetch_bytes=max_fetch_bytes)) as log:
        log.describe(["t"])
        with closing(log.cursor({at(number): 0 for number in range(count * width + 1)}, True)) as cursor:

            def response(number: int) -> list[PartitionData]:
                numbers = range(number * width, number * width + width)
                return [partition_data(number, batch(0, *many)) for number in numbers]

            found = exchange(cursor, broker, *response(0))
            for responses in range(1, count + 1):
                found += cursor.poll(POLL_TIMEOUT_S)
                run_event_loop()
                if not broker.pending_fetches:
                    break
                broker.respond(*response(responses))
                await_response(cursor)
            total = responses * width * len(many)
            undecoded = responses - count_records(found) // (width * len(many))
            found += poll_until(cursor, lambda batches: total == count_records(found + batches))
            found += exchange(cursor, broker, partition_data(count * width, batch(0, b"a")))

    assert MAX_UNDECODED_FETCHES < undecoded < MAX_UNDECODED_FETCHES + 3
    assert [[*range(len(many))]] * responses * width == [offsets(found, number) for number in range(responses * width)]
    assert [0] == offsets(found, count * width)


def test_the_responses_of_all_brokers_together_are_bounded(cluster, opened):
    """The brokers share max_fetch_bytes. A broker without partitions has no share."""
    cursor = opened(0, 1)
    cursor.poll(0.01)
    both = [broker.next_fetch() for broker in cluster.brokers]
    cursor.remove([at(1)])
    both[0].respond(partition_data(0))
    start_poll(cursor)
    one = cluster.brokers[0].next_fetch()

    assert [DEFAULTS["max_fetch_bytes"] // 2] * 2 == [fetch.request.max_bytes for fetch in both]
    assert DEFAULTS["max_fetch_bytes"] == one.request.max_bytes


def test_leader_may_change_while_a_large_batch_is_decoded(cluster, broker, other, opened):
    """The cursor decodes the records of the former leader, and then reads from the new one. It reads no record twice."""
    cursor = opened(0, tail=True)
    values = [b"%d" % number for number in range(4 * MAX_RECORDS)]
    found = exchange(cursor, broker, partition_data(0, batch(0, *values)))
    cluster.topics["t"].leaders[0] = 1
    broker.connections[0].shutdown(fake_broker.socket.SHUT_RDWR)
    wait_until(lambda: not cursor._nodes)
    found += poll_until(cursor, lambda batches: len(values) == len(offsets(found + batches)))
    last = start_poll(cursor)
    other.fetch_at(0, len(values)).respond(partition_data(0, batch(len(values), b"new")))

    assert [*range(len(values) + 1)] == offsets(found + last.get())


@pytest.mark.parametrize("action", ["close", "remove", "seek"])
def test_large_batch_may_be_discarded_while_it_is_decoded(broker, opened, action):
    """Another greenlet may close the cursor, remove the partition or move it, between any two pieces."""
    cursor = opened(0, tail=True)
    exchange(cursor, broker, partition_data(0, batch(0, *[b"x"] * 4 * MAX_RECORDS)))
    late = start_poll(cursor)  # has begun to decode when take_turn() switches greenlets
    gevent.sleep(0)
    if action == "close":
        cursor.close()
        late.get(timeout=SOON_S)
        return
    _ = cursor.remove([at(0)]) if action == "remove" else cursor.seek({at(0): 99})
    late.kill()
    cursor.seek({at(0): 99})
    again = start_poll(cursor)
    broker.fetch_at(0, 99).respond(partition_data(0, batch(99, b"a")))

    assert [99] == offsets(again.get())


def test_seek_discards_the_response_in_flight(broker, opened):
    cursor = opened(0)
    poll = start_poll(cursor)
    late = broker.next_fetch()
    cursor.seek({at(0): 7})
    late.respond(partition_data(0, batch(0, b"a")))

    again = broker.respond(partition_data(0, batch(5, b"b", b"c", b"d")))

    assert {0: 7} == again.offsets
    assert [7] == offsets(poll.get())


def test_returns_the_records_before_damaged_ones(broker, opened, caplog):
    """Records before the damaged batch, and in other partitions, are returned before poll() raises."""
    cursor = opened(0, 0)
    damaged = bytearray(batch(1, b"bbbb"))
    damaged[-3] ^= 1

    parts = partition_data(0, batch(0, b"a") + bytes(damaged)), partition_data(1, batch(0, b"c"))
    found = exchange(cursor, broker, *parts)

    assert ([0], [0]) == (offsets(found, 0), offsets(found, 1))
    with pytest.raises(PartitionsFailed, match="damaged") as failed:
        cursor.poll(POLL_TIMEOUT_S)
    assert [at(0)] == list(failed.value.errors)
    assert (
        f"Damaged records: {at(0).topic}/0: the records after offset 1 cannot be decoded: the checksum" in caplog.text
    )


def test_ignores_an_explicit_default_of_the_diverging_epoch(broker, opened):
    """A broker may send the optional field with its default value: the log has not diverged."""
    assert [0] == offsets(exchange(opened(0), broker, partition_data(0, batch(0, b"a"), diverging=(-1, -1))))


def test_sends_the_epoch_of_a_transaction_marker(broker, opened):
    """If the next request contained the epoch before the marker, a broker would report a divergence."""
    cursor = opened(0)
    marker = bytearray(batch(10, b"", epoch=5))
    marker[21:23] = CONTROL
    marker[17:21] = struct.pack(">I", crc32c(bytes(marker[21:])))
    read = exchange(cursor, broker, partition_data(0, batch(0, *[b"a"] * 10, epoch=4) + marker))
    start_poll(cursor)

    assert list(range(10)) == offsets(read)
    assert 5 == broker.fetch_at(0, 11).partitions[0].last_fetched_epoch


def test_ignores_a_leader_with_an_older_epoch(cluster, broker, other, opened):
    """A broker whose metadata lags behind names a former leader, whose log may end too early."""
    topic = cluster.topics["t"]
    topic.epochs[0] = 5
    poll = start_poll(opened(0, tail=True))
    fetch, refreshes = broker.next_fetch(), cluster.requests[METADATA]
    topic.leaders, topic.epochs[0] = [1], 4
    for _ in range(3):
        fetch.respond(partition_data(0, error=NOT_LEADER))
        fetch = broker.next_fetch()
    fetches_from_former_leader = other.pending_fetches

    topic.leaders, topic.epochs[0] = [0], 6
    fetch.respond(partition_data(0, batch(0, b"a", epoch=6)))

    assert cluster.requests[METADATA] > refreshes
    assert not fetches_from_former_leader
    assert [0] == offsets(poll.get())


# Fetch sessions


@pytest.mark.parametrize("error", [FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR])
def test_starts_a_new_session_if_the_broker_rejects_it(cluster, broker, opened, error):
    """The first request of the new session names all partitions, at their current offsets, on the same connection."""
    cursor = opened(0, 0, tail=True)
    exchange(cursor, broker, partition_data(0, batch(0, b"a")), partition_data(1))
    refreshes = cluster.requests[METADATA]
    poll = start_poll(cursor)
    rejected = broker.respond(error_code=error).request
    again = broker.respond(partition_data(0, batch(1, b"b")), partition_data(1))

    assert (SESSION_ID, 1) == (rejected.session_id, rejected.session_epoch)
    assert ({0: 1, 1: 0}, 0, 0) == (again.offsets, again.request.session_id, again.request.session_epoch)
    assert [1] == offsets(poll.get())
    assert (1, refreshes) == (len(broker.connections), cluster.requests[METADATA])


def test_follows_a_leader_that_moves_away_and_back(cluster, broker, other, opened):
    """The session forgets the partition, and includes it again after the leader has returned."""
    poll = start_poll(opened(0, 0, tail=True))
    opening = broker.next_fetch()
    cluster.topics["t"].leaders[0] = 1
    opening.respond(partition_data(0, error=NOT_LEADER), partition_data(1))
    without = broker.next_fetch()
    moved = other.next_fetch()
    cluster.topics["t"].leaders[0] = 0
    moved.respond(partition_data(0, error=NOT_LEADER))
    without.respond()
    back = broker.fetch_at(0, 0)
    back.respond(partition_data(0, batch(0, b"a")))

    assert ([0], {}) == (without.forgotten, without.offsets)
    assert ({0: 0}, []) == (back.offsets, back.forgotten)
    assert [0] == offsets(poll.get())


def test_waits_as_long_as_a_quota_requires(broker, opened):
    """A broker that throttles us would not answer an earlier request, which would then time out."""
    began_at = time.monotonic()

    found = exchange(opened(0), broker, partition_data(0, batch(0, b"a")), throttle_time_ms=200)

    assert [0] == offsets(found)
    assert time.monotonic() - began_at >= 0.2


# Many cursors: with thousands of partitions, a request or a response costs milliseconds of CPU time.


@pytest.fixture
def turns(monkeypatch) -> Callable[[str], list[int]]:
    """Makes a function of broker_node.py seem to take more than a turn of the event loop. Returns the turns of its calls."""
    clock = TurnClock(monkeypatch)

    def turns_of(name: str) -> list[int]:
        numbers: list[int] = []
        call = getattr(broker_node, name)

        def slow(*arguments: Any) -> Any:
            clock.compute()
            numbers.append(gevent.get_hub().loop.iteration)
            return call(*arguments)

        monkeypatch.setattr(broker_node, name, slow)
        return numbers

    return turns_of


def test_the_first_requests_of_many_cursors_take_turns(broker, opened, turns, monkeypatch):
    take, all_connected, connected = ConnectionPool.take, Event(), []

    def take_together(*arguments: Any) -> Connection:
        connection = take(*arguments)
        connected.append(connection)
        all_connected.wait()
        return connection

    monkeypatch.setattr(ConnectionPool, "take", take_together)
    sent_in = turns("encode_request")
    polls = [start_poll(opened(0)) for _ in range(CURSORS)]
    wait_until(lambda: len(connected) == CURSORS)
    all_connected.set()
    for _ in polls:
        broker.respond(partition_data(0, batch(0, b"a")))

    assert [[0]] * CURSORS == [offsets(poll.get()) for poll in polls]
    assert CURSORS == len(set(sent_in))


def test_the_responses_to_many_cursors_take_turns(broker, opened, turns):
    parsed_in = turns("parse_response")
    polls = [start_poll(opened(0)) for _ in range(CURSORS)]
    for fetch in [broker.next_fetch() for _ in polls]:
        fetch.respond(partition_data(0, batch(0, b"a")))

    assert [[0]] * CURSORS == [offsets(poll.get()) for poll in polls]
    assert CURSORS == len(set(parsed_in))


# Several topics in one session


@pytest.mark.parametrize(
    ("code", "error"), [(NOT_AUTHORIZED, TopicNotAvailable), (UNSUPPORTED_COMPRESSION, KafkasseError)]
)
def test_error_of_a_partition_does_not_affect_others(broker, opened, code, error):
    """poll() reports a partition that we may not or cannot read, and removes it. The other one is read as before."""
    cursor = opened(0, 0, tail=True)
    failed = exchange(cursor, broker, partition_data(0, error=code), partition_data(1))
    poll = start_poll(cursor)
    without = broker.respond(partition_data(1, batch(0, b"b")))

    assert {at(0): error} == {each: type(error) for each, error in failed.errors.items()}
    assert ([0], {}) == (without.forgotten, without.offsets)
    assert [0] == offsets(poll.get(), 1)


def test_reports_a_topic_without_access_in_the_metadata(cluster, broker, opened):
    """A partition that needs a leader while we may not describe its topic is reported like one that we may not read."""
    cursor = opened(0, 0, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    cluster.topics["t"].error = NOT_AUTHORIZED
    fetch.respond(partition_data(0, error=NOT_LEADER), partition_data(1))
    broker.respond()

    assert {at(0): TopicNotAvailable} == {each: type(error) for each, error in poll.get().errors.items()}
    assert [] == cursor.poll(TIMEOUT_S)  # the partition is reported once


def test_seek_continues_a_partition_whose_error_was_not_reported_yet(broker, opened):
    """The caller has moved it, so poll() does not report the former error."""
    cursor = opened(0, 0, tail=True)
    found = exchange(cursor, broker, partition_data(0, error=NOT_AUTHORIZED), partition_data(1, batch(0, b"a")))
    cursor.seek({at(0): 3})

    assert [0] == offsets(found, 1)
    assert [3] == offsets(exchange(cursor, broker, partition_data(0, batch(3, b"b"))))


def test_removed_partition_is_forgotten_by_the_session(cluster, broker, opened):
    """A response in flight for it is ignored, and its leader is not looked up. It can be added again."""
    cursor = opened(0, 0, tail=True)
    poll = start_poll(cursor)
    fetch, refreshes = broker.next_fetch(), cluster.requests[METADATA]
    cursor.remove([at(0), at(9)])
    fetch.respond(partition_data(0, batch(0, b"a")), partition_data(1, batch(0, b"b")))
    found = poll.get()
    poll = start_poll(cursor)
    without = broker.next_fetch()
    assert refreshes == cluster.requests[METADATA]
    cursor.seek({at(0): 0})
    without.respond()
    back = broker.respond(partition_data(0, batch(0, b"c")))

    assert ([], [0]) == (offsets(found, 0), offsets(found, 1))
    assert ([0], {1: 1}) == (without.forgotten, without.offsets)
    assert ([], {0: 0}) == (back.forgotten, back.offsets)
    assert [b"c"] == [record.value for each in poll.get() for record in each.records]


def test_one_session_reads_hundreds_of_topics(cluster, broker, log):
    """Topics are added and removed while the session is open. There is one connection."""
    names = [f"t{number}" for number in range(400)]
    ids = {name: UUID(int=1000 + number) for number, name in enumerate(names)}
    for name, topic_id in ids.items():
        cluster.topics[name] = FakeTopic([0, 0, 0], topic_id)
    log.describe(names)
    cursor, refreshes = log.cursor({}, tail=True), cluster.requests[METADATA]
    poll = start_poll(cursor)
    run_event_loop()
    cursor.seek({Partition(name, number): 0 for name in names[:300] for number in range(3)})
    opening = broker.next_fetch()
    cursor.remove(Partition(name, number) for name in names[:100] for number in range(3))
    cursor.seek({Partition(name, number): 0 for name in names[300:] for number in range(3)})
    opening.respond()
    changed = broker.next_fetch()
    changed.respond_with(
        {ids[name]: [partition_data(2, batch(0, b"a"))] for name in (names[0], names[100], names[300])}
    )

    assert [ids[name] for name in names[:300]] == opening.topics
    assert [ids[name] for name in names[300:]] == changed.topics
    assert 300 == len(changed.forgotten)
    assert {Partition(names[100], 2), Partition(names[300], 2)} == {each.partition for each in poll.get()}
    assert (1, refreshes) == (len(broker.connections), cluster.requests[METADATA])  # the leaders were known
    cursor.close()


def test_one_session_contains_names_or_topic_ids(cluster, broker, log):
    """If one topic has no topic ID, a new session identifies all topics by name."""
    cluster.topics |= {"with": FakeTopic([0], UUID(int=1)), "without": FakeTopic([0], UUID(int=0))}
    log.describe(["with", "without"])
    cursor = log.cursor({Partition("with", 0): 0}, tail=True)
    poll = start_poll(cursor)
    by_id = broker.next_fetch()
    cursor.seek({Partition("without", 0): 0})
    by_id.respond()
    by_name = broker.next_fetch()
    cursor.remove([Partition("without", 0)])
    by_name.respond()
    by_id_again = broker.next_fetch()
    by_id_again.respond_with({UUID(int=1): [partition_data(0, batch(0, b"a"))]})

    assert ([UUID(int=1)], ["with", "without"], [UUID(int=1)]) == (by_id.topics, by_name.topics, by_id_again.topics)
    assert (SESSION_ID, 0) == (by_name.request.session_id, by_name.request.session_epoch)  # replaces the session
    assert [0] == [record.offset for each in poll.get() for record in each.records]
    cursor.close()


def test_unknown_topic_id_affects_only_its_topic(cluster, broker, log):
    """The cursor refreshes the metadata of the topic, with a backoff, and continues to read the other topic at once."""
    cluster.topics |= {"gone": FakeTopic([0], UUID(int=1)), "busy": FakeTopic([0], UUID(int=2))}
    log.describe(["gone", "busy"])
    cursor = log.cursor({Partition("gone", 0): 0, Partition("busy", 0): 0}, tail=True)
    del cluster.topics["gone"]

    def serve() -> None:
        unknown = {UUID(int=1): [partition_data(0, error=UNKNOWN_TOPIC_ID)]}
        broker.next_fetch().respond_with(unknown | {UUID(int=2): [partition_data(0)]})
        for offset in range(100):
            broker.next_fetch().respond_with({UUID(int=2): [partition_data(0, batch(offset, b"a"))]})

    serving = gevent.spawn(serve)
    refreshes = cluster.requests[METADATA]
    found: list[int] = []
    while len(found) < 100:
        found += [record.offset for each in cursor.poll(POLL_TIMEOUT_S) for record in each.records]
    serving.get()

    assert list(range(100)) == found
    assert 0 < cluster.requests[METADATA] - refreshes < 10
    cursor.close()


def test_leader_that_moves_is_found_although_another_partition_has_none(cluster, broker, other, opened):
    """Each partition has its own backoff: a partition that has no leader for long does not delay one whose leader moved."""
    cursor = opened(0, NO_LEADER, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    core = cursor._core
    core._partitions[at(1)].retry_at = core._next_lookup_at = time.monotonic() + POLL_TIMEOUT_S

    cluster.topics["t"].leaders[0] = 1
    fetch.respond(partition_data(0, error=NOT_LEADER))
    other.respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


# Reconnecting and leaders


def respond_to_another_request(fetch: PendingFetch) -> None:
    fetch.request.header.correlation_id += 1
    fetch.respond(partition_data(0, batch(0, b"wrong")))


@pytest.mark.parametrize("kafka_timeout_s", [TIMEOUT_S])
@pytest.mark.parametrize(
    "fail",
    [PendingFetch.disconnect, respond_to_another_request, lambda fetch: None],
    ids=["disconnect", "response to another request", "timeout"],
)
def test_reconnects(broker, opened, fail):
    """The cursor closes the connection, and sends the same request on a new one."""
    poll = start_poll(opened(0))
    failed = broker.next_fetch()
    fail(failed)

    again = broker.respond(partition_data(0, batch(0, b"right")))

    assert [b"right"] == [bytes(record.value) for each in poll.get() for record in each.records]
    assert failed.offsets == again.offsets
    wait_until(lambda: failed.sock.closed)


@pytest.mark.parametrize("kafka_timeout_s", [3 * TIMEOUT_S])
def test_waits_for_a_response_that_arrives_slowly(broker, opened, kafka_timeout_s):
    """Otherwise a response that takes longer than the timeout would be fetched again forever."""
    poll = start_poll(opened(0))

    broker.next_fetch().respond_in_parts(3, kafka_timeout_s / 2, partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert 1 == len(broker.connections)


def test_reuses_a_connection_after_the_response_to_a_closed_cursor(broker, opened):
    """The connection returns to the pool with the response. If no response arrives, it is closed."""
    for _ in range(3):
        poll = start_poll(cursor := opened(0))
        fetch = broker.next_fetch()
        cursor.close()
        fetch.respond(partition_data(0, batch(0, b"a")))
        assert [] == poll.get()
        run_event_loop()
    assert 1 == len(broker.connections)

    for _ in range(2):
        start_poll(cursor := opened(0))
        broker.next_fetch()
        cursor.close()
    assert 2 == len(broker.connections)


@pytest.fixture
def idle(broker, log, opened) -> list[fake_broker.socket.socket]:
    """Three connections of closed cursors, as the broker sees them. Each cursor has its own."""
    cursors = [opened(0) for _ in range(3)]
    for cursor in cursors:
        exchange(cursor, broker, partition_data(0, batch(0, b"a")))
    for cursor in cursors:
        cursor.close()
    wait_until(lambda: 3 == len(list(log.pool.idle())))
    cursors[0].poll(0)  # a late call does not use the connection
    assert [None] * 3 == [each.in_flight for each in log.pool.idle()]
    return list(broker.connections)


def test_replaces_idle_connections_that_the_broker_closed(broker, opened, idle):
    """The cursor opens a new connection at once."""
    for sock in idle:
        sock.shutdown(fake_broker.socket.SHUT_RDWR)

    assert [0] == offsets(exchange(opened(0), broker, partition_data(0, batch(0, b"a"))))


@pytest.mark.parametrize("kafka_timeout_s", [TIMEOUT_S])
def test_waits_once_for_dead_idle_connections(broker, opened, idle):
    """If one idle connection is dead, the cursor closes the others too instead of waiting for each."""
    poll = start_poll(opened(0))
    silent = 0
    while (fetch := broker.next_fetch()).sock in idle:
        silent += 1
    fetch.respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert 1 == silent


def test_repeats_out_of_range_until_seek(broker, opened):
    """The caller may have failed to handle the error. Meanwhile the cursor reads the other partitions."""
    cursor = opened(0, 0, offset=5)

    def serve() -> None:
        while fetch := broker.next_fetch():
            parts = {
                0: partition_data(0, error=OUT_OF_RANGE),
                1: partition_data(1, batch(fetch.offsets.get(1, 5), b"a")),
            }
            fetch.respond(*(parts[number] for number in fetch.offsets))

    serving = gevent.spawn(serve)
    errors, read = [], []
    while len(errors) < 3 or len(read) < 3:
        found = start_poll(cursor).get()
        _ = errors.append(found) if isinstance(found, OffsetOutOfRange) else read.extend(offsets(found, 1))
        assert len(errors) < 100, "the other partition is not read"
    serving.kill()

    assert {(at(0),)} == {each.partitions for each in errors}
    assert [5, 6, 7] == read[:3]


def test_a_fetch_without_records_ends_a_row_of_returns(broker, opened):
    """The second time out of range is not the second in a row, so the cursor still compares the epochs."""
    cursor = opened(0)
    exchange(cursor, broker, partition_data(0, batch(0, b"a")))
    for _ in range(2):
        found = exchange(cursor, broker, partition_data(0, error=OUT_OF_RANGE))
        cursor.seek({at(0): 1})
        poll = start_poll(cursor)
        fetch = broker.next_fetch()
        fetch.respond(partition_data(0))
        run_event_loop()
        poll.kill()

        assert isinstance(found, OffsetOutOfRange)
        assert 0 == fetch.partitions[0].last_fetched_epoch


def test_reads_a_partition_as_soon_as_it_has_a_leader(cluster, broker, other, opened):
    cursor = opened(0, NO_LEADER)
    found = exchange(cursor, broker, partition_data(0, batch(0, b"a")))
    second = start_poll(cursor)
    fetch = broker.next_fetch()
    cluster.topics["t"].leaders[1] = 1
    other.respond(partition_data(1, batch(0, b"b")))

    assert ([0], {0: 1}) == (offsets(found), fetch.offsets)
    assert [0] == offsets(second.get(), 1)


def test_reports_a_permanent_error_while_it_finds_leaders(log, opened, monkeypatch):
    """The password may have changed, for example. If the cursor retried forever, its streams would receive no records."""
    cursor = opened(NO_LEADER)
    rejected = ConfigurationError("Kafka rejects the password.")

    def describe(topics):
        raise rejected

    monkeypatch.setattr(log, "describe", describe)

    assert rejected is start_poll(cursor).get(timeout=POLL_TIMEOUT_S)


@pytest.mark.parametrize(
    "fail",
    [lambda fetch: fetch.respond(partition_data(0, error=NOT_LEADER)), PendingFetch.disconnect],
    ids=["error", "disconnect"],
)
def test_retries_with_a_backoff(broker, opened, fail):
    """A leader that cannot be read now receives few requests: six retries take at least 0.6 s."""
    poll = start_poll(opened(0, tail=True))
    began_at = time.monotonic()
    for _ in range(6):
        fail(broker.next_fetch())
    broker.respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert time.monotonic() - began_at >= 0.6


def test_does_not_read_a_recreated_topic(cluster, broker, opened):
    poll = start_poll(opened(0))
    fetch, refreshes = broker.next_fetch(), cluster.requests[METADATA]
    cluster.topics["t"].id = UUID(int=8)
    fetch.respond(partition_data(0, error=UNKNOWN_TOPIC_ID))
    wait_until(lambda: cluster.requests[METADATA] > refreshes + 2)

    assert 0 == broker.pending_fetches
    poll.kill()


def test_does_not_read_a_topic_that_was_recreated_before_the_cursor_opened(cluster, broker, log):
    """The cached leaders may be those of the recreated topic."""
    former = short_topic_id(UUID(int=8 << 96).bytes)
    with closing(log.cursor({at(0): 0}, topic_ids={"t": former})) as cursor:
        refreshes = cluster.requests[METADATA]
        poll = start_poll(cursor)
        wait_until(lambda: cluster.requests[METADATA] > refreshes + 2)

        assert 0 == broker.pending_fetches
        poll.kill()


def test_a_cursor_that_is_closed_while_it_sends_sends_nothing_more(opened, log, monkeypatch):
    """A full socket lets other greenlets run, and one of them may close the cursor."""
    cursor, send = opened(0, 1, tail=True), Connection.send
    for leader in log.known_leaders([at(0), at(1)]).values():
        log.pool.release(log.pool.take(leader.broker))  # an open connection, so that poll() sends at once
    sent = []

    def close_and_send(*request: object) -> None:
        sent.append(request)
        cursor.close()
        send(*request)

    monkeypatch.setattr(Connection, "send", close_and_send)

    assert [] == cursor.poll(POLL_TIMEOUT_S)
    assert (1, {}) == (len(sent), cursor._nodes)


@pytest.mark.parametrize("tail", [False, True])
def test_closed_cursor_is_freed_at_once(broker, opened, log, tail):
    """A cursor may hold megabytes, and workers rarely run the garbage collector."""
    opened(0)
    cursor = log.cursor({at(0): 0}, tail)
    exchange(cursor, broker, partition_data(0, batch(0, b"x" * 100_000)))
    reference = weakref.ref(cursor)
    gc.collect()
    gc.disable()
    try:
        cursor.close()
        del cursor
        run_event_loop()
        assert reference() is None
    finally:
        gc.enable()


class TlsBroker:
    """Makes a fake broker use TLS. While `awake` is False, the broker accepts connections but does not respond."""

    def __init__(self, broker: FakeBroker, context: ssl.SSLContext) -> None:
        self.awake, self.accepted = True, 0
        self._serve, self._context = broker._serve, context
        broker._server.set_handle(self.serve)

    def serve(self, sock: fake_broker.socket.socket, address: object) -> None:
        self.accepted += 1
        if not self.awake:
            gevent.sleep(POLL_TIMEOUT_S)
        with suppress(OSError):
            self._serve(self._context.wrap_socket(sock, server_side=True), address)


def test_reconnects_if_the_tls_handshake_times_out(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "MAX_HANDSHAKE_S", TIMEOUT_S)
    authority = Authority()
    certificate, key = authority.issue("a broker")
    for name, text in {"ca": authority.certificate, "cert": certificate, "key": key}.items():
        (tmp_path / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    _, silent = [TlsBroker(each, context) for each in cluster.brokers]
    cluster.topics["t"].leaders = [1]
    settings = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "ca"), "ssl_check_hostname": False}
    log = open_log(cluster.bootstrap_servers, settings, kafka_timeout_s=TIMEOUT_S)
    log.describe(["t"])
    silent.awake, accepted = False, silent.accepted
    cursor = log.cursor({at(0): 0}, tail=True)
    poll = start_poll(cursor)
    wait_until(lambda: silent.accepted > accepted)
    silent.awake = True

    cluster.brokers[1].respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    cursor.close()
    log.close()
