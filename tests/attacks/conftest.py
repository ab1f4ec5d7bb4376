"""One server and one Kafka for each module of attacks, and the checks after all attacks of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.broker import EmbeddedBroker
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.web.conftest import browser as browser

ORIGIN = "https://a.example"
KEPT_MAX = 4  # idle connections to Kafka that a worker keeps for the next readers
LARGE_RECORDS = 60  # of 100 kB: more than the socket buffers of a client that does not read
HOSTILE_WORDS = ("evil.example", "forged", "<script>", "\x1b")  # from requests and records
LISTENING = "0A"  # the state in /proc/net/tcp


@pytest.fixture(scope="module")
def serve(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers: serve(gunicorn_options, setting=value, …). They stop at the end of the module."""
    with ExitStack() as servers:

        def serve(gunicorn: str = "", **settings: Any) -> Server:
            file = tmp_path_factory.mktemp("settings") / "kafkasse.yaml"
            kafka = {"bootstrap_servers": broker.bootstrap_servers}
            file.write_text(
                yaml.safe_dump({"kafka": kafka, "allowed_topics": ["*"], "idle_feed_timeout_s": 0, **settings})
            )
            return servers.enter_context(Server(KAFKASSE_CONFIG=str(file), GUNICORN_CMD_ARGS=gunicorn))

        yield serve


class Unharmed:
    """Checks that a server works as before, and has leaked nothing, after the attacks.

    Args:
        server: the attacked server.
        cluster: its Kafka cluster.
        topic: a topic that the server allows, with one partition.
    """

    def __init__(self, server: Server, cluster: Cluster, topic: str) -> None:
        self._server, self._cluster, self._topic = server, cluster, topic
        fetch(server.port, f"/{topic}", "HEAD")  # connects the client for metadata, but no reader
        wait_until(lambda: not clients(server))
        sockets = server.sockets()
        self.serves()
        cluster.send(topic, *[b'{"x":"%b"}' % (b"x" * 100_000)] * LARGE_RECORDS)
        self._fill_the_pool()
        wait_until(lambda: server.sockets() == sockets + KEPT_MAX)
        self._before = len(server.descriptors())

    def serves(self) -> None:
        """A well-behaved client receives a new record."""
        with Client(self._server.port, f"/{self._topic}") as client:
            client.ready()
            self._cluster.send(self._topic, b'{"n":1}')
            assert '{"n":1,' in client.events(1)[0].data

    def _fill_the_pool(self) -> None:
        """Fill the worker's pool of idle connections to Kafka, so that every further connection is a leak.

        A client that catches up and does not read has its own connection, which returns to the pool when the client leaves.
        """
        with ExitStack() as readers:
            for n in range(KEPT_MAX + 2):
                address = {"X_Forwarded_For": f"10.250.0.{n}"}  # one address may not be allowed so many streams
                path = f"/{self._topic}?timestamp=0"
                readers.enter_context(Client(self._server.port, path, receive_buffer=65_536, **address)).ready()
        wait_until(lambda: fetch(self._server.port, "/-/health").json["streams"] == 0)
        wait_until(lambda: not clients(self._server))

    def holds(self) -> None:
        """The server works, has no clients, no additional descriptors, and no traceback or hostile words in its log."""
        self.serves()
        self._fill_the_pool()
        wait_until(lambda: len(self._server.descriptors()) <= self._before)
        assert [] == [word for word in ("Traceback", *HOSTILE_WORDS) if word in self._server.log]


def clients(server: Server) -> list[str]:
    """Return the clients that are connected to the worker."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    accepted = {row[9]: row[2] for row in rows if int(row[1].split(":")[1], 16) == server.port and row[3] != LISTENING}
    held = {each[len("socket:[") : -1] for each in server.descriptors() if each.startswith("socket:")}
    return [peer for inode, peer in accepted.items() if inode in held]


@pytest.fixture(scope="module")
def unharmed(server: Server, cluster: Cluster, attacked: str) -> Iterator[Unharmed]:
    """Checks the server after all attacks of the module."""
    unharmed = Unharmed(server, cluster, attacked)
    yield unharmed
    unharmed.holds()
