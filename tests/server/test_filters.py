"""Filters on a real server with a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from kafkasse.log import Partition
from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.server import Server

EXPRESSION = "value.n > 1 && headers.type == 'paid'"

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(heartbeat_s=0.3, client_filters=["key", "header.type", "field.n", "filter"])


def test_a_client_receives_its_records_and_the_position_after_the_others(
    connect: Connect, cluster: Cluster, topic: str
) -> None:
    """Three clients filter one topic. The event ID of each advances to the end, past the records of the others."""
    paths = {
        f"/{topic}?key=alice": [0, 3],
        f"/{topic}?key=bob&header.type=paid": [4],
        f"/{topic}?filter={quote(EXPRESSION)}": [3, 4],
    }
    clients = {path: connect(path).ready() for path in paths}
    new = [(b"alice", b"new"), (b"bob", b"new"), (None, b"new")]
    for n, (key, kind) in enumerate([*new, (b"alice", b"paid"), (b"bob", b"paid")]):
        cluster.send(topic, b'{"n":%d}' % n, key=key, headers=[("type", kind)])

    for path, expected in paths.items():
        assert expected == numbers(clients[path].events(len(expected)))
        clients[path].read_until(lambda client=clients[path]: client.position[Partition(topic, 0)].offset == 5)


def test_a_client_resumes_with_its_filter(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client that reconnects receives the records that match since its last event, and no others."""
    path = f"/{topic}?key=alice"
    client = connect(path).ready()
    for n in range(10):
        cluster.send(topic, b'{"n":%d}' % n, key=b"alice" if n % 3 == 0 else b"bob")
    assert [0, 3] == numbers(client.events(2))[:2]
    client.close()

    resumed = connect(path, Last_Event_ID=json.dumps([{"topic": topic, "partition": 0, "offset": 4}]))

    assert [6, 9] == numbers(resumed.events(2))


def test_an_invalid_expression_is_rejected(server: Server, topic: str) -> None:
    """The response shows the position of the mistake."""
    answer = fetch(server.port, f"/{topic}?filter={quote('value.n > > 1')}")

    assert (400, 1, 11) == (answer.status, answer.json["line"], answer.json["column"])
    assert "value.n > > 1\n          ^" == answer.json["picture"]
