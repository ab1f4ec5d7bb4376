"""Parked clients of one feed: clients that accept everything, clients that do not, and clients that leave."""

from __future__ import annotations

import gc
import logging
import socket
import weakref
from collections.abc import Iterator
from unittest import mock

import gevent
import pytest
from gevent import socket as gevent_socket
from gevent.event import Event

from kafkasse.config import Config
from kafkasse.event_loop import take_turn
from kafkasse.feed import Feeds
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.memory_log import MemoryLog
from kafkasse.position import of_topics
from kafkasse.route import Route
from kafkasse.sse import Parser
from kafkasse.web.registry import StreamRegistry
from kafkasse.web.stream import Stream
from tests.support.sse import without_positions
from tests.support.turns import TurnClock
from tests.support.waiting import wait_until
from tests.web.served import chunked, unchunked

TIMEOUT_S = 120  # only a hang takes so long
PEERS = 12
VALUE = b'{"pad":"' + b"x" * 4096 + b'"}'


class Peer:
    """A client with a small socket buffer, which reads only when the test does."""

    def __init__(self, feeds: Feeds, log: MemoryLog, encoder: Encoder) -> None:
        server_end, self.socket = gevent_socket.socketpair()
        self.left = left = Event()
        for end in (server_end, self.socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        reader = feeds.open(Route("topics", "/{topics}", None), of_topics(["t"]), log.describe(["t"]), encoder)
        settings = Config(write_timeout_s=20, heartbeat_s=60).web
        logger = logging.getLogger()
        registry = StreamRegistry()
        self.stream = Stream(reader, settings, registry, server_end, lambda stream, end: left.set(), logger)
        self.greenlet = gevent.spawn(self.stream.serve, chunked)
        self.received = b""

    def has_ended(self) -> bool:
        """Return whether the stream ends."""
        return self.left.wait(TIMEOUT_S)

    def read(self) -> bytes:
        """Read what has arrived, or wait for something."""
        self.socket.settimeout(TIMEOUT_S)
        data = self.socket.recv(65536)
        self.received += data
        return data

    def offsets(self, count: int) -> list[int]:
        """Read until `count` records have arrived, then end the stream, and read the rest. Return the offsets."""
        while len(self._offsets()) < count:
            self.read()
        self.stream.end()
        while self.read():
            pass
        return self._offsets()

    def _offsets(self) -> list[int]:
        events = without_positions(Parser().receive(unchunked(self.received)[0]))
        return [int(event.data.split('"offset":')[1].split(",")[0]) for event in events]


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    made.create("t")
    return made


@pytest.fixture
def tails() -> list[Tail]:
    return []


@pytest.fixture
def peers(log: MemoryLog, tails: list[Tail]) -> Iterator[list[Peer]]:
    feeds = Feeds(log, Config().feed, tails.append)
    encoder = Encoder()
    opened = [Peer(feeds, log, encoder) for _ in range(PEERS)]
    gevent.joinall([peer.greenlet for peer in opened], timeout=TIMEOUT_S)  # it ends when the stream is parked
    yield opened
    for peer in opened:
        peer.stream.end()
        peer.socket.close()
    gevent.joinall([peer.greenlet for peer in opened], timeout=10)


def test_clients_whose_sockets_are_full_miss_nothing(log: MemoryLog, tails: list[Tail], peers: list[Peer]) -> None:
    """Frames that the feed flushes before a full client's greenlet runs come from the ring: none is lost or duplicated."""
    for count in range(40):
        log.append("t", VALUE)
        tails[0].turn(0)
        if count % 10 == 9:
            gevent.sleep(0)

    assert [list(range(40))] * PEERS == [peer.offsets(40) for peer in peers]


def test_a_stalled_client_does_not_delay_the_others(log: MemoryLog, tails: list[Tail], peers: list[Peer]) -> None:
    """The tail never waits for a socket."""
    stalled, *others = peers

    for _ in range(30):
        log.append("t", VALUE)
        tails[0].turn(0)
        gevent.sleep(0)
        for peer in others:
            peer.read()

    assert [list(range(30))] * len(others) == [peer.offsets(30) for peer in others]
    assert list(range(30)) == stalled.offsets(30)


def test_a_parked_client_needs_no_greenlet(peers: list[Peer]) -> None:
    """The greenlet that opened the stream ends. Only the event loop watches the socket."""
    assert all(peer.greenlet.ready() for peer in peers)


def test_a_new_stream_sends_its_first_bytes_before_others_take_their_turns(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, its request takes memory. A thousand clients may connect at once."""
    clock = TurnClock(monkeypatch)
    feeds, encoder = Feeds(log, Config().feed, lambda tail: None), Encoder()
    peers = [Peer(feeds, log, encoder)]  # creates the feed
    finished: list[int] = []

    def compute(number: int) -> None:
        take_turn()
        clock.compute()
        finished.append(number)

    others = [gevent.spawn(compute, number) for number in range(20)]
    peers.append(Peer(feeds, log, encoder))
    peers[1].socket.recv(1)

    assert len(finished) < len(others)
    gevent.joinall(others)
    for peer in peers:
        peer.stream.close()


@pytest.mark.parametrize("words", [b"", b"hello", b"x" * 4096 * 10])
def test_notices_at_once_that_a_parked_client_has_left(peers: list[Peer], words: bytes) -> None:
    """The stream ends before the next heartbeat, whatever the client sent before. The other streams stay open."""
    leaving, *others = peers
    leaving.socket.sendall(words)
    gevent.sleep(0.05)

    leaving.socket.close()

    assert leaving.has_ended()
    assert not any(peer.left.is_set() for peer in others)


def test_a_stream_that_is_closed_before_its_greenlet_runs_stays_closed(peers: list[Peer]) -> None:
    """A worker that exits closes all streams, even those that have just been woken; a hook may let other greenlets run."""
    stream = peers[0].stream
    on_close = stream._on_close
    stream._on_close = lambda stream, end: (gevent.sleep(0.01), on_close(stream, end))
    failures: list[object] = []

    with mock.patch.object(gevent.get_hub(), "handle_error", lambda *error: failures.append(error)):
        stream.end()
        stream.close()

    assert [] == failures
    assert peers[0].has_ended()


def test_a_stream_can_be_closed_while_its_client_accepts_nothing(
    log: MemoryLog, tails: list[Tail], peers: list[Peer]
) -> None:
    """A worker that exits closes such streams. libev aborts the process if it still watches a descriptor that is closed."""
    for _ in range(40):
        log.append("t", VALUE)
        tails[0].turn(0)
    sockets = [peer.stream._socket for peer in peers]
    wait_until(lambda: all(each._watcher is not None for each in sockets))  # for the client to accept bytes

    for peer in peers:
        peer.stream.close()

    wait_until(lambda: {-1} == {each.socket.fileno() for each in sockets})
    assert all(peer.has_ended() for peer in peers)


def test_a_closed_stream_is_freed_at_once(peers: list[Peer]) -> None:
    """No reference cycle waits for the garbage collector."""
    leaving = peers.pop()
    stream = weakref.ref(leaving.stream)
    gc.collect()
    gc.disable()
    try:
        leaving.socket.close()
        assert leaving.has_ended()
        del leaving
        wait_until(lambda: stream() is None)
    finally:
        gc.enable()
