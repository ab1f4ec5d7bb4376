"""One response from its first byte to its last, in each of the ways in which it can end."""

from __future__ import annotations

import gc
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import TopicGone
from kafkasse.feed import Feeds
from kafkasse.frame import Encoder, JsonLines, ServerSentEvents, Wire
from kafkasse.memory_log import MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import Route
from kafkasse.sse import Parser
from kafkasse.web.registry import StreamRegistry
from kafkasse.web.stream import Stream
from tests.support.sse import read_events
from tests.web.served import chunked, unchunked

PATIENCE_S = 30
RECORDS = 3_000  # of 1 kB: more than a socket holds
ROUTE = Route("topics", "/<topics>", None)


class World:
    """A log in memory and the streams that are opened on it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create("t")
        self.ended = 0
        self.registry = StreamRegistry()
        self.feeds: list[Feeds] = []

    def open(
        self,
        client: socket.socket | None = None,
        wire: Wire | None = None,
        since: int | None = None,
        **settings: object,
    ) -> Stream:
        config = Config(**settings)
        wire = wire or ServerSentEvents()
        self.feeds.append(Feeds(self.log, config.feed))
        encoder = Encoder(wire=wire, filterer=lambda message: "hidden" not in message)
        reader = self.feeds[-1].open(ROUTE, of_topics(["t"]), self.log.describe(["t"]), encoder, since)
        self.stream = Stream(reader, wire, config.web, self.registry, client, self._end, logging.getLogger())
        return self.stream

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


Whole = Callable[..., gevent.Greenlet]


@pytest.fixture(params=["iterated", "serving itself"])
def reading(request: pytest.FixtureRequest, world: World) -> Whole:
    """Opens a stream, and reads it to its end. Its whole body is the greenlet's value."""

    def iterated(**settings: object) -> gevent.Greenlet:
        return gevent.spawn(b"".join, world.open(**settings))

    def served(**settings: object) -> gevent.Greenlet:
        ours, theirs = socket.socketpair()
        gevent.spawn(world.open(ours, **settings).serve, chunked)
        return gevent.spawn(_received, theirs)

    def read(**settings: object) -> gevent.Greenlet:
        whole = (iterated if request.param == "iterated" else served)(**settings)
        gevent.sleep(0.02)  # what serves itself is parked by then
        return whole

    return read


def _received(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(65536):
        received += data
    body, whole = unchunked(received)
    assert whole
    return body


def test_a_stream_of_age(world: World, reading: Whole) -> None:
    """A stream that is as old as streams may get ends politely: with the time to wait, and an id that goes on."""
    body = reading(max_stream_age_s=0.2, heartbeat_s=0.05).get(timeout=PATIENCE_S)

    parser = Parser()
    assert [] == list(parser.receive(body))
    assert parse(parser.last_event_id)
    assert body.endswith(b"\n\n")
    assert 2 == body.count(b"retry: ")
    assert 1 == world.ended


def test_a_stream_that_is_ended(world: World, reading: Whole) -> None:
    """Whoever ends a stream lets it send what it has moved past, and no heartbeat more."""
    whole = reading(heartbeat_s=PATIENCE_S * 2)

    world.stream.end()

    assert whole.get(timeout=PATIENCE_S).count(b"retry: ") == 2
    assert 1 == world.ended


def test_lines_that_are_ended(world: World, reading: Whole) -> None:
    """In newline-delimited JSON nothing is said at the end."""
    whole = reading(wire=JsonLines(), heartbeat_s=PATIENCE_S * 2)

    world.stream.end()

    assert b"" == whole.get(timeout=PATIENCE_S).strip()
    assert 1 == world.ended


def test_lines_that_are_ended_before_the_end(world: World) -> None:
    """A client that is still catching up gets what was read for it, and nothing that comes after a hole."""
    for n in range(RECORDS):
        world.log.append("t", b'{"n":%d,"x":"%b"}' % (n, b"x" * 1000))
    ours, theirs = socket.socketpair()
    gevent.spawn(world.open(ours, JsonLines(), since=0, heartbeat_s=PATIENCE_S * 2).serve, chunked)
    gevent.sleep(0.02)  # the socket is full by then

    world.stream.end()
    world.log.append("t", b'{"n":%d}' % RECORDS)

    lines = [line for line in _received(theirs).splitlines() if line]
    assert 0 < len(lines) < RECORDS
    assert list(range(len(lines))) == [json.loads(line)["n"] for line in lines]
    assert 1 == world.ended


def test_a_topic_that_goes(world: World, reading: Whole) -> None:
    """An error is the last event, with the object that an HTTP error would have had, and the id to go on from."""
    whole = reading(metadata_refresh_s=0.02, heartbeat_s=PATIENCE_S)

    world.log.delete("t")
    body = whole.get(timeout=PATIENCE_S)

    [event] = read_events(body)
    assert "error" == event.type
    assert TopicGone.status == json.loads(event.data)["status"]
    assert ("t",) == parse(event.id).topics
    assert 1 == world.ended


def test_an_error_between_lines(world: World, reading: Whole) -> None:
    """In newline-delimited JSON it is a line of the same object."""
    whole = reading(wire=JsonLines(), metadata_refresh_s=0.02)

    world.log.delete("t")

    assert b'"status":410' in whole.get(timeout=PATIENCE_S).splitlines()[-1]


def test_a_client_that_leaves(world: World, connection: tuple[socket.socket, socket.socket]) -> None:
    """A client that goes while nothing is sent is noticed without a heartbeat."""
    ours, theirs = connection
    reading = gevent.spawn(b"".join, world.open(ours, heartbeat_s=PATIENCE_S * 2))
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
    before = len(world.registry)
    begun, unbegun = world.open(), world.open()
    chunks = iter(begun)
    next(chunks)
    assert before + 2 == len(world.registry)

    for stream in (begun, unbegun, begun, unbegun):
        stream.close()

    assert (2, before) == (world.ended, len(world.registry))


def test_a_response_that_nobody_sends(world: World) -> None:
    """A stream that is thrown away before a server got it leaves nothing behind, and needs no garbage collector for it."""
    gc.collect()  # what other tests have thrown away
    before = len(world.registry)
    world.open()
    del world.stream
    gevent.sleep(0)  # it is closed by a greenlet of its own

    assert (1, before) == (world.ended, len(world.registry))
