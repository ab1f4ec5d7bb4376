"""Filters on a real server with a real broker."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest

from kafkasse.log import Partition
from tests.support.client import Client, numbers
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
