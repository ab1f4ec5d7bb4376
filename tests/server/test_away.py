"""Kafka goes and comes back: who asks is told at once, who reads loses nothing, and nobody has to restart anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse import schemas
from kafkasse.broker import EmbeddedBroker
from kafkasse.log import Partition
from kafkasse.position import PartitionStart
from tests.support.client import Client, ask, data
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually

SETTINGS = {
    "KAFKASSE_HEARTBEAT_S": "0.3",
    "KAFKASSE_METADATA_REFRESH_S": "0.3",
    "KAFKASSE_KAFKA_TIMEOUT_S": "1",
    "KAFKASSE_KAFKA_RECONNECT_BACKOFF_MAX_MS": "200",
}


@pytest.fixture(scope="module")
def broker(processes: None) -> Iterator[EmbeddedBroker]:
    """A Kafka of our own, which may be harmed."""
    with EmbeddedBroker() as running:
        yield running


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


def test_kafka_goes_and_comes_back(broker: EmbeddedBroker, fresh_name: str) -> None:
    """Killed and started again: open streams beat on and go on without loss, new ones are refused and then served."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.create(fresh_name, 2)
        cluster.create(f"{fresh_name}-other")
    with (
        Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **SETTINGS) as server,
        Client(server.port, f"/{fresh_name}") as stream,
        Client(server.port, f"/{fresh_name}?timestamp=0") as behind,
    ):
        fill(broker, fresh_name, 1, 2)
        assert [1, 2] == data(stream.ready().events(2))
        assert [1, 2] == data(behind.events(2))

        broker.kill()

        refused = ask(server.port, f"/{fresh_name}-other")
        assert (503, "KafkaUnavailableError") == (refused.status, refused.json["name"])
        assert int(refused.headers["retry-after"]) > 0
        assert schemas.first_error("problem", refused.json) is None
        assert broker.bootstrap_servers not in refused.body.decode()
        assert 200 == ask(server.port, "/-/health").status
        for each in (stream, behind):
            beats = each.body.count(b":heartbeat")
            each.until_said(b":heartbeat", beats + 2)

        broker.start()

        fill(broker, fresh_name, 3, 4)
        assert [3, 4] == data(stream.events(2))
        assert [3, 4] == data(behind.events(2))
        assert {
            Partition(fresh_name, 0): PartitionStart(4),
            Partition(fresh_name, 1): PartitionStart(0),
        } == stream.position
        eventually(lambda: ask(server.port, f"/{fresh_name}-other", "HEAD").status == 200)
        assert b"event: error" not in stream.body + behind.body


def test_a_server_that_is_there_first(broker: EmbeddedBroker, fresh_name: str) -> None:
    """A server that was started before Kafka answers 503 until Kafka is there, and serves from then on."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.create(fresh_name)
    broker.stop()
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **SETTINGS) as server:
        assert 503 == ask(server.port, f"/{fresh_name}").status

        broker.start()

        eventually(lambda: ask(server.port, f"/{fresh_name}", "HEAD").status == 200)
        with Client(server.port, f"/{fresh_name}") as stream:
            stream.ready()
            fill(broker, fresh_name, 1)
            assert [1] == data(stream.events(1))


def fill(broker: EmbeddedBroker, topic: str, *numbers: int) -> None:
    """By a producer that knows nothing of what was before."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.send(topic, *(value(n) for n in numbers))
