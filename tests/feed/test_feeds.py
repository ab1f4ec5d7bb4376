"""Opening streams of shared feeds: event IDs, tails and filters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gevent
import pytest

from kafkasse.errors import FilterError
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.start import MAX_CLOCK_DIFFERENCE_MS
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import IdType, parse
from kafkasse_client.sse import Parser
from tests.feed.world import Client, World
from tests.support.parked_client import ParkedClient
from tests.support.sse import numbers_in, read_events
from tests.support.turns import turn
from tests.support.waiting import TIMEOUT_S, wait_until


class FeedsWorld(World):
    """A log with one record."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.write(0, timestamp=1000)

    def first_id(self, id_type: IdType, encoder: Encoder | None = None) -> str:
        """Return the event ID that a client which starts at the end receives at once."""
        client = Client(self.open(id_type=id_type, encoder=encoder))
        assert ["position"] == [event.type for event in client.events]
        return client.last_id


@pytest.fixture
def world() -> Iterator[FeedsWorld]:
    world = FeedsWorld()
    with closing(world.feeds):
        yield world


def test_the_offset_minus_one_is_the_end_of_a_live_feed(world):
    """A client with an event ID of KafkaSSE receives no record that the ring still holds."""
    live = world.open()
    world.put(1)

    opened = world.open(*({"topic": "t", "partition": partition, "offset": -1} for partition in (0, 1)))

    assert b'"n":1' in live.read(0)
    assert b"" == opened.read(0)
    assert {0: 2, 1: 0} == {start["partition"]: start["offset"] for start in json.loads(opened.position_id)}


@pytest.mark.parametrize("id_type", IdType)
def test_a_client_that_starts_at_the_end_resumes_there(world, id_type):
    """A client that resumes with its first event ID receives no older record, whether the ID has offsets or timestamps."""
    first = world.first_id(id_type)

    assert b"" == world.open(first, id_type=id_type).read(0)


def test_a_client_that_leaves_while_it_joins_is_not_waited_for(world, monkeypatch):
    """The client leaves while its reader closes the cursor. read() returns at once."""
    reader = world.open({"topic": "t", "partition": 0, "offset": 0}, "t")
    assert b'"n":0' in reader.read(0)
    close = CatchUp.close

    def close_and_leave(catch_up: CatchUp) -> None:
        close(catch_up)
        reader.stop(StopReason.CLIENT_LEFT)

    monkeypatch.setattr(CatchUp, "close", close_and_leave)

    with gevent.Timeout(TIMEOUT_S):
        assert b"" == reader.read(TIMEOUT_S * 2)
    assert StopReason.CLIENT_LEFT is reader.stop_reason


@pytest.mark.parametrize("id_type", IdType)
@pytest.mark.parametrize("parks", [True, False])
def test_records_filtered_after_a_sent_record_move_the_event_id(id_type, parks):
    """A sent record and a filtered record in one batch: the client receives the event ID after the second one."""
    world = FeedsWorld(encoder=Encoder(filterer=lambda message: message["n"] < 2), heartbeat_s=0.001)
    reader = world.open(id_type=id_type)
    client = ParkedClient()
    client.try_send(reader.begin())
    if parks:
        reader.park(client)

    for n in (1, 2):
        world.write(n, timestamp=2**40 + n)
    world.turn()
    if parks:
        wait_until(lambda: turn(world.tails[0]) >= 0 and world.feed.ids.render().encode() in client.received)
    else:
        client.try_send(reader.read(0) + reader.id_if_moved())

    assert [1] == numbers_in(client.received)
    last_id = read_events(client.received)[-1].id
    assert world.feed.ids.render() == last_id
    assert b"" == world.open(last_id, id_type=id_type, encoder=Encoder()).read(0)


@pytest.mark.parametrize("id_type", IdType)
def test_sends_the_records_before_one_at_which_the_filter_fails(world, id_type):
    """All readers receive the records before the failing one. The event ID of the error points to the failing record."""
    reader = world.open(id_type=id_type, encoder=Encoder(filterer=lambda message: message["n"] >= 0))
    for at in range(10):
        world.log.append("t", b'{"n":%d}' % at if at != 7 else b"{}", timestamp=2**40 + at)
    world.turn()

    events = list(Parser().receive(reader.read(0)))
    with pytest.raises(FilterError):
        reader.read(1)

    assert list(range(7)) == [json.loads(event.data)["n"] for event in events]
    assert events[-1].id == reader.position_id


def test_the_first_event_id_can_resume_at_a_copy_of_the_topic(world):
    """With `both`, the first event ID contains a time before the stream was opened, so the client misses no record."""
    first = parse(world.first_id(IdType.BOTH))

    latest_ms = time.time_ns() // 1_000_000 - MAX_CLOCK_DIFFERENCE_MS
    assert all(latest_ms - TIMEOUT_S * 1000 < (start.timestamp or 0) <= latest_ms for start in first.starts.values())


@pytest.mark.parametrize(("id_type", "timestamp"), [(IdType.BOTH, 5000), (IdType.TIMESTAMP, 5001)])
def test_a_feed_that_is_opened_later_knows_the_timestamp_of_the_last_record(world, id_type, timestamp):
    """A client of this feed can resume at a copy of the topic without lost or repeated records."""
    world.first_id(id_type)
    world.put(1, timestamp=5000)

    first = world.first_id(id_type, Encoder("envelope"))

    assert timestamp == json.loads(first)[0]["timestamp"]


@pytest.mark.parametrize("id_type", IdType)
def test_a_feed_that_is_opened_later_starts_at_the_end(world, id_type):
    """A feed in another format that joins a running tail starts at the tail's current position, not at its first one."""
    world.first_id(id_type)
    world.put(1)

    first = world.first_id(id_type, Encoder("envelope"))

    assert b"" == world.open(first, id_type=id_type, encoder=Encoder("envelope")).read(0)
