"""One server and one Kafka for each module's attacks, and what must hold when all of them are over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.broker import EmbeddedBroker
from tests.support.client import Client, ask
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually
from tests.web.conftest import browser as browser

ORIGIN = "https://a.example"
KEPT_MAX = 16  # connections to Kafka that are kept for the next clients
STRANGERS_WORDS = ("evil.example", "forged", "<script>", "\x1b")  # of requests and records
LISTENING = "0A"  # in /proc/net/tcp


@pytest.fixture(scope="module")
def serve(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers: serve(setting=value, …), with gunicorn's own options as a text. They are ended with the module."""
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
    """Whether a server is as it was before it was attacked.

    Args:
        topic: one that it serves, with one partition.
    """

    def __init__(self, server: Server, cluster: Cluster, topic: str) -> None:
        self._server, self._cluster, self._topic = server, cluster, topic
        self.serves()
        self._before = len(server.descriptors())

    def serves(self) -> None:
        """A healthy client gets what is written."""
        with Client(self._server.port, f"/{self._topic}") as client:
            client.ready()
            self._cluster.send(self._topic, b'{"n":1}')
            assert '{"n":1,' in client.events(1)[0].data

    def holds(self) -> None:
        """It serves, has no client left, no more descriptors than before, and no surprise or strangers' words in its log."""
        self.serves()
        eventually(lambda: ask(self._server.port, "/-/health").json["streams"] == 0)
        eventually(lambda: not clients(self._server))
        eventually(lambda: len(self._server.descriptors()) <= self._before + KEPT_MAX)
        assert [] == [word for word in ("Traceback", *STRANGERS_WORDS) if word in self._server.log]


def clients(server: Server) -> list[str]:
    """The clients that the worker holds a connection with."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    accepted = {row[9]: row[2] for row in rows if int(row[1].split(":")[1], 16) == server.port and row[3] != LISTENING}
    held = {each[len("socket:[") : -1] for each in server.descriptors() if each.startswith("socket:")}
    return [peer for inode, peer in accepted.items() if inode in held]


@pytest.fixture(scope="module")
def unharmed(server: Server, cluster: Cluster, attacked: str) -> Iterator[Unharmed]:
    """Holds when all attacks of the module are over."""
    unharmed = Unharmed(server, cluster, attacked)
    yield unharmed
    unharmed.holds()
