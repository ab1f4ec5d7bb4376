"""Reads from the nearest replica (KIP-392): a leader names it, and the cursor returns to the leader if it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from kafkasse.kafka import cursor_core
from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.log import KafkaLog
from tests.kafka.fake_broker import FakeCluster, FakeTopic, PendingFetch, batch, partition_data
from tests.kafka.logs import at, exchange, offsets, open_log, start_poll

OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER = 1, 6
LEADER, REPLICA = 0, 1


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster(brokers=2)) as running:
        running.topics["t"] = FakeTopic([LEADER])
        yield running


@pytest.fixture
def log(cluster: FakeCluster) -> Iterator[KafkaLog]:
    with closing(open_log(cluster.bootstrap_servers, client_rack="zone-1", kafka_timeout_s=0.5)) as opened:
        opened.describe(["t"])
        yield opened


@pytest.fixture
def cursor(log: KafkaLog) -> Iterator[KafkaCursor]:
    with closing(log.cursor({at(0): 0}, tail=True)) as opened:
        yield opened


def redirect(cluster: FakeCluster, replica: int = REPLICA) -> str:
    """Let the leader name the replica, and return the rack in the request."""
    return str(cluster.brokers[LEADER].respond(partition_data(0, replica=replica)).request.rack_id)


def test_reads_from_the_replica_that_the_leader_names(cluster, cursor):
    """The request contains our rack. After the response, the cursor reads from the replica."""
    leader, replica = cluster.brokers
    poll = start_poll(cursor)
    rack = redirect(cluster)
    replica.respond(partition_data(0, batch(0, b"a")))

    assert "zone-1" == rack
    assert [0] == offsets(poll.get())
    assert [1] == offsets(exchange(cursor, replica, partition_data(0, batch(1, b"b"))))
    assert 0 == leader.pending_fetches


FAILURES: dict[str, Callable[[PendingFetch], object]] = {
    "out of range": lambda fetch: fetch.respond(partition_data(0, error=OUT_OF_RANGE)),
    "not a replica": lambda fetch: fetch.respond(partition_data(0, error=NOT_LEADER_OR_FOLLOWER)),
    "diverging": lambda fetch: fetch.respond(partition_data(0, diverging=(0, 0))),
    "disconnect": PendingFetch.disconnect,
}


@pytest.mark.parametrize("failure", FAILURES)
def test_returns_to_the_leader_if_the_replica_fails(cluster, cursor, failure):
    """The replica may lag behind, so the leader decides. Then requests contain no rack: the leader would name it again."""
    leader, replica = cluster.brokers
    poll = start_poll(cursor)
    redirect(cluster)
    FAILURES[failure](replica.next_fetch())
    again = leader.respond(partition_data(0, batch(0, b"a")))

    assert "" == again.request.rack_id
    assert [0] == offsets(poll.get())
    assert 0 == replica.pending_fetches


@pytest.mark.parametrize(
    ("replica", "max_age_s", "rack"), [(REPLICA, 0.0, "zone-1"), (9, 300.0, "")], ids=["old", "unknown"]
)
def test_asks_the_leader_again(cluster, cursor, monkeypatch, replica, max_age_s, rack):
    """After some time, another replica may be the nearest. A broker that is not in our metadata yet is not used."""
    monkeypatch.setattr(cursor_core, "MAX_REPLICA_AGE_S", max_age_s)
    poll = start_poll(cursor)
    redirect(cluster, replica)
    again = cluster.brokers[LEADER].respond(partition_data(0, batch(0, b"a")))

    assert rack == again.request.rack_id
    assert [0] == offsets(poll.get())
