"""Compressed streams: every event can be read at once, and all clients of a feed share one compression."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.config import Config
from kafkasse.feed.feeds import Feeds
from kafkasse.log.memory import MemoryLog
from kafkasse.records.encoder import Encoder
from kafkasse.web import compression
from kafkasse.web.compression import IDENTITY, Coding, Gzip, Zstd, negotiate
from kafkasse_client.sse import Parser
from tests.support.waiting import wait_until
from tests.web.served import Peer

CLIENTS = 5
segments = st.lists(st.binary(min_size=1, max_size=2000), min_size=1, max_size=20)


def decompress(name: str, data: bytes) -> bytes:
    """Return what a client has read after it has received `data`, which may be the start of a body."""
    if name == "gzip":
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(data)
    if not data:
        return b""
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


@pytest.mark.parametrize("coding", [Gzip, Zstd])
@given(parts=segments)
def test_each_segment_can_be_read_at_once(coding, parts):
    state = coding()
    body, text = state.opening(), b""
    for part in parts:
        body, text = body + state.segment(part), text + part
        assert text == decompress(state.name, body)


@given(segments)
def test_gzip_ends_with_the_checksum_of_everything(parts):
    """Strict clients verify the checksum."""
    state = Gzip()
    body = state.opening()
    for part in parts:
        state.add(part)
        body += state.segment(part)

    assert b"".join(parts) == gzip.decompress(body + state.ending())


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", ""),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip", "gzip"),
        ("zstd;q=0.5, gzip;q=0.9", "gzip"),
        ("*", "zstd"),
        ("*;q=0", ""),
        ("zstd;q=0, *", "gzip"),
        ("identity, gzip;q=0.5", ""),
        ("br", ""),
    ],
)
def test_the_client_chooses(accept, expected):
    """Among equal qualities, the server's order decides."""
    assert expected == negotiate(accept, ("zstd", "gzip")).name
    assert IDENTITY is negotiate(accept, Config().web.compression)  # the server offers none by default


def numbers(peer: Peer) -> list[Any]:
    """Return the data of the records that a client has received so far."""
    body, _ = peer.body
    text = decompress(peer.coding.name, body) if peer.coding.name else body
    return [event.data for event in Parser().receive(text) if event.type == "message"]


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create("t")
        self.feeds = Feeds(self.log, Config().feed)
        self.encoder = Encoder("value")

    def connect(self, coding: Coding) -> Peer:
        peer = Peer(self.feeds, self.log, self.encoder, coding)
        gevent.spawn(peer.read_all)
        wait_until(lambda: bool(peer.received))
        return peer


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.feeds.close()


def test_clients_with_different_codings_receive_the_same_events(world):
    """This includes clients that join later, and events that a client reads from the ring or through its own cursor."""
    peers = [world.connect(coding()) for coding in (Gzip, Zstd, Coding)]
    world.log.append("t", b"1")
    wait_until(lambda: all(["1"] == numbers(peer) for peer in peers))
    peers += [world.connect(coding()) for coding in (Gzip, Zstd)]
    world.log.append("t", b"2")

    wait_until(lambda: [["1", "2"]] * 3 + [["2"]] * 2 == [numbers(peer) for peer in peers])


def test_a_stream_that_ends_is_complete(world):
    """The checksum covers what the feed sent while the client was parked."""
    peer = world.connect(Gzip())
    world.log.append("t", b"1")
    wait_until(lambda: ["1"] == numbers(peer))

    peer.stream.end()
    wait_until(lambda: peer.body[1])

    assert b"data: 1\n" in gzip.decompress(peer.body[0])


def test_all_clients_of_a_feed_share_one_compression(world, monkeypatch):
    peers = [world.connect(Zstd()) for _ in range(CLIENTS)]
    wait_until(lambda: CLIENTS == sum(len(feed.parked) for feed in world.feeds._tail.feeds.values()))  # type: ignore[union-attr]
    calls = []
    compress = compression.Zstd.segment
    monkeypatch.setattr(compression.Zstd, "segment", lambda self, data: calls.append(data) or compress(self, data))

    world.log.append("t", b"1")
    wait_until(lambda: all(["1"] == numbers(peer) for peer in peers))

    assert 1 == len([data for data in calls if b"data: 1\n" in data])
