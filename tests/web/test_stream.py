"""A stream from its first byte to its last, for each reason to end."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import TopicGone
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import StreamEnd, StreamInfo, StreamRegistry
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import JsonLines, ServerSentEvents, Wire
from kafkasse.records.position import of_topics, parse
from kafkasse.route import Route
from kafkasse.web.stream import StreamBody
from kafkasse_client.sse import Parser
from tests.support.sse import read_events, without_positions
from tests.support.waiting import wait_until
from tests.web.served import chunked, unchunked

TIMEOUT_S = 30
SO_ATTACH_FILTER, BPF_RETURN = 26, 0x06  # of Linux
RECORDS = 3_000  # of 1 kB: more than a socket buffers
ROUTE = Route("topics", "/{topics}", None)


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create("t")
        self.ended = 0
        self.on_end: Callable[[], object] = lambda: None
        self.registry = StreamRegistry()
        self.feeds: list[Feeds] = []

    def open(
        self,
        client: socket.socket | None = None,
        wire: Wire | None = None,
        since: int | None = None,
        **settings: object,
    ) -> StreamBody:
        config = Config(**settings)
        self.feeds.append(Feeds(self.log, config.feed))
        encoder = Encoder(wire=wire or ServerSentEvents(), filterer=lambda message: "hidden" not in message)
        reader = self.feeds[-1].open(OpenRequest(ROUTE, of_topics(["t"]), self.log.describe(["t"]), encoder, since))
        info = StreamInfo.new("req-1")
        self.stream = StreamBody(reader, config.web, self.registry, client, self._end, logging.getLogger(), info=info)
        return self.stream

    def _end(self, stream: StreamBody, end: StreamEnd) -> None:
        self.ended += 1
        self.on_end()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("kafkasse.feed.tail.MAX_POLL_S", 0.02)
    world = World()
    with gevent.Timeout(TIMEOUT_S):
        yield world
    for feeds in world.feeds:
        feeds.close()


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    server_end, client_end = socket.socketpair()
    with server_end, client_end:
        yield server_end, client_end


# The start.


def test_starts_with_a_comment_a_retry_time_and_an_event_id(world):
    """All three arrive at once, before any record. The retry times differ, so that not all clients reconnect together."""
    retry_times = set()
    for _ in range(10):
        first = next(iter(world.open(retry_ms=1000)))

        opening, retry, position, rest = first.split(b"\n\n")
        assert (b":ok", b"") == (opening, rest)
        assert position.startswith(b"event: position\ndata: {}\nid: ")
        assert ("t",) == parse(read_events(first)[0].id).topics
        retry_times.add(int(retry.removeprefix(b"retry: ")))
    assert 500 <= min(retry_times) < max(retry_times) <= 1500


# Heartbeats.


@pytest.mark.parametrize(
    ("wire", "heartbeat"), [(ServerSentEvents(), b":heartbeat\n\n"), (JsonLines(), b"\n")], ids=["SSE", "JSON lines"]
)
def test_sends_heartbeats_while_there_are_no_records(world, wire, heartbeat):
    """The stream sends a comment after each interval of heartbeat_s, or an empty line: JSON has no comments."""
    chunks = iter(world.open(wire=wire, heartbeat_s=0.05))
    next(chunks)

    assert [heartbeat] * 3 == [next(chunks) for _ in range(3)]


def test_a_position_event_replaces_a_heartbeat_after_filtered_records(world):
    """The position event contains the new event ID. The next heartbeats are comments."""
    chunks = iter(world.open(heartbeat_s=0.05))
    next(chunks)
    world.log.append("t", b'{"hidden":1}')

    heartbeats = [next(chunks) for _ in range(3)]

    [event] = read_events(b"".join(heartbeats))
    assert ("position", "{}") == (event.type, event.data)
    assert [1] == [start.offset for start in parse(event.id).starts.values()]
    assert 2 == heartbeats.count(b":heartbeat\n\n")


# The end.


Whole = Callable[..., gevent.Greenlet]


@pytest.fixture(params=["iterated", "serving itself"])
def reading(request: pytest.FixtureRequest, world: World) -> Whole:
    """Return a function that opens a stream and reads it to its end. The greenlet's value is the whole body."""

    def iterated(**settings: object) -> gevent.Greenlet:
        return gevent.spawn(b"".join, world.open(**settings))

    def served(**settings: object) -> gevent.Greenlet:
        server_end, client_end = socket.socketpair()
        gevent.spawn(world.open(server_end, **settings).serve, chunked)
        return gevent.spawn(_received, client_end)

    def start(**settings: object) -> gevent.Greenlet:
        read, state = {"iterated": (iterated, "live"), "serving itself": (served, "parked")}[request.param]
        whole = read(**settings)
        wait_until(lambda: world.ended or state == world.stream.status()["state"])
        return whole

    return start


def _received(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(65536):
        received += data
    body, whole = unchunked(received)
    assert whole
    return body


def test_a_stream_at_its_maximum_age_ends_with_a_retry_time_and_an_event_id(world, reading):
    body = reading(max_stream_age_s=0.2, heartbeat_s=0.05).get(timeout=TIMEOUT_S)

    parser = Parser()
    assert [] == without_positions(parser.receive(body))
    assert parse(parser.last_event_id)
    assert body.endswith(b"\n\n")
    assert 2 == body.count(b"retry: ")
    assert 1 == world.ended


@pytest.mark.parametrize(
    ("wire", "fields"), [(ServerSentEvents(), [b"retry", b"event", b"data", b"id", b"retry"]), (JsonLines(), [])]
)
def test_a_stream_that_is_ended_sends_its_last_event_id(world, reading, wire, fields):
    """After that, it sends no heartbeat. JSON lines have neither event IDs nor retry times."""
    whole = reading(wire=wire, heartbeat_s=TIMEOUT_S * 2)

    world.stream.end()

    assert fields == re.findall(rb"^\w+", whole.get(timeout=TIMEOUT_S), re.MULTILINE)
    assert 1 == world.ended


def test_json_lines_that_are_ended_while_catching_up_have_no_hole(world):
    """The client receives the records that were already read for it, and none after them."""
    for n in range(RECORDS):
        world.log.append("t", b'{"n":%d,"x":"%b"}' % (n, b"x" * 1000))
    server_end, client_end = socket.socketpair()
    gevent.spawn(world.open(server_end, JsonLines(), since=0, heartbeat_s=TIMEOUT_S * 2).serve, chunked)
    wait_until(lambda: b'"n":1,' in client_end.recv(65_536, socket.MSG_PEEK))

    world.stream.end()
    world.log.append("t", b'{"n":%d}' % RECORDS)

    lines = [line for line in _received(client_end).splitlines() if line]
    assert 0 < len(lines) < RECORDS
    assert list(range(len(lines))) == [json.loads(line)["n"] for line in lines]
    assert 1 == world.ended


def test_a_deleted_topic_ends_the_stream_with_an_error_event(world, reading):
    """The event's data is the JSON body of the HTTP error, and its ID is the client's position."""
    whole = reading(metadata_refresh_s=0.02, heartbeat_s=TIMEOUT_S)

    world.log.delete("t")
    body = whole.get(timeout=TIMEOUT_S)

    [event] = without_positions(read_events(body))
    assert "error" == event.type
    assert TopicGone.status == json.loads(event.data)["status"]
    assert ("t",) == parse(event.id).topics
    assert 1 == world.ended


def test_an_error_in_json_lines_is_a_line(world, reading):
    whole = reading(wire=JsonLines(), metadata_refresh_s=0.02)

    world.log.delete("t")

    assert b'"status":410' in whole.get(timeout=TIMEOUT_S).splitlines()[-1]


@pytest.mark.parametrize("failure", [RuntimeError, gevent.Timeout])
@pytest.mark.parametrize("method", ["read", "begin"])
def test_an_unexpected_exception_ends_the_stream_with_an_error_event(
    world, reading, caplog, monkeypatch, method, failure
):
    """The event has no ID: the reader's position may be past records that it has not returned. The log has the text."""

    def fail(*_: object) -> bytes:
        raise failure("a bug")

    monkeypatch.setattr(Reader, "can_park", False)  # so that the stream calls read()
    monkeypatch.setattr(Reader, method, fail)
    body = reading().get(timeout=TIMEOUT_S)

    assert body.startswith(b":ok\n\nretry: ")
    [event] = without_positions(read_events(body))
    problem = json.loads(event.data)
    assert ("error", 500, "req-1") == (event.type, problem["status"], problem["request_id"])
    assert b"id:" not in body.partition(b"event: error")[2]
    assert b"a bug" not in body
    assert "A stream failed: request_id=req-1" in caplog.text
    assert 1 == world.ended


def test_an_exception_while_the_client_is_parked_ends_the_stream_with_an_error_event(world, connection, monkeypatch):
    def fail(*_: object) -> bytes:
        raise RuntimeError("a bug")

    server_end, client_end = connection
    monkeypatch.setattr(Reader, "park", fail)
    gevent.spawn(world.open(server_end).serve, chunked)

    [event] = without_positions(read_events(_received(client_end)))
    assert ("error", 500) == (event.type, json.loads(event.data)["status"])
    assert 1 == world.ended


def test_notices_that_an_idle_client_has_left(world, connection):
    """The stream ends at once, not at the next heartbeat."""
    server_end, client_end = connection
    reading = gevent.spawn(b"".join, world.open(server_end, heartbeat_s=TIMEOUT_S * 2))
    wait_until(lambda: "live" == world.stream.status()["state"])

    client_end.close()

    reading.get(timeout=TIMEOUT_S)
    assert 1 == world.ended


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack tcpi_last_ack_recv")
def test_ends_the_stream_of_a_client_that_vanished(world):
    """Its system acknowledges nothing, as after a power failure. The stream ends after write_timeout_s in each mode."""
    ended_at: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as clients:
        for heartbeat_s, serves_itself in product((0.2, TIMEOUT_S * 10), (True, False)):
            client = clients.enter_context(socket.create_connection(listener.getsockname()))
            server_end, _ = listener.accept()
            stream = world.open(server_end, heartbeat_s=heartbeat_s, write_timeout_s=2)
            reading = (stream.serve, chunked) if serves_itself else (send_all, server_end, stream)
            gevent.spawn(*reading)
            assert client.recv(65_536)
            vanish(client)
        vanished_at = time.monotonic()
        world.on_end = lambda: ended_at.append(time.monotonic())

        wait_until(lambda: 4 == len(ended_at))

    assert 1 <= min(ended_at) - vanished_at


def send_all(server_end: socket.socket, stream: StreamBody) -> None:
    for chunk in stream:
        server_end.sendall(chunk)


def vanish(client: socket.socket) -> None:
    """Drop all packets for this socket with a BPF filter, so that its system sends neither an ACK nor an RST."""
    drop = struct.pack("HBBI", BPF_RETURN, 0, 0, 0)
    program = ctypes.create_string_buffer(drop)
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def test_discards_input_from_a_client(world, connection):
    """The client keeps its stream, and does not keep the server busy."""
    server_end, client_end = connection
    chunks = iter(world.open(server_end, heartbeat_s=0.05))
    next(chunks)
    client_end.sendall(b"hello")

    assert [b":heartbeat\n\n"] * 2 == [next(chunks) for _ in range(2)]


def test_can_be_closed_twice_and_before_it_was_iterated(world):
    before = len(world.registry)
    begun, unbegun = world.open(), world.open()
    chunks = iter(begun)
    next(chunks)
    assert before + 2 == len(world.registry)

    for stream in (begun, unbegun, begun, unbegun):
        stream.close()

    assert (2, before) == (world.ended, len(world.registry))


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part.replace(b"secret", b"***"),
        lambda part: re.sub(b"secret", b"***", part),
        lambda part: b"".join([part]),
        lambda part: part[:],
        bytes,
    ],
)
@pytest.mark.parametrize("wire", [ServerSentEvents(), JsonLines()], ids=["SSE", "JSON lines"])
def test_recognizes_a_wrapper_that_changes_only_later_parts(world, wire, change):
    """It may hide secrets in the records, so the worker must not send the records without it."""
    stream = world.open(wire=wire)
    chunks = iter(stream)
    first = next(chunks)

    assert first == change(first)
    assert not stream.has_returned(change(first))
    assert stream.has_returned(first)


def test_a_stream_that_a_wrapper_has_closed_cannot_be_served(world, connection):
    """Nothing would close the client's socket afterwards."""
    stream = world.open(connection[0])
    chunks = iter(stream)
    first = next(chunks)
    before = stream.has_returned(first)
    stream.close()

    assert (True, False) == (before, stream.has_returned(first))


def test_a_discarded_stream_is_closed(world):
    """A stream that the server never received closes itself, without waiting for the garbage collector."""
    gc.collect()  # free the streams of other tests
    before = len(world.registry)
    world.open()
    del world.stream

    wait_until(lambda: (1, before) == (world.ended, len(world.registry)))  # another greenlet closes it
