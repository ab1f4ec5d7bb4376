"""Reads from the nearest replica (KIP-392): a leader names it, and the cursor returns to the leader if it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.kafka import cursor as cursor_module
from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.log import KafkaLog
from tests.kafka.fake_broker import SESSION_ID, FakeCluster, FakeTopic, batch, partition_data
from tests.kafka.logs import at, offsets, open_log, start_poll

OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER = 1, 6
LEADER, REPLICA = 0, 1


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    running = FakeCluster(brokers=2)
    running.topics["t"] = FakeTopic([LEADER])
    yield running
    running.close()


@pytest.fixture
def log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers, client_rack="zone-1", kafka_timeout_s=0.5)) as opened:
        opened.describe(["t"])
        yield opened


@pytest.fixture
def cursor(log: KafkaLog) -> Iterator[KafkaCursor]:
    with closing(log.cursor({at(0): 0}, tail=True)) as opened:
        yield opened


def redirect(cluster: FakeCluster) -> str:
    """Let the leader name the replica, and return the rack in the request."""
    fetch = cluster.brokers[LEADER].next_fetch()
    fetch.respond(partition_data(0, replica=REPLICA), session=SESSION_ID)
    return str(fetch.request.rack_id)


def test_reads_from_the_replica_that_the_leader_names(cluster: FakeCluster, cursor: KafkaCursor) -> None:
    """The request contains our rack. After the response, the cursor reads from the replica."""
    poll = start_poll(cursor)
    rack = redirect(cluster)
    cluster.brokers[REPLICA].next_fetch().respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)
    read = offsets(poll.get())
    poll = start_poll(cursor)
    cluster.brokers[REPLICA].next_fetch().respond(partition_data(0, batch(1, b"b")), session=SESSION_ID)

    assert "zone-1" == rack
    assert [0] == read
    assert [1] == offsets(poll.get())
    assert 0 == cluster.brokers[LEADER].pending_fetches


@pytest.mark.parametrize("failure", ["out of range", "not a replica", "diverging", "disconnect"])
def test_returns_to_the_leader_if_the_replica_fails(cluster: FakeCluster, cursor: KafkaCursor, failure: str) -> None:
    """The replica may lag behind, so the leader decides. Then requests contain no rack: the leader would name it again."""
    poll = start_poll(cursor)
    redirect(cluster)
    fetch = cluster.brokers[REPLICA].next_fetch()
    if failure == "disconnect":
        fetch.disconnect()
    else:
        data = {
            "out of range": partition_data(0, error=OUT_OF_RANGE),
            "not a replica": partition_data(0, error=NOT_LEADER_OR_FOLLOWER),
            "diverging": partition_data(0, diverging=(0, 0)),
        }[failure]
        fetch.respond(data, session=SESSION_ID)

    again = cluster.brokers[LEADER].next_fetch()
    again.respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert "" == again.request.rack_id
    assert [0] == offsets(poll.get())
    assert 0 == cluster.brokers[REPLICA].pending_fetches


def test_asks_the_leader_again_after_some_time(
    cluster: FakeCluster, cursor: KafkaCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another replica may be the nearest by then."""
    monkeypatch.setattr(cursor_module, "MAX_REPLICA_AGE_S", 0.0)
    poll = start_poll(cursor)
    redirect(cluster)

    again = cluster.brokers[LEADER].next_fetch()
    again.respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert "zone-1" == again.request.rack_id
    assert [0] == offsets(poll.get())


def test_stays_at_the_leader_if_the_replica_is_unknown(cluster: FakeCluster, cursor: KafkaCursor) -> None:
    """The leader may name a broker that is not in our metadata yet."""
    poll = start_poll(cursor)
    cluster.brokers[LEADER].next_fetch().respond(partition_data(0, replica=9), session=SESSION_ID)

    again = cluster.brokers[LEADER].next_fetch()
    again.respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert "" == again.request.rack_id
    assert [0] == offsets(poll.get())
