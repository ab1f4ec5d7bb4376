"""Each hostile request gets the answer in README.md, and the server is unharmed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attacks.conftest import ORIGIN
from tests.attacks.kit import answers
from tests.attacks.requests import TABLES
from tests.support.kafka import Cluster
from tests.support.server import Server


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    cluster.create("also-shown")
    cluster.create("hidden")
    return cluster.create("attacked")


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], attacked: str) -> Server:
    return serve(allowed_topics=[attacked, "also-shown"], cors_origins=[ORIGIN], heartbeat_s=300)


@pytest.mark.parametrize("table", TABLES)
def test_hostile_requests(server, unharmed, table):
    """The answers are exactly those of the table, and the next client gets its own answer."""
    answered = {}
    for case in TABLES[table]:
        answered[case.name] = answers(server.port, case.request)
        assert ("204",) == answers(server.port, b"OPTIONS /attacked HTTP/1.1\r\n\r\n"), case.name

    assert {case.name: case.answers for case in TABLES[table]} == answered
