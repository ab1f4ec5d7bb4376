"""A cursor returns each record exactly once and never hangs, even if brokers respond late, wrongly or not at all."""

from __future__ import annotations

import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from uuid import UUID

import gevent
import pytest
from crc32c import crc32c

from kafkasse.errors import ConfigurationError, TopicNotAvailable
from kafkasse.kafka import client
from kafkasse.kafka import cursor as cursor_module
from kafkasse.kafka.cursor import MAX_POLL_COST, MAX_UNDECODED_FETCHES, KafkaCursor
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, OffsetOutOfRange, OffsetRange, Partition, PartitionsFailed
from tests.kafka import fake_broker
from tests.kafka.fake_broker import (
    METADATA,
    NO_LEADER,
    SESSION_ID,
    FakeBroker,
    FakeCluster,
    FakeTopic,
    PendingFetch,
    batch,
    partition_data,
)
from tests.kafka.logs import DEFAULTS, POLL_TIMEOUT_S, at, offsets, open_log, start_poll
from tests.support.certificates import Authority
from tests.support.waiting import wait_until

TIMEOUT_S = 0.5
NOT_LEADER, OUT_OF_RANGE, FETCH_SESSION_ID_NOT_FOUND = 6, 1, 70
NOT_AUTHORIZED, UNKNOWN_TOPIC_ID, FETCH_SESSION_TOPIC_ID_ERROR = 29, 100, 106
SOON_S = 5.0
TURNS, TURN_S = 20, 0.001  # gevent reads sockets only if a turn is longer than 0 s
CONTROL = struct.pack(">h", 0x30)  # the attributes of a batch with a transaction marker
LARGE = b"x" * 600_000  # more than half of max_fetch_bytes: the cursor fetches ahead
MAX_RECORDS = MAX_POLL_COST  # small records; poll() returns at most about this many


@pytest.fixture(autouse=True)
def time_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, one poll() returns all records that a test expects from it."""
    monkeypatch.setattr(cursor_module, "MAX_DECODE_S", POLL_TIMEOUT_S)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    running = FakeCluster(brokers=2)
    running.topics["t"] = FakeTopic([0])
    yield running
    running.close()


@pytest.fixture
def log(cluster) -> Iterator[KafkaLog]:
    opened = open_log(cluster.bootstrap_servers, kafka_timeout_s=TIMEOUT_S)
    yield opened
    opened.close()


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
    """Run all events that are ready, so that a test can check that something did not happen."""
    for _ in range(TURNS):
        gevent.sleep(TURN_S)


def await_response(cursor: KafkaCursor) -> None:
    """Wait until the cursor has a response that it has not processed."""
    wait_until(lambda: cursor._responses)


def fetched_ahead(broker: FakeBroker, cursor: KafkaCursor) -> tuple[bytes, bytes]:
    """Let a response wait in the cursor: a whole run of partition 0 from offset 1 on, and two records of partition 1.

    Returns the batches of both partitions.
    """
    first = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"x" * 900_000)))
    first.get()
    many, few = batch(1, *[b"y" * 300] * MAX_RECORDS), batch(0, b"a", b"b")
    broker.next_fetch().respond(partition_data(0, many), partition_data(1, few))
    await_response(cursor)
    return many, few


# Each record exactly once


def test_returns_records_fetched_ahead_once(cluster, opened):
    """Records that were fetched ahead are returned once, however late poll() takes them."""
    (broker, _), cursor = cluster.brokers, opened(0)
    first = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, LARGE)))
    first.get()
    broker.next_fetch().respond(partition_data(0, batch(1, LARGE)))
    await_response(cursor)

    found = cursor.poll(POLL_TIMEOUT_S)

    assert [1] == offsets(found)
    assert {0: 2} == broker.next_fetch().offsets


def test_returns_records_once_while_the_topic_grows(cluster, opened):
    """Two fetches ahead of a slow reader do not both return records that are written in between."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    many, few = fetched_ahead(broker, cursor)
    found = cursor.poll(POLL_TIMEOUT_S)
    run_event_loop()
    if broker.pending_fetches:  # the same request again
        broker.next_fetch().respond(partition_data(0, many), partition_data(1, few + batch(2, b"c")))
        await_response(cursor)
    found += poll_until(cursor, lambda batches: MAX_RECORDS == len(offsets(found + batches)))
    last = start_poll(cursor)
    broker.next_fetch().respond(partition_data(1, batch(2, b"c") + batch(3, b"d")))
    found += last.get()

    assert [0, 1, 2, 3] == offsets(found, 1)


def test_keeps_a_response_until_its_last_record_is_returned(cluster, opened):
    """The next response must not overwrite the bytes of one that is not completely decoded."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    many, few = fetched_ahead(broker, cursor)

    found = cursor.poll(POLL_TIMEOUT_S)
    run_event_loop()
    if broker.pending_fetches:  # the same request again
        broker.next_fetch().respond(partition_data(0, many + batch(MAX_RECORDS + 1, b"new")), partition_data(1, few))
        await_response(cursor)
    found += poll_until(cursor, lambda batches: MAX_RECORDS == len(offsets(found + batches)))

    assert [0, 1] == offsets(found, 1)


def test_reads_other_partitions_while_a_large_batch_is_decoded(cluster, opened):
    """A tail fetches the other partitions between two polls, and later the busy one again."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    large = batch(0, *[b"x"] * 4 * MAX_RECORDS)
    broker.next_fetch().respond(partition_data(0, large), partition_data(1), session=SESSION_ID)
    found = poll.get() + cursor.poll(POLL_TIMEOUT_S)
    meanwhile = broker.next_fetch()
    meanwhile.respond(partition_data(1, batch(0, b"a")), session=SESSION_ID)
    await_response(cursor)
    found += cursor.poll(POLL_TIMEOUT_S)
    during = offsets(found, 1), len(offsets(found))
    found += poll_until(cursor, lambda batches: 4 * MAX_RECORDS == len(offsets(found + batches)))
    start_poll(cursor)
    fetch = broker.next_fetch()
    while 0 not in fetch.offsets:  # sent while the large batch was decoded
        fetch.respond(session=SESSION_ID)
        fetch = broker.next_fetch()

    assert ([0], {}) == (meanwhile.forgotten, meanwhile.offsets)
    assert [0] == during[0]
    assert during[1] < 4 * MAX_RECORDS
    assert list(range(4 * MAX_RECORDS)) == offsets(found)
    assert 4 * MAX_RECORDS == fetch.offsets[0]


@pytest.mark.parametrize("max_fetch_bytes", [1024, DEFAULTS["max_fetch_bytes"]])
def test_a_tail_stops_fetching_while_too_much_is_undecoded(cluster, max_fetch_bytes):
    """It fetches again when it has decoded enough. It loses no record."""
    [broker, _], count = cluster.brokers, 2 * MAX_UNDECODED_FETCHES
    many = [b"x" * 100] * 4 * MAX_RECORDS  # more than three quarters of MIN_FETCH_BYTES
    cluster.topics["t"].leaders = [0] * (count + 1)
    with closing(open_log(cluster.bootstrap_servers, max_fetch_bytes=max_fetch_bytes)) as log:
        log.describe(["t"])
        with closing(log.cursor({at(number): 0 for number in range(count + 1)}, True)) as cursor:
            poll = start_poll(cursor)
            broker.next_fetch().respond(partition_data(0, batch(0, *many)), session=SESSION_ID)
            found = poll.get()
            for responses in range(1, count + 1):
                found += cursor.poll(POLL_TIMEOUT_S)
                run_event_loop()
                if not broker.pending_fetches:
                    break
                broker.next_fetch().respond(partition_data(responses, batch(0, *many)), session=SESSION_ID)
                await_response(cursor)
            found += poll_until(cursor, lambda batches: responses * len(many) == count_records(found + batches))
            last = start_poll(cursor)
            broker.next_fetch().respond(partition_data(count, batch(0, b"a")), session=SESSION_ID)
            found += last.get()

    assert MAX_UNDECODED_FETCHES < responses < MAX_UNDECODED_FETCHES + 3
    assert [[*range(len(many))]] * responses == [offsets(found, number) for number in range(responses)]
    assert [0] == offsets(found, count)


def test_the_responses_of_all_brokers_together_are_bounded(cluster, opened):
    """The brokers share max_fetch_bytes. A broker without partitions has no share."""
    cursor = opened(0, 1)
    cursor.poll(0.01)
    both = [broker.next_fetch() for broker in cluster.brokers]
    cursor.remove([at(1)])
    both[0].respond(partition_data(0))
    cursor.poll(0.01)
    one = cluster.brokers[0].next_fetch()

    assert [DEFAULTS["max_fetch_bytes"] // 2] * 2 == [fetch.request.max_bytes for fetch in both]
    assert DEFAULTS["max_fetch_bytes"] == one.request.max_bytes


def test_leader_may_change_while_a_large_batch_is_decoded(cluster, opened):
    """The new leader returns records that the cursor has decoded meanwhile. No record is returned twice or lost."""
    (broker, other), cursor = cluster.brokers, opened(0, tail=True)
    poll = start_poll(cursor)
    values = [b"%d" % number for number in range(4 * MAX_RECORDS)]
    broker.next_fetch().respond(partition_data(0, batch(0, *values)), session=SESSION_ID)
    found = poll.get()
    cluster.topics["t"].leaders[0] = 1
    cursor._abandon(cursor._nodes_of[at(0)])
    cursor._assign(cursor._find_leaders([at(0)]))
    cursor._fetch()  # as after a slow connection attempt, with the batch in memory
    early = other.next_fetch()
    found += cursor.poll(POLL_TIMEOUT_S)
    early.respond(partition_data(0, batch(0, *values)), session=SESSION_ID + 1)
    found += poll_until(cursor, lambda batches: len(values) == len(offsets(found + batches)))
    last = start_poll(cursor)
    fetch = other.next_fetch()
    while fetch.offsets.get(0) != len(values):
        fetch.respond(session=SESSION_ID + 1)
        fetch = other.next_fetch()
    fetch.respond(partition_data(0, batch(len(values), b"new")), session=SESSION_ID + 1)

    assert [*range(len(values) + 1)] == offsets(found + last.get())


@pytest.mark.parametrize("action", ["close", "remove", "seek"])
def test_large_batch_may_be_discarded_while_it_is_decoded(cluster, opened, action):
    """Another greenlet may close the cursor, remove the partition or move it, between any two pieces."""
    (broker, _), cursor = cluster.brokers, opened(0, tail=True)
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, *[b"x"] * 4 * MAX_RECORDS)), session=SESSION_ID)
    poll.get()
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
    fetch = broker.next_fetch()
    while 99 not in fetch.offsets.values():
        fetch.respond(session=SESSION_ID)
        fetch = broker.next_fetch()
    fetch.respond(partition_data(0, batch(99, b"a")), session=SESSION_ID)

    assert [99] == offsets(again.get())


def test_seek_discards_the_response_in_flight(cluster, opened):
    """A response for the offset before the seek() is discarded."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    late = broker.next_fetch()
    cursor.seek({at(0): 7})
    late.respond(partition_data(0, batch(0, b"a")))

    again = broker.next_fetch()
    again.respond(partition_data(0, batch(5, b"b", b"c", b"d")))

    assert {0: 7} == again.offsets
    assert [7] == offsets(poll.get())


def test_returns_the_records_before_damaged_ones(cluster, opened):
    """Records before the damaged batch, and in other partitions, are returned before poll() raises."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    damaged = bytearray(batch(1, b"bbbb"))
    damaged[-3] ^= 1
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a") + bytes(damaged)), partition_data(1, batch(0, b"c")))

    found = poll.get()

    assert ([0], [0]) == (offsets(found, 0), offsets(found, 1))
    with pytest.raises(PartitionsFailed, match="damaged") as failed:
        cursor.poll(POLL_TIMEOUT_S)
    assert [at(0)] == list(failed.value.errors)


def test_rejects_a_response_to_another_request(cluster, opened):
    """The cursor closes the connection and sends the same request on a new one."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    fetch.request.header.correlation_id += 1
    fetch.respond(partition_data(0, batch(0, b"wrong")))

    broker.next_fetch().respond(partition_data(0, batch(0, b"right")))

    assert [b"right"] == [bytes(record.value) for each in poll.get() for record in each.records]


def test_ignores_an_explicit_default_of_the_diverging_epoch(cluster, opened):
    """A broker may send the optional field with its default value: the log has not diverged."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a"), diverging=(-1, -1)))

    assert [0] == offsets(poll.get())


def test_reports_a_diverged_log_from_its_first_different_record(cluster, opened):
    """The gap starts at the first record of an epoch that the new leader never had."""
    (broker, _), cursor = cluster.brokers, opened(0, offset=80)
    for offset, epoch in ((80, 4), (90, 5)):
        poll = start_poll(cursor)
        broker.next_fetch().respond(partition_data(0, batch(offset, *[b"a"] * 10, epoch=epoch)))
        poll.get()
    poll = start_poll(cursor)
    # After an unclean election, epoch 4 continues to offset 149 on the new leader.
    broker.next_fetch().respond(partition_data(0, diverging=(4, 150)))

    gap = poll.get().gap(at(0), 100, OffsetRange(0, 160))

    assert gap is not None
    assert (100, 90) == (gap.start, gap.end)


def test_sends_the_epoch_of_a_transaction_marker(cluster, opened):
    """If the next request contained the epoch before the marker, a broker would report a divergence."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    marker = bytearray(batch(10, b"", epoch=5))
    marker[21:23] = CONTROL
    marker[17:21] = struct.pack(">I", crc32c(bytes(marker[21:])))
    broker.next_fetch().respond(partition_data(0, batch(0, *[b"a"] * 10, epoch=4) + marker))
    read = offsets(poll.get())
    poll = start_poll(cursor)
    request = broker.next_fetch().request

    (partition,) = request.topics[0].partitions
    assert list(range(10)) == read
    assert (11, 5) == (partition.fetch_offset, partition.last_fetched_epoch)
    poll.kill()


def test_ignores_a_leader_with_an_older_epoch(cluster, opened):
    """A broker whose metadata lags behind names a former leader, whose log may end too early."""
    cluster.topics["t"].epochs[0] = 5
    (broker, former), cursor = cluster.brokers, opened(0, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    topic, refreshes = cluster.topics["t"], cluster.requests[METADATA]
    topic.leaders, topic.epochs[0] = [1], 4
    for _ in range(3):
        fetch.respond(partition_data(0, error=NOT_LEADER), session=SESSION_ID)
        fetch = broker.next_fetch()
    fetches_from_former_leader = former.pending_fetches

    topic.leaders, topic.epochs[0] = [0], 6
    fetch.respond(partition_data(0, batch(0, b"a", epoch=6)), session=SESSION_ID)

    assert cluster.requests[METADATA] > refreshes
    assert not fetches_from_former_leader
    assert [0] == offsets(poll.get())


# Fetch sessions


def test_session_requests_name_only_changed_partitions(cluster, opened):
    """A request contains the partition that returned records, but not the other one."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    first = start_poll(cursor)
    opening = broker.next_fetch()
    opening.respond(partition_data(0, batch(0, b"a")), partition_data(1), session=SESSION_ID)
    first.get()
    second = start_poll(cursor)
    fetch = broker.next_fetch()
    fetch.respond(partition_data(1, batch(0, b"b")), session=SESSION_ID)

    assert ({0: 0, 1: 0}, {0: 1}) == (opening.offsets, fetch.offsets)
    assert (SESSION_ID, 1) == (fetch.request.session_id, fetch.request.session_epoch)
    assert [0] == offsets(second.get(), 1)


@pytest.mark.parametrize("error", [FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR])
def test_starts_a_new_session_if_the_broker_rejects_it(cluster, opened, error):
    """The first request of the new session names all partitions, at their current offsets, on the same connection."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    first = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")), partition_data(1), session=SESSION_ID)
    first.get()
    refreshes = cluster.requests[METADATA]
    second = start_poll(cursor)
    broker.next_fetch().respond(error_code=error)

    again = broker.next_fetch()
    again.respond(partition_data(0, batch(1, b"b")), partition_data(1), session=SESSION_ID)

    assert ({0: 1, 1: 0}, 0, 0) == (again.offsets, again.request.session_id, again.request.session_epoch)
    assert [1] == offsets(second.get())
    assert (1, refreshes) == (len(broker.connections), cluster.requests[METADATA])


def test_follows_a_leader_that_moves_away_and_back(cluster, opened):
    """The session forgets the partition, and includes it again after the leader has returned."""
    (broker, other), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    opening = broker.next_fetch()
    cluster.topics["t"].leaders[0] = 1
    opening.respond(partition_data(0, error=NOT_LEADER), partition_data(1), session=SESSION_ID)
    without = broker.next_fetch()
    moved = other.next_fetch()
    cluster.topics["t"].leaders[0] = 0
    moved.respond(partition_data(0, error=NOT_LEADER), session=SESSION_ID + 1)
    back = without
    while 0 not in back.offsets:
        back.respond(session=SESSION_ID)
        back = broker.next_fetch()
    back.respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert ([0], {}) == (without.forgotten, without.offsets)
    assert ({0: 0}, []) == (back.offsets, back.forgotten)
    assert [0] == offsets(poll.get())


def test_first_fetch_contains_the_epoch_of_the_last_record(cluster, opened):
    """The broker reports a log that was truncated while nobody read it, even if it has grown past the offset since."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, offset=100, tail=True)
    cursor.seek({at(0): 100, at(1): 7}, {at(0): 5})
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    fetch.respond(partition_data(0, diverging=(4, 150)), partition_data(1), session=SESSION_ID)

    gap = poll.get().gap(at(0), 100, OffsetRange(0, 160))

    assert (5, -1) == tuple(fetch.partitions[number].last_fetched_epoch for number in (0, 1))
    assert gap is not None
    assert (100, 99) == (gap.start, gap.end)  # at least the last record was lost


def test_batches_contain_their_leader_epoch(cluster, opened):
    """The records of two epochs are in two batches."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a", epoch=4) + batch(1, b"b", epoch=5)))

    assert [(1, 4), (2, 5)] == [(each.next_offset, each.leader_epoch) for each in poll.get()]


def test_waits_as_long_as_a_quota_requires(cluster, opened):
    """A broker that throttles us would not answer an earlier request, which would then time out."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    began_at = time.monotonic()
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")), throttle_time_ms=200)

    assert [0] == offsets(poll.get())
    assert time.monotonic() - began_at >= 0.2


# Several topics in one session


def test_error_of_a_partition_does_not_affect_others(cluster, opened):
    """poll() reports a partition that we may not read, and removes it. The other one is read as before."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, error=NOT_AUTHORIZED), partition_data(1), session=SESSION_ID)
    failed = poll.get()
    poll = start_poll(cursor)
    without = broker.next_fetch()
    without.respond(partition_data(1, batch(0, b"b")), session=SESSION_ID)

    assert {at(0): TopicNotAvailable} == {each: type(error) for each, error in failed.errors.items()}
    assert ([0], {}) == (without.forgotten, without.offsets)
    assert [0] == offsets(poll.get(), 1)


def test_reports_a_topic_without_access_in_the_metadata(cluster, opened):
    """A partition that needs a leader while we may not describe its topic is reported like one that we may not read."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    cluster.topics["t"].error = NOT_AUTHORIZED
    fetch.respond(partition_data(0, error=NOT_LEADER), partition_data(1), session=SESSION_ID)
    broker.next_fetch().respond(session=SESSION_ID)

    assert {at(0): TopicNotAvailable} == {each: type(error) for each, error in poll.get().errors.items()}
    assert [] == cursor.poll(TIMEOUT_S)  # the partition is reported once


def test_seek_continues_a_partition_whose_error_was_not_reported_yet(cluster, opened):
    """The caller has moved it, so poll() does not report the former error."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    data = partition_data(0, error=NOT_AUTHORIZED), partition_data(1, batch(0, b"a"))
    broker.next_fetch().respond(*data, session=SESSION_ID)
    assert [0] == offsets(poll.get(), 1)

    cursor.seek({at(0): 3})
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(3, b"b")), session=SESSION_ID)

    assert [3] == offsets(poll.get())


def test_needs_no_leader_for_a_removed_partition(cluster, opened):
    """The cursor does not look up the leader, and does not read the partition again."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    refreshes = cluster.requests[METADATA]
    cursor.remove([at(0)])
    fetch.respond(session=SESSION_ID)
    broker.next_fetch().respond(partition_data(1, batch(0, b"b")), session=SESSION_ID)
    poll.get()
    start_poll(cursor)

    assert {1: 1} == broker.next_fetch().offsets
    assert refreshes == cluster.requests[METADATA]


def test_removed_partition_is_forgotten_by_the_session(cluster, opened):
    """A response in flight for it is ignored. If it is added again, the request contains it."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    cursor.remove([at(0), at(9)])
    fetch.respond(partition_data(0, batch(0, b"a")), partition_data(1, batch(0, b"b")), session=SESSION_ID)
    found = poll.get()
    poll = start_poll(cursor)
    without = broker.next_fetch()
    cursor.seek({at(0): 0})
    without.respond(session=SESSION_ID)
    back = broker.next_fetch()
    back.respond(partition_data(0, batch(0, b"c")), session=SESSION_ID)

    assert ([], [0]) == (offsets(found, 0), offsets(found, 1))
    assert ([0], {1: 1}) == (without.forgotten, without.offsets)
    assert ([], {0: 0}) == (back.forgotten, back.offsets)
    assert [b"c"] == [record.value for each in poll.get() for record in each.records]


def test_cursor_without_partitions_waits_for_seek(cluster, log, opened):
    """seek() wakes poll(), and the first request contains the new partition."""
    opened(0)
    cursor = log.cursor({}, tail=True)
    refreshes = cluster.requests[METADATA]
    poll = start_poll(cursor)
    run_event_loop()
    cursor.seek({at(0): 3})

    cluster.brokers[0].next_fetch().respond(partition_data(0, batch(3, b"a")), session=SESSION_ID)

    assert [3] == offsets(poll.get())
    assert refreshes == cluster.requests[METADATA]  # the leader was known
    cursor.close()


def test_one_session_reads_hundreds_of_topics(cluster, log):
    """Topics are added and removed while the session is open. There is one connection."""
    names = [f"t{number}" for number in range(400)]
    ids = {name: UUID(int=1000 + number) for number, name in enumerate(names)}
    for name, topic_id in ids.items():
        cluster.topics[name] = FakeTopic([0, 0, 0], topic_id)
    log.describe(names)
    broker, cursor = cluster.brokers[0], log.cursor({}, tail=True)
    poll = start_poll(cursor)
    cursor.seek({Partition(name, number): 0 for name in names[:300] for number in range(3)})
    opening = broker.next_fetch()
    cursor.remove(Partition(name, number) for name in names[:100] for number in range(3))
    cursor.seek({Partition(name, number): 0 for name in names[300:] for number in range(3)})
    opening.respond(session=SESSION_ID)
    changed = broker.next_fetch()
    changed.respond_with(
        {ids[name]: [partition_data(2, batch(0, b"a"))] for name in (names[0], names[100], names[300])},
        session=SESSION_ID,
    )

    assert [ids[name] for name in names[:300]] == opening.topics
    assert [ids[name] for name in names[300:]] == changed.topics
    assert 300 == len(changed.forgotten)
    assert {Partition(names[100], 2), Partition(names[300], 2)} == {each.partition for each in poll.get()}
    assert 1 == len(broker.connections)
    cursor.close()


def test_one_session_contains_names_or_topic_ids(cluster, log):
    """If one topic has no topic ID, a new session identifies all topics by name."""
    cluster.topics |= {"with": FakeTopic([0], UUID(int=1)), "without": FakeTopic([0], UUID(int=0))}
    log.describe(["with", "without"])
    broker, cursor = cluster.brokers[0], log.cursor({Partition("with", 0): 0}, tail=True)
    poll = start_poll(cursor)
    by_id = broker.next_fetch()
    cursor.seek({Partition("without", 0): 0})
    by_id.respond(session=SESSION_ID)
    by_name = broker.next_fetch()
    cursor.remove([Partition("without", 0)])
    by_name.respond(session=SESSION_ID + 1)
    by_id_again = broker.next_fetch()
    by_id_again.respond_with({UUID(int=1): [partition_data(0, batch(0, b"a"))]}, session=SESSION_ID)

    assert ([UUID(int=1)], ["with", "without"], [UUID(int=1)]) == (by_id.topics, by_name.topics, by_id_again.topics)
    assert (SESSION_ID, 0) == (by_name.request.session_id, by_name.request.session_epoch)  # replaces the session
    assert [0] == [record.offset for each in poll.get() for record in each.records]
    cursor.close()


def test_unknown_topic_id_affects_only_its_topic(cluster, log):
    """The cursor refreshes the metadata of the topic, with a backoff, and continues to read the other topic at once."""
    cluster.topics |= {"gone": FakeTopic([0], UUID(int=1)), "busy": FakeTopic([0], UUID(int=2))}
    log.describe(["gone", "busy"])
    broker, cursor = cluster.brokers[0], log.cursor({Partition("gone", 0): 0, Partition("busy", 0): 0}, tail=True)
    del cluster.topics["gone"]

    def serve() -> None:
        opening = broker.next_fetch()
        unknown = {UUID(int=1): [partition_data(0, error=UNKNOWN_TOPIC_ID)]}
        opening.respond_with(unknown | {UUID(int=2): [partition_data(0)]}, session=SESSION_ID)
        for offset in range(100):
            broker.next_fetch().respond_with(
                {UUID(int=2): [partition_data(0, batch(offset, b"a"))]}, session=SESSION_ID
            )

    serving = gevent.spawn(serve)
    refreshes = cluster.requests[METADATA]
    found: list[int] = []
    while len(found) < 100:
        found += [record.offset for each in cursor.poll(POLL_TIMEOUT_S) for record in each.records]
    serving.get()

    assert list(range(100)) == found
    assert 0 < cluster.requests[METADATA] - refreshes < 10
    cursor.close()


def test_leader_that_moves_is_found_although_another_partition_has_none(cluster, opened):
    """Each partition has its own backoff: a partition that has no leader for long does not delay one whose leader moved."""
    (broker, other), cursor = cluster.brokers, opened(0, NO_LEADER, tail=True)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    cursor._leaderless[at(1)].retry_at = cursor._next_refresh_at = time.monotonic() + POLL_TIMEOUT_S

    cluster.topics["t"].leaders[0] = 1
    fetch.respond(partition_data(0, error=NOT_LEADER), session=SESSION_ID)
    other.next_fetch().respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert [0] == offsets(poll.get())


def test_partitions_take_turns(cluster, opened):
    """A busy partition does not delay the records of a quiet one in the same response."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = start_poll(cursor)
    many = b"".join(batch(at, *[b"x"] * MAX_RECORDS) for at in range(0, 4 * MAX_RECORDS, MAX_RECORDS))
    broker.next_fetch().respond(partition_data(0, many), partition_data(1, batch(0, b"a")), session=SESSION_ID)

    found = poll.get() + cursor.poll(POLL_TIMEOUT_S)

    assert [0] == offsets(found, 1)
    assert len(offsets(found, 0)) <= 2 * MAX_RECORDS


# Reconnecting and leaders


def test_reconnects_after_a_disconnect(cluster, opened):
    """The cursor sends the same request on a new connection."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    broker.next_fetch().disconnect()

    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


def test_reconnects_after_a_timeout(cluster, opened):
    """If no response arrives in time, the cursor closes the connection and sends the same request on a new one."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    late = broker.next_fetch()

    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    wait_until(lambda: late.sock.closed)


def test_waits_for_a_response_that_arrives_slowly(cluster, opened):
    """Otherwise a response that takes longer than the timeout would be fetched again forever."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)

    broker.next_fetch().respond_in_parts(6, 0.6 * TIMEOUT_S, partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert 1 == len(broker.connections)


def test_reuses_a_connection_after_the_response_to_a_closed_cursor(cluster, opened):
    """The connection returns to the pool with the response. If no response arrives, it is closed."""
    broker, _ = cluster.brokers
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


def test_replaces_idle_connections_that_the_broker_closed(cluster, log, opened):
    """The cursor opens a new connection at once."""
    broker, _ = cluster.brokers
    for cursor in (opened(0), opened(0)):
        poll = start_poll(cursor)
        broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
        poll.get()
        cursor.close()
    wait_until(lambda: any(log.pool.idle()))
    for sock in broker.connections:
        sock.shutdown(fake_broker.socket.SHUT_RDWR)

    poll = start_poll(opened(0))
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


def test_waits_once_for_dead_idle_connections(cluster, log, opened):
    """If one idle connection is dead, the cursor closes the others too instead of waiting for each."""
    broker, _ = cluster.brokers
    cursors = [opened(0) for _ in range(3)]
    for cursor in cursors:
        poll = start_poll(cursor)
        broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
        poll.get()
    for cursor in cursors:
        cursor.close()
    wait_until(lambda: len(list(log.pool.idle())) == len(cursors))
    kept = set(broker.connections)

    poll = start_poll(opened(0))
    silent = 0
    while (fetch := broker.next_fetch()).sock in kept:
        silent += 1
    fetch.respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert 1 == silent


def test_repeats_out_of_range_until_seek(cluster, opened):
    """The caller may have failed to handle the error. Meanwhile the cursor reads the other partitions."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, offset=5)
    first = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, error=OUT_OF_RANGE), partition_data(1))

    def serve() -> None:
        while fetch := broker.next_fetch():
            parts = {
                0: partition_data(0, error=OUT_OF_RANGE),
                1: partition_data(1, batch(fetch.offsets.get(1, 5), b"a")),
            }
            fetch.respond(*(parts[number] for number in fetch.offsets))

    serving = gevent.spawn(serve)
    errors, read = [first.get()], []
    while len(errors) < 3 or len(read) < 3:
        found = start_poll(cursor).get()
        _ = errors.append(found) if isinstance(found, OffsetOutOfRange) else read.extend(offsets(found, 1))
        assert len(errors) < 100, "the other partition is not read"
    serving.kill()

    assert {(at(0),)} == {each.partitions for each in errors}
    assert [5, 6, 7] == read[:3]


def test_reads_a_partition_as_soon_as_it_has_a_leader(cluster, opened):
    """The other partitions are read while one partition has no leader."""
    (broker, other), cursor = cluster.brokers, opened(0, NO_LEADER)
    first = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
    found = first.get()
    second = start_poll(cursor)
    fetch = broker.next_fetch()
    cluster.topics["t"].leaders[1] = 1

    other.next_fetch().respond(partition_data(1, batch(0, b"b")))

    assert ([0], {0: 1}) == (offsets(found), fetch.offsets)
    assert [0] == offsets(second.get(), 1)


def test_refreshes_the_metadata_with_a_backoff(cluster, opened):
    """A partition without a leader causes few metadata requests, even if other partitions are busy."""
    (broker, _), cursor = cluster.brokers, opened(0, NO_LEADER, tail=True)
    refreshes = cluster.requests[METADATA]

    def serve() -> None:
        for offset in range(200):
            broker.next_fetch().respond(partition_data(0, batch(offset, b"a")), session=SESSION_ID)

    serving = gevent.spawn(serve)
    found: list[int] = []
    while len(found) < 200:
        found += offsets(cursor.poll(POLL_TIMEOUT_S))
        gevent.sleep(0.002)
    serving.kill()

    assert list(range(200)) == found
    assert cluster.requests[METADATA] - refreshes < 50


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
    [lambda fetch: fetch.respond(partition_data(0, error=NOT_LEADER), session=SESSION_ID), PendingFetch.disconnect],
    ids=["error", "disconnect"],
)
def test_retries_with_a_backoff(cluster, opened, fail):
    """A leader that cannot be read now receives few requests."""
    (broker, _), cursor = cluster.brokers, opened(0, tail=True)
    fetches = []

    def serve() -> None:
        while True:
            fetches.append(broker.next_fetch())
            fail(fetches[-1])

    serving = gevent.spawn(serve)

    assert [] == cursor.poll(TIMEOUT_S)
    serving.kill()
    assert 1 < len(fetches) < 10


def test_does_not_read_a_recreated_topic(cluster, opened):
    """A recreated topic has the same name but another topic ID."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    cluster.topics["t"].id = UUID(int=8)
    refreshes = cluster.requests[METADATA]
    fetch.respond(partition_data(0, error=100))
    wait_until(lambda: cluster.requests[METADATA] > refreshes + 2)

    assert 0 == broker.pending_fetches
    poll.kill()


def test_requests_topics_by_name_without_topic_ids(cluster, opened):
    """Kafka 2.7 has no topic IDs."""
    cluster.topics["t"].id = UUID(int=0)
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    fetch = broker.next_fetch()
    fetch.respond(partition_data(0, batch(0, b"a")))

    assert ("t", 12) == (fetch.request.topics[0].topic, fetch.request.API_VERSION)
    assert [0] == offsets(poll.get())


def test_closed_cursor_does_not_use_its_connection(cluster, log, opened):
    """The connection may belong to another cursor: a late poll() sends nothing."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = start_poll(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
    poll.get()
    cursor.close()
    wait_until(lambda: any(log.pool.idle()))

    cursor.poll(0)

    assert [None] == [each.in_flight for each in log.pool.idle()]


def test_cursors_do_not_share_connections(cluster, opened):
    """Two cursors of one broker have a connection and an offset each."""
    broker, _ = cluster.brokers
    polls = [start_poll(opened(0)), start_poll(opened(0))]
    for fetch, value in zip([broker.next_fetch(), broker.next_fetch()], (b"a", b"b"), strict=True):
        fetch.respond(partition_data(0, batch(0, value)))

    assert [[0], [0]] == [offsets(each.get()) for each in polls]
    assert 2 == len(broker.connections)


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
    """A broker that accepts connections but does not respond is tried again after a timeout."""
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

    cluster.brokers[1].next_fetch().respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert [0] == offsets(poll.get())
    cursor.close()
    log.close()
