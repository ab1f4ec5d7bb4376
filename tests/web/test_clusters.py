"""Routes whose topics are in different clusters. The clusters are logs in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import gevent
import pytest
from flask import Flask
from flask.testing import FlaskClient
from gevent.event import Event as Flag

from kafkasse.config import Config
from kafkasse.errors import KafkaUnavailable
from kafkasse.log import Log, Topic
from kafkasse.memory_log import MemoryLog
from kafkasse.web.blueprint import streams_blueprint
from tests.support.sse import read_until
from tests.support.waiting import wait_until

ROUTES = {
    "here": {"path": "/here", "topics": ["t"], "start": "earliest"},
    "eu": {"path": "/eu", "topics": ["t"], "start": "earliest", "cluster": "eu"},
}


class Cluster(MemoryLog):
    """A log with a topic `t` that holds one record with the name of the cluster."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.is_down = False
        self.create("t")
        self.append("t", json.dumps({"cluster": name}).encode())

    def describe(self, topics: Iterable[str]) -> dict[str, Topic]:
        if self.is_down:
            raise KafkaUnavailable("Kafka does not answer.")
        return super().describe(topics)


class Clusters(dict[str, Cluster]):
    """The clusters by name; the cluster of the setting `kafka` has the name ""."""

    def __init__(self) -> None:
        super().__init__({"": Cluster("here"), "eu": Cluster("eu")})
        self.opened: list[str] = []
        self.gates: dict[str, Flag] = {}

    def open(self, name: str) -> Log:
        self.opened.append(name)
        if name in self.gates:
            self.gates[name].wait()
        return self[name]


@pytest.fixture
def clusters() -> Clusters:
    return Clusters()


@pytest.fixture
def client(clusters: Clusters) -> FlaskClient:
    eu = {"bootstrap_servers": "kafka-eu.example:9092"}
    config = Config(heartbeat_s=0.05, public=True, allowed_topics=["*"], clusters={"eu": eu}, routes=ROUTES)
    app = Flask("host")
    app.register_blueprint(streams_blueprint(config, clusters.open, "kafkasse", catalog=False, console=False))
    return app.test_client()


def first_record(client: FlaskClient, path: str) -> str:
    with client.get(path, buffered=False) as response:
        assert 200 == response.status_code
        return re.findall(r'"cluster": "(\w+)"', read_until(response.response, b"cluster").decode())[0]


def test_a_route_reads_from_its_own_cluster(client: FlaskClient, clusters: Clusters) -> None:
    """All other routes, and /{topics}, read from the cluster of the setting `kafka`. A request opens its cluster."""
    assert ["here", "here"] == [first_record(client, path) for path in ("/here", "/t?timestamp=0")]
    assert [""] == clusters.opened
    assert "eu" == first_record(client, "/eu")
    assert ["", "eu"] == clusters.opened


@pytest.mark.parametrize(("down", "up"), [("", "eu"), ("eu", "")])
def test_an_outage_of_one_cluster_does_not_affect_the_other(
    client: FlaskClient, clusters: Clusters, down: str, up: str
) -> None:
    clusters[down].is_down = True

    rejected = client.get("/eu" if down else "/here")

    assert 503 == rejected.status_code
    assert clusters[up].name == first_record(client, "/eu" if up else "/here")


def test_a_cluster_that_is_slow_to_open_does_not_delay_the_other(client: FlaskClient, clusters: Clusters) -> None:
    clusters.gates["eu"] = Flag()
    waiting = gevent.spawn(first_record, client.application.test_client(), "/eu")
    wait_until(lambda: ["eu"] == clusters.opened)

    assert "here" == first_record(client, "/here")

    clusters.gates["eu"].set()
    assert "eu" == waiting.get(timeout=120)
