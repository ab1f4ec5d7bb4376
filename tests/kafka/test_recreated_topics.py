"""A topic without a topic ID is recreated. Its leader epochs distinguish it from a truncated topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import pytest

from kafkasse.feed.epochs import EpochEnds
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import RECREATED_AT, TRUNCATED, UNKNOWN_EPOCH, Gap, OffsetAndEpoch, OffsetOutOfRange, OffsetRange
from tests.kafka.fake_broker import FETCH, METADATA, FakeCluster, FakeTopic, batch, partition_data
from tests.kafka.logs import at, exchange, offsets, open_log, start_poll
from tests.support.waiting import wait_until

OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH, FENCED_LEADER_EPOCH = 1, 75, 74
TIMEOUT_S = 5.0
NO_TOPIC_ID = UUID(int=0)


@pytest.fixture(params=[11, 12])
def cluster(request: pytest.FixtureRequest) -> Iterator[FakeCluster]:
    """A cluster without topic IDs: Kafka 2.6 and 2.8. Only the latter reports truncated logs."""
    with closing(FakeCluster()) as running:
        running.versions[FETCH] = request.param
        running.topics["t"] = FakeTopic([0], id=NO_TOPIC_ID, epochs={0: 3})
        yield running


@pytest.fixture
def log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers)) as opened:
        opened.describe(["t"])
        yield opened


def recreate(cluster: FakeCluster, epoch: int, end: int) -> None:
    cluster.topics["t"].epochs[0] = epoch
    cluster.topics["t"].offset_range = (0, end)


def gaps_of(error: object, end: int) -> list[Gap]:
    assert isinstance(error, OffsetOutOfRange)
    return error.gaps(at(0), 100, OffsetRange(0, end))


@pytest.mark.parametrize("has_read", [True, False])
def test_a_shorter_log_in_the_same_epoch_is_read_from_its_start(cluster, log, has_read):
    """An election would have begun a new epoch. This also holds for a stream that has received no record yet."""
    broker = cluster.brokers[0]
    with closing(log.cursor({at(0): 99 if has_read else 100}, tail=True)) as cursor:
        if has_read:
            assert [99] == offsets(exchange(cursor, broker, partition_data(0, batch(99, b"a", epoch=3))))
        error = exchange(cursor, broker, partition_data(0, error=OFFSET_OUT_OF_RANGE))

    assert [Gap(at(0), 100, 0, TRUNCATED)] == gaps_of(error, 45)


def test_a_shorter_log_in_the_same_epoch_may_be_reported_as_truncated(cluster, log):
    """From version 12 on, a broker reports where the epoch ends. The new topic is read from its start all the same."""
    broker = cluster.brokers[0]
    if cluster.versions[FETCH] < 12:
        cluster.topics["t"].epoch_ends = {0: (0, 3, 45)}
    with closing(log.cursor({at(0): 100}, epochs={at(0): 3})) as cursor:
        poll = start_poll(cursor)
        if cluster.versions[FETCH] >= 12:
            broker.respond(partition_data(0, diverging=(3, 45)))

        assert [Gap(at(0), 100, 0, TRUNCATED)] == gaps_of(poll.get(), 45)


def test_a_shorter_log_after_an_election_is_truncated(cluster, log):
    """The records before the truncation are not sent again."""
    broker = cluster.brokers[0]
    with closing(log.cursor({at(0): 100}, tail=True)) as cursor:
        poll = start_poll(cursor)
        fetch = broker.next_fetch()
        cluster.topics["t"].epochs[0] = 4
        fetch.respond(partition_data(0, error=FENCED_LEADER_EPOCH))
        broker.respond(partition_data(0, error=OFFSET_OUT_OF_RANGE))

        assert [Gap(at(0), 100, 45, TRUNCATED)] == gaps_of(poll.get(), 45)


def test_an_older_epoch_is_that_of_a_new_topic(cluster, log, monkeypatch):
    """The broker does not know the epoch in the fetch, and the metadata has an older one. The stream does not stall."""
    monkeypatch.setattr("kafkasse.kafka.old_brokers.MAX_METADATA_LAG_S", 0.1)
    broker = cluster.brokers[0]
    cluster.topics["t"].epoch_ends = {0: (0, 0, 145)}
    with closing(log.cursor({at(0): 100}, tail=True)) as cursor:
        poll = start_poll(cursor)
        fetch = broker.next_fetch()
        recreate(cluster, epoch=0, end=145)
        fetch.respond(partition_data(0, error=UNKNOWN_LEADER_EPOCH))

        assert [Gap(at(0), 100, 0, TRUNCATED)] == gaps_of(poll.get(), 145)
        cursor.seek({at(0): 0})
        poll = start_poll(cursor)
        fetch = broker.respond(partition_data(0, batch(0, b"a")))
        assert [0] == offsets(poll.get())

    assert {0: 0} == fetch.offsets


@pytest.mark.parametrize("epoch", [2, UNKNOWN_EPOCH])
def test_outdated_metadata_is_not_mistaken_for_a_new_topic(cluster, log, monkeypatch, epoch):
    """A broker may lag behind for long, and before Kafka 2.1, it does not know the epoch. The stream waits for another."""
    monkeypatch.setattr("kafkasse.kafka.old_brokers.MAX_METADATA_LAG_S", 0.0)
    broker, topic = cluster.brokers[0], cluster.topics["t"]
    topic.epoch_ends = {0: (FENCED_LEADER_EPOCH, -1, -1)}
    with closing(log.cursor({at(0): 100}, tail=True)) as cursor:
        poll = start_poll(cursor)
        fetch = broker.next_fetch()
        topic.epochs[0] = epoch
        refreshes = cluster.requests[METADATA]
        fetch.respond(partition_data(0, error=FENCED_LEADER_EPOCH))
        wait_until(lambda: cluster.requests[METADATA] > refreshes + 4)
        topic.epochs[0] = 4
        broker.respond(partition_data(0, batch(100, b"a", epoch=4)))

        assert [100] == offsets(poll.get())


def test_a_cursor_that_opens_after_a_truncation_reports_a_truncation(cluster, log):
    """The offset of a client that has waited for a slot is older than the epoch, and nothing shows a new topic."""
    with closing(log.cursor({at(0): 100})) as cursor:
        error = exchange(cursor, cluster.brokers[0], partition_data(0, error=OFFSET_OUT_OF_RANGE))

    assert [Gap(at(0), 100, 45, TRUNCATED)] == gaps_of(error, 45)


def test_retention_is_not_mistaken_for_a_new_topic(cluster, log):
    """An offset before the start of the log is out of range in the same epoch, too."""
    with closing(log.cursor({at(0): 100}, tail=True)) as cursor:
        error = exchange(cursor, cluster.brokers[0], partition_data(0, error=OFFSET_OUT_OF_RANGE))

    assert isinstance(error, OffsetOutOfRange)
    assert [Gap(at(0), 100, 120, "removed by retention")] == error.gaps(at(0), 100, OffsetRange(120, 200))


@pytest.mark.parametrize(
    ("epoch", "answer", "diverged_at"),
    [
        (3, (0, 3, 45), RECREATED_AT),
        (0, (0, -1, -1), RECREATED_AT),
        (4, (0, 3, 45), OffsetAndEpoch(45, 3)),
        (3, (FENCED_LEADER_EPOCH, -1, -1), None),
    ],
)
def test_a_client_returns_with_an_old_event_id(cluster, log, epoch, answer, diverged_at):
    """Its event ID contains epoch 3. A broker rejects an epoch of outdated metadata, so a truncation stays a truncation."""
    recreate(cluster, epoch, end=45)
    cluster.topics["t"].epoch_ends = {0: answer}

    found = EpochEnds(log, TIMEOUT_S).diverged_at({at(0): OffsetAndEpoch(100, 3)}, {at(0): OffsetRange(0, 45)})

    assert ({} if diverged_at is None else {at(0): diverged_at}) == found


def test_a_topic_with_an_id_is_never_suspected(cluster, log):
    """The topic ID is more reliable. If it is known, no lookup is needed: thousands of clients may return at once."""
    cluster.topics["t"].id = UUID(int=9)
    cluster.topics["t"].epoch_ends = {0: (0, 3, 45)}
    assert not log.recreated({at(0): 3})  # a lookup finds the topic ID
    requests = cluster.requests.copy()

    assert not log.recreated({at(0): 3})
    assert not log.recreated({})
    assert requests == cluster.requests
