"""Routes over a real broker: snapshots, patterns, filters, and several clusters."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from urllib.parse import quote

import gevent
import pytest

from kafkasse.log import Partition
from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.server import Server

EXPRESSION = "value.n > 1 && headers.type == 'paid'"
SNAPSHOT = {"format": "value", "start": "snapshot"}

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], cluster: Cluster, silent: str) -> Server:
    cluster.create("routes-here")
    for topic in ("routes-tops", "routes-rows"):
        cluster.create(topic, 2, cleanup_policy="compact")
    return serve(
        heartbeat_s=0.3,
        client_filters=["key", "header.type", "field.n", "filter"],
        clusters={"eu": {"bootstrap_servers": silent}},
        routes={
            "tops": {"path": "/tops", "topics": ["routes-tops"], **SNAPSHOT},
            "rows": {"path": "/rows", "topics": ["routes-rows"], **SNAPSHOT},
            "matching": {"path": "/matching", "topics": ["patterns-*"]},
            "here": {"path": "/here", "topics": ["routes-here"]},
            "eu": {"path": "/eu", "topics": ["routes-here"], "cluster": "eu"},
        },
    )


def write(cluster: Cluster, topic: str, continent: str, *codes: str) -> str:
    """Write a record as the pipeline does: a continent with its largest countries. Return the data of its event."""
    nrs = [{"code": code, "name": code, "population": 1, "size": 1.0, "continent": continent} for code in codes]
    content = json.dumps({"continent": continent, "nrs": nrs})
    cluster.send(topic, content.encode(), key=continent.encode(), partition=len(continent) % 2)
    return content


def test_sends_the_whole_table_and_then_each_change(connect, cluster):
    write(cluster, "routes-tops", "Europe", "DE")
    europe = write(cluster, "routes-tops", "Europe", "RU", "UA", "FR")
    asia = write(cluster, "routes-tops", "Asia", "CN")
    stream = connect("/tops")

    assert {europe, asia} == {event.data for event in stream.events(2)}
    changed = write(cluster, "routes-tops", "Asia", "CN", "IN")
    [event] = stream.events(1)
    assert ("message", changed) == (event.type, event.data)


def test_a_tombstone_deletes_a_row(connect, cluster):
    """A tombstone is a delete event for open streams. New clients do not get the row."""
    write(cluster, "routes-rows", "Europe", "DE")
    asia = write(cluster, "routes-rows", "Asia", "CN")
    stream = connect("/rows")
    stream.events(2)

    cluster.send("routes-rows", None, key=b"Europe", partition=0)
    [event] = stream.events(1)
    late = connect("/rows").ready()

    assert ("delete", {"key": "Europe"}) == (event.type, json.loads(event.data))
    assert [asia] == [row.data for row in late.events(1)]
    assert 1 == late.body.count(b"event: message")


def test_topics_that_are_created_later_join(cluster, connect):
    """An open stream and one that resumes receive their first record. A deleted topic leaves, and nothing is lost."""
    for name in ("a", "b"):
        cluster.create(f"patterns-{name}")
    live = connect("/matching").ready()
    early_id = live.last_id
    cluster.create("patterns-c", 2)
    cluster.send("patterns-c", b'{"n":1}', b'{"n":2}')
    assert [1, 2] == numbers(live.events(2))

    resumed = connect("/matching", Last_Event_ID=early_id)
    assert [1, 2] == numbers(resumed.events(2))

    cluster.delete("patterns-b")
    assert [] == live.rest()
    cluster.send("patterns-a", b'{"n":3}')
    after = connect("/matching", Last_Event_ID=live.last_id)
    assert [3] == numbers(after.events(1))


def test_a_client_receives_its_records_and_the_position_after_the_others(connect, cluster, topic):
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


def test_a_cluster_that_does_not_answer_delays_only_its_own_routes(server, connect, cluster):
    """Requests for its routes get a 503. Streams of the other cluster open and receive records before that."""
    client = connect("/here").ready()
    waiting = [gevent.spawn(fetch, server.port, "/eu") for _ in range(5)]
    for n in range(3):
        cluster.send("routes-here", b'{"n":%d}' % n)
        assert [n] == numbers(client.events(1))
    connect("/here").ready()

    assert not any(greenlet.ready() for greenlet in waiting)
    assert {503} == {greenlet.get().status for greenlet in waiting}
