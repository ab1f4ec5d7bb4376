"""The endpoints for a platform's probes, on a real server: readiness and liveness differ."""

from __future__ import annotations

from http.client import HTTPConnection

from kafkasse.broker import EmbeddedBroker
from tests.chaos.network import Network
from tests.support.client import READ_TIMEOUT_S, Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until


def test_a_server_becomes_ready_when_it_reaches_kafka(broker: EmbeddedBroker) -> None:
    """While Kafka cannot be reached, the server is alive but not ready. A later failure of Kafka does not count."""
    network = Network(int(broker.bootstrap_servers.rpartition(":")[2]))
    network.refuse()
    with Server(KAFKASSE_BOOTSTRAP_SERVERS=f"127.0.0.1:{network.port}", KAFKASSE_KAFKA_TIMEOUT_S="1") as server:

        def statuses() -> tuple[int, int]:
            return fetch(server.port, "/-/ready").status, fetch(server.port, "/-/health").status

        before = statuses()
        network.heal()
        wait_until(lambda: statuses() == (200, 200))
        network.refuse()

        assert ((503, 200), (200, 200)) == (before, statuses())


def test_a_server_that_drains_is_alive_but_not_ready(broker: EmbeddedBroker, cluster: Cluster, fresh_name: str) -> None:
    """Each probe gets an answer on a connection that was open before SIGTERM. New connections are refused."""
    cluster.create(fresh_name)
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "GUNICORN_CMD_ARGS": "--keep-alive 60"}
    with Server(**variables) as server, Client(server.port, f"/{fresh_name}").ready() as stream:
        probes = [_Probe(server.port, path) for path in ("/-/ready", "/-/health")]

        before = [probe.status() for probe in probes]
        server.terminate()
        stream.rest()  # the worker is stopping by then

        assert ([200, 200], [503, 200]) == (before, [probe.status() for probe in probes])


class _Probe:
    """Sends all its requests over one connection."""

    def __init__(self, port: int, path: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=READ_TIMEOUT_S)
        self._path = path

    def status(self) -> int:
        self._connection.request("GET", self._path)
        response = self._connection.getresponse()
        response.read()
        return response.status
