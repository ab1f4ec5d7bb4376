"""What a client of a shared feed receives before the first record. test_joins.py tests joining and falling behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import FilterError
from kafkasse.feed import Feeds
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.reader import Reader, StopReason
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.memory_log import MemoryLog
from kafkasse.position import IdType, of_topics, parse
from kafkasse.route import Route
from kafkasse.sse import Event, Parser
from tests.support.waiting import TIMEOUT_S, wait_until


class World:
    """A log that holds one record, and feeds whose tails are driven by the test."""

    def __init__(self, **settings: Any) -> None:
        self.log = MemoryLog()
        self.log.create("t", 2)
        self.log.append("t", b'{"n":0}', timestamp=1000)
        self.tails: list[Tail] = []
        self.feeds = Feeds(self.log, Config(**settings).feed, self.tails.append)

    @property
    def feed(self) -> SharedFeed:
        """The only feed."""
        [tail] = self.tails
        [feed] = tail.feeds.values()
        return feed

    def open(self, kind: IdType, encoder: Encoder, last_id: str = "") -> Reader:
        position = parse(last_id) if last_id else of_topics(["t"])
        route = Route("topics", "/<topics>", None, id_type=kind)
        return self.feeds.open(route, position, self.log.describe(["t"]), encoder)

    def first_id(self, kind: IdType, encoder: Encoder) -> str:
        """Return the event ID that a client which starts at the end receives at once."""
        parser = Parser()
        assert [] == list(parser.receive(self.open(kind, encoder).begin()))
        return parser.last_event_id


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with closing(world.feeds):
        yield world


@pytest.mark.parametrize("kind", IdType)
def test_a_client_that_starts_at_the_end_resumes_there(world: World, kind: IdType) -> None:
    """The first event ID of a client that starts at the end excludes older records, also in IDs with timestamps."""
    first = world.first_id(kind, Encoder())

    assert b"" == world.open(kind, Encoder(), first).read(0)


def test_closes_the_oldest_tails_without_readers() -> None:
    """A client that opens and closes streams of many topics does not use up the cursors of the others."""
    world = World(max_cursors=8)
    for n in range(6):
        world.log.create(f"u{n}")
        route, topics = Route("topics", "/<topics>", None), world.log.describe([f"u{n}"])
        reader = world.feeds.open(route, of_topics(topics), topics, Encoder())
        if n:
            reader.close()

    assert [False, True, True, False, False, False] == [each.closed for each in world.tails]


def test_a_client_that_leaves_while_it_joins_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own cursor is being closed at that moment, which may take a while."""
    reader = world.open(IdType.OFFSET, Encoder(), '[{"topic":"t","partition":0,"offset":0},"t"]')
    assert b'"n":0' in reader.read(0)
    give_back = CatchUp.close

    def leave(own: CatchUp) -> None:
        give_back(own)
        reader.stop(StopReason.CLIENT_LEFT)

    monkeypatch.setattr(CatchUp, "close", leave)

    with gevent.Timeout(TIMEOUT_S):
        assert b"" == reader.read(TIMEOUT_S * 2)
    assert StopReason.CLIENT_LEFT is reader.stop_reason


class Client:
    """A client that accepts everything."""

    def __init__(self) -> None:
        self.parser = Parser()
        self.events: list[Event] = []

    def to_chunk(self, data: bytes) -> bytes:
        return data

    def try_send(self, chunk: bytes) -> bool:
        self.events += self.parser.receive(chunk)
        return True

    def wake(self) -> None:
        raise AssertionError("nothing has ended")


@pytest.mark.parametrize("kind", IdType)
@pytest.mark.parametrize("parks", [True, False])
def test_records_filtered_after_a_sent_record_move_the_event_id(kind: IdType, parks: bool) -> None:
    """This holds too if both records came in one batch."""
    world = World(heartbeat_s=0.001)
    reader = world.open(kind, Encoder(filterer=lambda message: message["n"] < 2))
    client = Client()
    client.try_send(reader.begin())
    if parks:
        reader.park(client)

    for n in (1, 2):
        world.log.append("t", b'{"n":%d}' % n, timestamp=2**40 + n)
    world.tails[0].turn(0)
    if parks:
        wait_until(lambda: world.tails[0].turn(0) >= 0 and world.feed.ids.render() == client.parser.last_event_id)
    else:
        client.try_send(reader.read(0) + reader.id_if_moved())

    assert [1] == [json.loads(event.data)["n"] for event in client.events]
    assert world.feed.ids.render() == client.parser.last_event_id
    assert b"" == world.open(kind, Encoder(), client.parser.last_event_id).read(0)


@pytest.mark.parametrize("kind", IdType)
def test_sends_the_records_before_one_at_which_the_filter_fails(world: World, kind: IdType) -> None:
    """All readers receive the records before it, then the error with an event ID at that record."""
    reader = world.open(kind, Encoder(filterer=lambda message: message["n"] >= 0))
    for at in range(10):
        world.log.append("t", b'{"n":%d}' % at if at != 7 else b"{}", timestamp=2**40 + at)
    with pytest.raises(FilterError) as failed:
        world.tails[0].turn(0)
    world.feed.fail(failed.value)

    events = list(Parser().receive(reader.read(0)))
    with pytest.raises(FilterError):
        reader.read(1)

    assert list(range(7)) == [json.loads(event.data)["n"] for event in events]
    assert events[-1].id == reader.position_id


@pytest.mark.parametrize("kind", [IdType.TIMESTAMP, IdType.BOTH])
def test_event_ids_with_timestamps_resume_at_a_copy_of_the_topic(world: World, kind: IdType) -> None:
    """A client that resumes there with its first event ID receives the records that are written from now on."""
    before = time.time_ns() // 1_000_000

    first = parse(world.first_id(kind, Encoder()))

    assert all(before <= (start.timestamp or 0) <= time.time_ns() // 1_000_000 for start in first.starts.values())


@pytest.mark.parametrize("kind", IdType)
def test_a_feed_that_is_opened_later_starts_at_the_end(world: World, kind: IdType) -> None:
    """The same holds for a client with another format, if the topic has moved since the tail was opened."""
    world.first_id(kind, Encoder())
    world.log.append("t", b'{"n":1}')
    world.tails[0].turn(0)

    first = world.first_id(kind, Encoder("envelope"))

    assert b"" == world.open(kind, Encoder("envelope"), first).read(0)
