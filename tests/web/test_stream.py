"""One response from its first byte to its last, in each of the ways in which it can end."""

from __future__ import annotations

import gc
import json
import re
import socket
from collections.abc import Iterator

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import TopicGone
from kafkasse.feed import Feeds
from kafkasse.feed.memory import MemoryLog
from kafkasse.frame import Encoder, JsonLines, Wire
from kafkasse.position import of_topics, parse
from kafkasse.route import Route
from kafkasse.sse import Parser
from kafkasse.web.stream import Stream, open_streams
from tests.support.events import read_events

PATIENCE_S = 30
ROUTE = Route("topics", "/<topics>", None)


class World:
    """A log in memory and the streams that are opened on it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create("t")
        self.ended = 0
        self.feeds: list[Feeds] = []

    def open(self, client: socket.socket | None = None, wire: Wire | None = None, **settings: object) -> Stream:
        config = Config(**settings)
        wire = wire or Wire()
        self.feeds.append(Feeds(self.log, config))
        encoder = Encoder(wire=wire, filterer=lambda message: "hidden" not in message)
        reader = self.feeds[-1].open(ROUTE, of_topics(["t"]), self.log.describe(["t"]), encoder)
        return Stream(reader, wire, config, client, self._end)

    def _end(self) -> None:
        self.ended += 1


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with gevent.Timeout(PATIENCE_S):
        yield world
    for feeds in world.feeds:
        feeds.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end and the client's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


# The beginning.


def test_the_first_bytes(world: World) -> None:
    """A comment, the time to wait and the id come at once, before any record."""
    first = next(iter(world.open(retry_ms=1000)))

    opening, retry, event_id, rest = first.split(b"\n\n")
    assert (b":ok", b"") == (opening, rest)
    assert 500 <= int(retry.removeprefix(b"retry: ")) <= 1500
    assert ("t",) == parse(event_id.removeprefix(b"id: ").decode()).topics


def test_waiting_times_differ(world: World) -> None:
    """Not all clients are told to come back at the same moment."""
    told = {re.findall(rb"retry: (\d+)", next(iter(world.open(retry_ms=10_000))))[0] for _ in range(10)}

    assert len(told) > 1


# Silence.


def test_heartbeats(world: World) -> None:
    """A stream without records sends a comment each time that its silence has lasted for long enough."""
    chunks = iter(world.open(heartbeat_s=0.05))
    next(chunks)

    assert [b":heartbeat\n\n"] * 3 == [next(chunks) for _ in range(3)]


def test_a_heartbeat_tells_of_what_was_passed(world: World) -> None:
    """Where the position has moved without a record, the heartbeat is the id, once."""
    chunks = iter(world.open(heartbeat_s=0.05))
    next(chunks)
    world.log.append("t", b'{"hidden":1}')

    beats = [next(chunks) for _ in range(3)]

    told = [
        start.offset for beat in beats if beat[:3] == b"id:" for start in parse(beat[4:-2].decode()).starts.values()
    ]
    assert [1] == told
    assert [] == read_events(b"".join(beats))


def test_heartbeats_between_lines(world: World) -> None:
    """In newline-delimited JSON the heartbeat is an empty line."""
    chunks = iter(world.open(wire=JsonLines(), heartbeat_s=0.05))

    assert [b"\n"] * 3 == [next(chunks) for _ in range(3)]


# The ends.


def everything(stream: Stream) -> bytes:
    return b"".join(stream)


def test_a_stream_of_age(world: World) -> None:
    """A stream that is as old as streams may get ends politely: with the time to wait, and an id that goes on."""
    body = everything(world.open(stream_age_max_s=0.2, heartbeat_s=0.05))

    parser = Parser()
    assert [] == list(parser.receive(body))
    assert parse(parser.last_event_id)
    assert body.endswith(b"\n\n")
    assert 2 == body.count(b"retry: ")
    assert 1 == world.ended


def test_a_stream_that_is_ended(world: World) -> None:
    """Whoever ends a stream lets it send what it has moved past, and no heartbeat more."""
    stream = world.open(heartbeat_s=PATIENCE_S * 2)
    reading = gevent.spawn(everything, stream)
    gevent.sleep(0)

    stream.end()

    assert reading.get(timeout=PATIENCE_S).count(b"retry: ") == 2


def test_a_topic_that_goes(world: World) -> None:
    """An error is the last event, with the object that an HTTP error would have had, and the id to go on from."""
    stream = world.open(topic_check_s=0.02, heartbeat_s=PATIENCE_S)
    reading = gevent.spawn(everything, stream)
    gevent.sleep(0)

    world.log.delete("t")
    body = reading.get(timeout=PATIENCE_S)

    [event] = read_events(body)
    assert "error" == event.type
    assert TopicGone.status == json.loads(event.data)["status"]
    assert ("t",) == parse(event.id).topics
    assert 1 == world.ended


def test_an_error_between_lines(world: World) -> None:
    """In newline-delimited JSON it is a line of the same object."""
    stream = world.open(wire=JsonLines(), topic_check_s=0.02)
    reading = gevent.spawn(everything, stream)
    gevent.sleep(0)

    world.log.delete("t")

    assert b'"status":410' in reading.get(timeout=PATIENCE_S).splitlines()[-1]


def test_a_client_that_leaves(world: World, connection: tuple[socket.socket, socket.socket]) -> None:
    """A client that goes while nothing is sent is noticed without a heartbeat."""
    ours, theirs = connection
    reading = gevent.spawn(everything, world.open(ours, heartbeat_s=PATIENCE_S * 2))
    gevent.sleep(0)

    theirs.close()

    reading.get(timeout=PATIENCE_S)
    assert 1 == world.ended


def test_a_client_that_talks(world: World, connection: tuple[socket.socket, socket.socket]) -> None:
    """A client that sends more than its request keeps its stream, and does not keep the server busy."""
    ours, theirs = connection
    chunks = iter(world.open(ours, heartbeat_s=0.05))
    next(chunks)
    theirs.sendall(b"hello")

    assert [b":heartbeat\n\n"] * 2 == [next(chunks) for _ in range(2)]


def test_closing(world: World) -> None:
    """Closed twice, or never begun, a stream is gone once."""
    before = open_streams()
    begun, unbegun = world.open(), world.open()
    chunks = iter(begun)
    next(chunks)
    assert before + 2 == open_streams()

    for stream in (begun, unbegun, begun, unbegun):
        stream.close()

    assert (2, before) == (world.ended, open_streams())


def test_a_response_that_nobody_sends(world: World) -> None:
    """A stream that is thrown away before a server got it leaves nothing behind."""
    gc.collect()  # what other tests have thrown away
    before = open_streams()
    world.open()
    gc.collect()
    gevent.sleep(0)  # it is closed by a greenlet of its own

    assert (1, before) == (world.ended, open_streams())
