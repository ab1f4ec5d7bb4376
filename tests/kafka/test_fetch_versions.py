"""Each Fetch version from 4 to the newest, with fake brokers and with a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest

from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.fetch_protocol import BY_TOPIC_ID, VERSIONS
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import UNKNOWN_EPOCH, OffsetOutOfRange, Partition
from kafkasse.tools.broker import EmbeddedBroker
from tests.kafka.fake_broker import (
    FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    FakeBroker,
    FakeCluster,
    FakeTopic,
    batch,
    partition_data,
)
from tests.kafka.logs import KafkaWriter, at, exchange, offsets, open_log, start_poll, take, values

FIRST_WITH_SESSIONS, FIRST_WITH_LEADER_EPOCH, FIRST_WITH_DIVERGENCE = 7, 9, 12
# The others differ from the version before them only in the encoding, which test_fetch_protocol.py tests.
IN_GATE = {4, 6, FIRST_WITH_SESSIONS, FIRST_WITH_LEADER_EPOCH, 11, FIRST_WITH_DIVERGENCE, BY_TOPIC_ID, max(VERSIONS)}
TESTED = [pytest.param(number, marks=() if number in IN_GATE else pytest.mark.long) for number in VERSIONS]
OUT_OF_RANGE, NOT_LEADER = 1, 6


@pytest.fixture(params=TESTED)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def cluster(version: int) -> Iterator[FakeCluster]:
    """Brokers that support no Fetch version after `version`."""
    with closing(FakeCluster(brokers=2)) as running:
        running.versions[FETCH] = version
        running.topics["t"] = FakeTopic([0, 0], epochs={0: 5, 1: 5})
        if version < BY_TOPIC_ID:
            running.topics["t"].id = UUID(int=0)
        yield running


@pytest.fixture
def log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers)) as opened:
        opened.describe(["t"])
        yield opened


def read_two_records(broker: FakeBroker, cursor: KafkaCursor) -> list[int]:
    """Read two records of epoch 5, and return their offsets."""
    return offsets(exchange(cursor, broker, partition_data(0, batch(0, b"a", b"b", epoch=5))))


def poll_truncated(broker: FakeBroker, cursor: KafkaCursor, version: int) -> OffsetOutOfRange:
    """Poll at offset 100 of epoch 4 while epoch 3 ends at offset 90, and return the error.

    Before version 12, a lookup of the epoch replaces the report in the response.
    """
    poll = start_poll(cursor)
    if version >= FIRST_WITH_DIVERGENCE:
        fetch = broker.respond(partition_data(0, diverging=(3, 90)))
        assert 4 == fetch.partitions[0].last_fetched_epoch
    error = poll.get()
    cursor.close()
    assert isinstance(error, OffsetOutOfRange)
    return error


def elect_other(cluster: FakeCluster) -> None:
    """Make the second broker the leader, in epoch 6. The first one answers the next fetch accordingly."""
    fetch = cluster.brokers[0].next_fetch()
    cluster.topics["t"].leaders[0], cluster.topics["t"].epochs[0] = 1, 6
    fetch.respond(partition_data(0, error=NOT_LEADER))


def test_tails_a_partition(cluster, log, version):
    """Before version 7 there are no sessions, so each request contains all partitions. Before 9 there are no epochs."""
    broker, cursor = cluster.brokers[0], log.cursor({at(0): 0, at(1): 0}, tail=True)
    poll = start_poll(cursor)
    first = broker.respond(partition_data(0, batch(0, b"a")), partition_data(1))
    batches = poll.get()
    poll = start_poll(cursor)
    second = broker.respond(partition_data(0, batch(1, b"b")))
    batches += poll.get()
    cursor.close()

    assert version == first.request.API_VERSION
    assert [0, 1] == offsets(batches)
    assert ({0: 1} if version >= FIRST_WITH_SESSIONS else {0: 1, 1: 0}) == second.offsets
    if version >= FIRST_WITH_LEADER_EPOCH:
        assert 5 == first.partitions[0].current_leader_epoch


@pytest.mark.parametrize("has_read", [False, True], ids=["before the first fetch", "after a seek"])
def test_reports_a_truncated_log(cluster, log, version, has_read):
    """The offset and its epoch come from a client, and the cursor has not read there."""
    cluster.topics["t"].epoch_ends = {0: (0, 3, 90)}
    broker = cluster.brokers[0]
    if has_read:
        cursor = log.cursor({at(0): 0})
        read_two_records(broker, cursor)
        cursor.seek({at(0): 100}, {at(0): 4})
    else:
        cursor = log.cursor({at(0): 100}, epochs={at(0): 4})

    assert {at(0): (90, 3)} == poll_truncated(broker, cursor, version).diverged_at
    assert (version < FIRST_WITH_DIVERGENCE) == bool(cluster.requests[OFFSET_FOR_LEADER_EPOCH])
    assert 0 == broker.pending_fetches


def test_reports_an_epoch_that_the_leader_does_not_know(cluster, log, version):
    """The epoch of a client may be forged. The caller must continue without it."""
    cluster.topics["t"].epoch_ends = {0: (0, -1, -1)}
    with closing(log.cursor({at(0): 100}, epochs={at(0): 4})) as cursor:
        poll = start_poll(cursor)
        if version >= FIRST_WITH_DIVERGENCE:
            cluster.brokers[0].respond(partition_data(0, error=OUT_OF_RANGE))
        error = poll.get()

    assert isinstance(error, OffsetOutOfRange)
    assert ((at(0),), {}) == (error.partitions, error.diverged_at)


def test_reports_a_log_that_was_truncated_by_an_election(cluster, log, version):
    """The new leader has fewer records of the last epoch than the cursor has read."""
    broker, other = cluster.brokers
    cluster.topics["t"].epoch_ends = {0: (0, 5, 1)}
    with closing(log.cursor({at(0): 0})) as cursor:
        read = read_two_records(broker, cursor)
        poll = start_poll(cursor)
        elect_other(cluster)
        if version >= FIRST_WITH_DIVERGENCE:
            other.respond(partition_data(0, diverging=(5, 1)))
        error = poll.get()

    assert [0, 1] == read
    assert isinstance(error, OffsetOutOfRange)
    assert {at(0): (1, 5)} == error.diverged_at


@pytest.mark.parametrize("version", TESTED[: FIRST_WITH_DIVERGENCE - VERSIONS[0]])  # newer brokers report it
@pytest.mark.parametrize("end", [100, 90])
def test_compares_only_the_end_of_the_epoch_before_kafka_2_0(cluster, version, end):
    """Version 0 of OffsetForLeaderEpoch returns no epoch."""
    cluster.versions[OFFSET_FOR_LEADER_EPOCH] = 0
    cluster.topics["t"].epoch_ends = {0: (0, -1, end)}
    with closing(open_log(cluster.bootstrap_servers)) as log:
        log.describe(["t"])
        with closing(log.cursor({at(0): 100}, epochs={at(0): 4})) as cursor:
            poll = start_poll(cursor)
            if end == 100:
                cluster.brokers[0].respond(partition_data(0, batch(100, b"a")))
                assert [100] == offsets(poll.get())
            else:
                assert {at(0): (90, UNKNOWN_EPOCH)} == poll.get().diverged_at


def test_continues_after_an_election_without_truncation(cluster, log, version):
    """The log of the new leader contains all records that the cursor has read."""
    broker, other = cluster.brokers
    cluster.topics["t"].epoch_ends = {0: (0, 5, 2)}
    with closing(log.cursor({at(0): 0})) as cursor:
        read_two_records(broker, cursor)
        poll = start_poll(cursor)
        elect_other(cluster)
        other.respond(partition_data(0, batch(2, b"c", epoch=6)))

        assert [2] == offsets(poll.get())


# A real broker


@pytest.fixture(scope="module")
def writer(broker: EmbeddedBroker) -> Iterator[KafkaWriter]:
    with closing(KafkaWriter(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def kafka_log(broker: EmbeddedBroker, version: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaLog]:
    """A log that uses `version` with a broker that supports all of them."""
    monkeypatch.setattr("kafkasse.kafka.connection_pool.newest_version", lambda lowest, highest: version)
    with closing(open_log(broker.bootstrap_servers)) as log:
        yield log


@pytest.mark.processes
@pytest.mark.parametrize("tail", [False, True])
def test_real_broker(kafka_log, writer, fresh_name, tail):
    """Records, seek(), remove(), aborted transactions, and offsets outside the log work in each version."""
    writer.create(fresh_name, 2)
    one, other = Partition(fresh_name, 0), Partition(fresh_name, 1)
    writer.send(fresh_name, b"a", b"b")
    writer.compressed(fresh_name, "gzip", b"c" * 1000)
    writer.skip(fresh_name)
    writer.send(fresh_name, b"x", partition=1)

    with closing(kafka_log.cursor({one: 1, other: 99}, tail)) as cursor:
        with pytest.raises(OffsetOutOfRange) as out_of_range:
            take(cursor, 9)
        cursor.seek({other: 0})
        assert [b"x"] == values(take(cursor, 1), 1)
        cursor.remove([other])
        writer.send(fresh_name, b"y", partition=1)
        cursor.seek({one: 0})
        batches = take(cursor, 3)
        writer.send(fresh_name, b"d")
        batches += take(cursor, 1)

    assert (other,) == out_of_range.value.partitions
    assert [b"a", b"b", b"c" * 1000, b"d"] == values(batches)
    assert [] == values(batches, 1)
