"""Parked clients of one feed: clients that accept everything, clients that do not, and clients that leave."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from unittest import mock

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.feed.feeds import Feeds
from kafkasse.feed.tail import Tail
from kafkasse.log.memory import MemoryLog
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import Encoder
from tests.support.turns import TurnClock
from tests.support.waiting import wait_until
from tests.web.served import TIMEOUT_S, Peer

PEERS = 12
VALUE = b'{"pad":"' + b"x" * 4096 + b'"}'


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
    opened = [Peer(feeds, log, encoder, buffer_bytes=8192) for _ in range(PEERS)]
    gevent.joinall([peer.greenlet for peer in opened], timeout=TIMEOUT_S)
    assert all(peer.greenlet.ready() for peer in opened)  # a parked client needs no greenlet
    yield opened
    for peer in opened:
        peer.stream.end()
        peer.socket.close()
    gevent.joinall([peer.greenlet for peer in opened], timeout=10)


def test_a_new_stream_sends_its_first_bytes_before_others_take_their_turns(log, monkeypatch):
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
def test_notices_at_once_that_a_parked_client_has_left(peers, words):
    """The stream ends before the next heartbeat, whatever the client sent before. The other streams stay open."""
    leaving, *others = peers
    left = leaving.stream._input_left
    leaving.socket.sendall(words)
    wait_until(lambda: len(words) == left - leaving.stream._input_left)

    leaving.socket.close()

    assert leaving.has_ended()
    assert not any(peer.left.is_set() for peer in others)


def test_a_stream_that_is_closed_before_its_greenlet_runs_stays_closed(peers):
    """A worker that exits closes all streams, even those that have just been woken; a hook may let other greenlets run."""
    stream = peers[0].stream
    on_close = stream.on_close
    stream.on_close = lambda stream, end: (gevent.idle(), on_close(stream, end))
    failures: list[object] = []

    with mock.patch.object(gevent.get_hub(), "handle_error", lambda *error: failures.append(error)):
        stream.end()
        stream.close()

    assert [] == failures
    assert peers[0].has_ended()


def test_a_stream_can_be_closed_while_its_client_accepts_nothing(log, tails, peers):
    """A worker that exits closes such streams. libev aborts the process if it still watches a descriptor that is closed."""
    for _ in range(40):
        log.append("t", VALUE)
        tails[0].turn(0)
    sockets = [peer.stream._socket for peer in peers]
    wait_until(lambda: all(sock._watcher is not None for sock in sockets))  # for the client to accept bytes

    for peer in peers:
        peer.stream.close()

    wait_until(lambda: {-1} == {sock.socket.fileno() for sock in sockets})
    assert all(peer.has_ended() for peer in peers)


def test_a_closed_stream_is_freed_at_once(peers):
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
