"""Kafka stops and starts again: new clients get 503 at once, open streams lose nothing, and no server restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkasse import schemas
from kafkasse.log import Partition
from kafkasse.tools.broker import EmbeddedBroker
from tests.commands.run import ENVIRONMENT, process
from tests.support.client import Client, fetch, numbers, value
from tests.support.kafka import Cluster
from tests.support.ports import reserved_ports
from tests.support.server import Server
from tests.support.waiting import wait_until

SETTINGS = {
    "KAFKASSE_HEARTBEAT_S": "0.3",
    "KAFKASSE_METADATA_REFRESH_S": "0.3",
    "KAFKASSE_KAFKA_TIMEOUT_S": "1",
    "KAFKASSE_KAFKA_RECONNECT_BACKOFF_MAX_MS": "200",
}


@pytest.fixture
def broker(processes: None, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker for this module alone, because its test kills it. It is not started."""
    with reserved_ports("kafka") as ports:
        broker = EmbeddedBroker(ports["kafka"], tmp_path)
        yield broker
        broker.kill()


@pytest.fixture
def server(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Server]:
    runtime = str(tmp_path / "run")
    settings = SETTINGS | {"KAFKASSE_RUNTIME_DIR": runtime}
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **settings) as server:
        yield server


def probes(server: Server) -> list[int]:
    return [fetch(server.port, path).status for path in ("/-/ready", "/-/health")]


def listed(runtime: Path) -> str:
    with process("streams", env=ENVIRONMENT | {"KAFKASSE_RUNTIME_DIR": str(runtime)}) as command:
        return command.communicate()[0]


def silences(server: Server) -> set[object]:
    return {stream["kafka_silent_s"] for stream in fetch(server.port, "/-/streams").json["streams"]}


def test_streams_survive_a_restart_of_kafka(broker, server, fresh_name, tmp_path):
    """Open streams send heartbeats, and new ones get 503. The server may start before Kafka, and then stays ready.

    The lists of streams say that Kafka does not answer, because a parked stream without a lag looks healthy.
    """
    assert 503 == fetch(server.port, f"/{fresh_name}").status
    assert [503, 200] == probes(server)
    broker.start()
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.create(fresh_name, 2)
        cluster.create(f"{fresh_name}-other")
    wait_until(lambda: fetch(server.port, f"/{fresh_name}", "HEAD").status == 200)
    assert [200, 200] == probes(server)
    with Client(server.port, f"/{fresh_name}") as stream, Client(server.port, f"/{fresh_name}?timestamp=0") as behind:
        fill(broker, fresh_name, 1, 2)
        assert [1, 2] == numbers(stream.ready().events(2))
        assert [1, 2] == numbers(behind.events(2))

        assert "kafka_silent_s" not in listed(tmp_path / "run")

        broker.kill()

        rejected = fetch(server.port, f"/{fresh_name}-other")
        assert (503, "KafkaUnavailableError") == (rejected.status, rejected.json["name"])
        assert int(rejected.headers["retry-after"]) > 0
        assert schemas.first_error("problem", rejected.json) is None
        assert broker.bootstrap_servers not in rejected.body.decode()
        assert [200, 200] == probes(server)
        wait_until(lambda: min(silences(server)) > 1)
        assert "kafka_silent_s" in listed(tmp_path / "run")
        for client in (stream, behind):
            beats = client.body.count(b":heartbeat")
            client.read_until_text(b":heartbeat", beats + 2)

        broker.start()

        fill(broker, fresh_name, 3, 4)
        assert [3, 4] == numbers(stream.events(2))
        assert [3, 4] == numbers(behind.events(2))
        wait_until(lambda: silences(server) == {0})
        offsets = {partition: start.offset for partition, start in stream.position.items()}
        assert {Partition(fresh_name, 0): 4, Partition(fresh_name, 1): 0} == offsets
        wait_until(lambda: fetch(server.port, f"/{fresh_name}-other", "HEAD").status == 200)
        assert b"event: error" not in stream.body + behind.body
        assert f"Kafka answers again at {broker.bootstrap_servers}, " in server.log


def fill(broker: EmbeddedBroker, topic: str, *numbers: int) -> None:
    """Send records from a new producer, which does not remember the old broker."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.send(topic, *(value(n) for n in numbers))
