"""Fixtures for tests of a real server over real sockets. Tests that need the same settings share one server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server

IN_MEMORY = "tests.support.apps:in_memory()"


@pytest.fixture(scope="module")
def serve(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers: serve(app, environment, setting=value, …). They are stopped after the last test of the module."""
    started: list[Server] = []
    with ExitStack() as servers:

        def serve(app: str = "wsgi:app", environment: Mapping[str, str] | None = None, **settings: Any) -> Server:
            file = tmp_path_factory.mktemp("settings") / "kafkasse.yaml"
            kafka = {"bootstrap_servers": broker.bootstrap_servers}
            file.write_text(
                yaml.safe_dump({"kafka": kafka, "allowed_topics": ["*"], "metadata_refresh_s": 0.2, **settings})
            )
            started.append(servers.enter_context(Server(app, KAFKASSE_CONFIG=str(file), **environment or {})))
            return started[-1]

        yield serve
        for server in started:
            server.terminate()  # all of them before waiting for the first


@pytest.fixture
def start(processes: None, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that need no Kafka: start(NAME="value", …). They are stopped after the test."""
    with ExitStack() as servers:
        yield lambda **environment: servers.enter_context(
            Server(IN_MEMORY, KAFKASSE_RUNTIME_DIR=str(tmp_path / "run"), **environment)
        )


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Client]]:
    """Sends a request to the module's server and returns a client, which is closed after the test."""
    with ExitStack() as clients:

        def connect(path: str, method: str = "GET", receive_buffer: int | None = None, **headers: str) -> Client:
            return clients.enter_context(Client(server.port, path, method, receive_buffer, **headers))

        yield connect


@pytest.fixture
def topic(cluster: Cluster, fresh_name: str) -> str:
    """A topic with three partitions."""
    return cluster.create(fresh_name, 3)


def metric(server: Server, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = fetch(server.port, "/-/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.split("[ {]", line)[0] == f"kafkasse_{name}")
