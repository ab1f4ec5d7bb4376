"""A route with `start: snapshot`: every client gets the whole table at once, and then each change."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server

TABLES = 2
Connect = Callable[..., Client]


class Table(NamedTuple):
    """A compacted topic, and the path that serves it."""

    topic: str
    path: str


def top(continent: str, *codes: str) -> bytes:
    """Return a record as the pipeline writes it: a continent with its largest countries."""
    nrs = [{"code": code, "name": code, "population": 1, "size": 1.0, "continent": continent} for code in codes]
    return json.dumps({"continent": continent, "nrs": nrs}).encode()


@pytest.fixture(scope="module")
def tables(cluster: Cluster) -> list[Table]:
    """A table for each test."""
    topics = [f"t-{secrets.token_hex(6)}" for _ in range(TABLES)]
    return [Table(cluster.create(topic, 2, cleanup_policy="compact"), f"/{topic}/updates") for topic in topics]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], tables: list[Table]) -> Server:
    route = {"format": "value", "start": "snapshot"}
    routes = {f"r{n}": {"path": table.path, "topics": [table.topic], **route} for n, table in enumerate(tables)}
    return serve(routes=routes, heartbeat_s=0.3)


@pytest.fixture
def table(tables: list[Table]) -> Table:
    return tables.pop()


def write(cluster: Cluster, topic: str, continent: str, *codes: str) -> str:
    """Write the newest Top 3 of a continent. Returns the data of its event."""
    content = top(continent, *codes)
    cluster.send(topic, content, key=continent.encode(), partition=len(continent) % 2)
    return content.decode()


def test_sends_the_whole_table_and_then_each_change(connect: Connect, cluster: Cluster, table: Table) -> None:
    write(cluster, table.topic, "Europe", "DE")
    europe = write(cluster, table.topic, "Europe", "RU", "UA", "FR")
    asia = write(cluster, table.topic, "Asia", "CN")
    stream = connect(table.path)

    assert {europe, asia} == {event.data for event in stream.events(2)}
    changed = write(cluster, table.topic, "Asia", "CN", "IN")
    [event] = stream.events(1)
    assert ("message", changed) == (event.type, event.data)


def test_a_tombstone_deletes_a_row(connect: Connect, cluster: Cluster, table: Table) -> None:
    write(cluster, table.topic, "Europe", "DE")
    asia = write(cluster, table.topic, "Asia", "CN")
    stream = connect(table.path)
    stream.events(2)

    cluster.send(table.topic, None, key=b"Europe", partition=0)
    [event] = stream.events(1)
    late = connect(table.path).ready()

    assert ("delete", {"key": "Europe"}) == (event.type, json.loads(event.data))
    assert [asia] == [each.data for each in late.events(1)]
    assert 1 == late.body.count(b"event: message")


def test_a_table_with_a_topic_prefix(serve: Callable[..., Server], cluster: Cluster) -> None:
    """The route names its topics without the prefix. Neither event IDs nor errors show the prefix."""
    prefix = f"p-{secrets.token_hex(4)}."
    topn = {"path": "/topn/updates", "topics": ["topn"], "format": "value", "start": "snapshot"}
    server = serve(topic_prefix=prefix, routes={"topn": topn})
    europe = write(cluster, cluster.create(f"{prefix}topn", 2), "Europe", "DE")

    with Client(server.port, "/topn/updates") as stream:
        assert [europe] == [event.data for event in stream.events(1)]
        stream.ready()

    assert prefix not in stream.body.decode()
    assert stream.last_id.startswith('[{"topic":"topn",')
    assert 404 == fetch(server.port, f"/{prefix}topn").status
