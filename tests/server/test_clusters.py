"""Several clusters: one that does not answer does not delay the routes of another one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import gevent
import pytest

from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.server import Server

KAFKA_TIMEOUT_S = 5
RECORDS = 20


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


def test_a_cluster_that_does_not_answer_delays_only_its_own_routes(
    serve: Callable[..., Server], cluster: Cluster, topic: str, silent: str
) -> None:
    """Requests for its routes get a 503. Streams of the other cluster open and receive records before that."""
    server = serve(
        kafka_timeout_s=KAFKA_TIMEOUT_S,
        clusters={"eu": {"bootstrap_servers": silent}},
        routes={
            "here": {"path": "/here", "topics": [topic]},
            "eu": {"path": "/eu", "topics": [topic], "cluster": "eu"},
        },
    )
    with Client(server.port, "/here") as client:
        client.ready()
        waiting = [gevent.spawn(fetch, server.port, "/eu") for _ in range(5)]
        for n in range(RECORDS):
            cluster.send(topic, b'{"n":%d}' % n)
            assert [n] == numbers(client.events(1))
        with Client(server.port, "/here") as second:
            second.ready()

        assert not any(each.ready() for each in waiting)
        assert {503} == {each.get().status for each in waiting}
