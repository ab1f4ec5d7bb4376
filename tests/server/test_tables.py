"""The Top-N demo's route: whoever comes, when ever, has the whole table at once, then each change."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.server import Server

ROUTE = "/topn/updates"
Connect = Callable[..., Client]


def top(continent: str, *codes: str) -> bytes:
    """What the pipeline writes: the ancestor's payload, a continent with its first countries."""
    nrs = [{"code": code, "name": code, "population": 1, "size": 1.0, "continent": continent} for code in codes]
    return json.dumps({"continent": continent, "nrs": nrs}).encode()


@pytest.fixture(scope="module")
def prefix() -> str:
    """As on a shared plan of Heroku's: the topic `topn` is called otherwise there."""
    return f"p-{secrets.token_hex(4)}."


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], prefix: str) -> Server:
    return serve(topic_prefix=prefix, heartbeat_s=0.3)


@pytest.fixture
def table(cluster: Cluster, prefix: str) -> Iterator[str]:
    """The table's topic, compacted, as long as a test lasts."""
    topic = cluster.create(f"{prefix}topn", 2, cleanup_policy="compact")
    yield topic
    cluster.delete(topic)


def write(cluster: Cluster, topic: str, continent: str, *codes: str) -> str:
    """A continent's newest Top 3. Returns it as it is sent."""
    content = top(continent, *codes)
    cluster.send(topic, content, key=continent.encode(), partition=len(continent) % 2)
    return content.decode()


def test_who_comes_late_sees_the_table_then_each_change(connect: Connect, cluster: Cluster, table: str) -> None:
    """The newest Top 3 of each continent comes at once, untouched; then what changes, as it changes."""
    write(cluster, table, "Europe", "DE")
    europe = write(cluster, table, "Europe", "RU", "UA", "FR")
    asia = write(cluster, table, "Asia", "CN")
    stream = connect(ROUTE)

    assert {europe, asia} == {event.data for event in stream.events(2)}
    changed = write(cluster, table, "Asia", "CN", "IN")
    [event] = stream.events(1)
    assert ("message", changed) == (event.type, event.data)


def test_who_comes_back_gets_the_changes(connect: Connect, cluster: Cluster, table: str) -> None:
    """An id goes on behind the table: no table again, and no change lost."""
    write(cluster, table, "Europe", "DE")
    with connect(ROUTE) as stream:
        stream.ready()
    changed = write(cluster, table, "Asia", "CN")

    assert [changed] == [event.data for event in connect(ROUTE, Last_Event_ID=stream.last_id).events(1)]


def test_who_is_cut_off_during_the_table_gets_it_again(connect: Connect, cluster: Cluster, table: str) -> None:
    """Until the table is whole there is no id that could leave out a part of it."""
    rows = {write(cluster, table, f"{n:01000}", "x" * 1000) for n in range(500)}
    with connect(ROUTE, receive_buffer=4096) as cut:
        had = cut.events(1)
        assert ("", 500) == (cut.last_id, len(rows))

    again = connect(ROUTE)

    assert had[0].data in rows
    assert rows == {event.data for event in again.events(500)}
    assert again.ready().last_id


def test_an_empty_table(connect: Connect, cluster: Cluster, table: str) -> None:
    """A table without rows is there at once, too: its client misses no first row."""
    with connect(ROUTE) as stream:
        stream.ready()
    first = write(cluster, table, "Europe", "DE")

    assert [first] == [event.data for event in connect(ROUTE, Last_Event_ID=stream.last_id).events(1)]


def test_a_row_that_is_deleted(connect: Connect, cluster: Cluster, table: str) -> None:
    """A tombstone is a delete event for who watches, and no row for who comes later."""
    write(cluster, table, "Europe", "DE")
    asia = write(cluster, table, "Asia", "CN")
    stream = connect(ROUTE)
    stream.events(2)

    cluster.send(table, None, key=b"Europe", partition=0)
    [event] = stream.events(1)
    late = connect(ROUTE).ready()

    assert ("delete", {"key": "Europe"}) == (event.type, json.loads(event.data))
    assert [asia] == [each.data for each in late.events(1)]
    assert 1 == late.body.count(b"event: ")


def test_the_prefix_is_nobodys_business(connect: Connect, cluster: Cluster, table: str, prefix: str) -> None:
    """Neither ids nor errors show what the topics are really called."""
    stream = connect(ROUTE).ready()
    refused = connect(f"/{prefix}topn")
    refused.rest()

    assert prefix not in stream.body.decode()
    assert 404 == refused.status
    assert stream.last_id.startswith('[{"topic":"topn",')
