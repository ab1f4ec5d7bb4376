"""The life cycle of a reader: the order of its states, and closing a reader in each state."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import Mock

import gevent
import pytest
from gevent.event import Event

from kafkasse.errors import KafkasseError, KafkaUnavailable
from kafkasse.feed import reader as readers
from kafkasse.feed import slots
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.reader import Reader
from kafkasse.feed.slots import MAX_START_S
from kafkasse.log import Partition
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import MAX_PIECE_RECORDS, Encoder
from kafkasse.records.filter import Filter, compile_expression
from kafkasse.records.position import Place, parse
from kafkasse.route import StartAt
from kafkasse_client.sse import Parser
from tests.feed.world import ImpatientWorld, World
from tests.support.parked_client import ParkedClient
from tests.support.turns import turn
from tests.support.waiting import TIMEOUT_S, wait_until

CATCHING_UP, JOINING, LIVE = ReaderState.CATCHING_UP, ReaderState.JOINING, ReaderState.LIVE
PARKED, BEHIND, CLOSED = ReaderState.PARKED, ReaderState.BEHIND, ReaderState.CLOSED


class ReaderWorld(World):
    """A topic with three records in partition 0, and a feed whose ring holds two."""

    def __init__(self, **settings: float) -> None:
        super().__init__(max_ring_records=2, metadata_refresh_s=300, **settings)
        self.append(3)

    def append(self, count: int, partition: int = 0) -> None:
        """Append records, and let the tail read each of them."""
        for _ in range(count):
            self.write(1, partition=partition)
            self.turn()

    @property
    def readers(self) -> int:
        return sum(feed.readers for tail in self.tails for feed in tail.feeds.values())

    @property
    def parked(self) -> int:
        return sum(len(feed.parked) for tail in self.tails for feed in tail.feeds.values())


@pytest.fixture
def world() -> Iterator[ReaderWorld]:
    world = ReaderWorld()
    yield world
    world.feeds.close()


def offsets(frames: bytes) -> list[int]:
    return [json.loads(event.data)["_kafka"]["offset"] for event in Parser().receive(frames)]


def behind(world: ReaderWorld) -> Reader:
    return world.open(start=StartAt.EARLIEST)


def catching_up(world: ReaderWorld) -> Reader:
    reader = behind(world)
    assert [0, 1, 2] == offsets(reader.read(0))
    return reader


def joining(world: ReaderWorld) -> Reader:
    """Return a reader inside the ring, at a position at which the feed has never been."""
    first = world.open()
    position_id = first.position_id
    world.append(1, partition=0)
    world.append(1, partition=1)
    first.close()
    return world.open(position_id.replace('"partition":1,"offset":0', '"partition":1,"offset":1'))


def live(world: ReaderWorld) -> Reader:
    return world.open()


def parked(world: ReaderWorld) -> Reader:
    reader = world.open()
    reader.park(ParkedClient())
    return reader


STATES = {CATCHING_UP: catching_up, JOINING: joining, LIVE: live, PARKED: parked, BEHIND: behind}


@pytest.mark.parametrize(("state", "make"), STATES.items(), ids=[state.value for state in STATES])
def test_closing_a_reader_releases_everything_in_each_state(world, state, make):
    reader = make(world)
    assert state is reader.state
    assert 1 == world.readers

    reader.close()
    reader.close()

    assert CLOSED is reader.state
    assert (0, 0) == (world.readers, world.parked)
    assert len(world.tails) == world.log.open_cursors  # the cursors of the tails stay open
    assert b"" == reader.read(TIMEOUT_S)


def test_a_live_reader_sleeps_while_it_waits(world, monkeypatch):
    """A client that cannot be parked costs no CPU time on an idle topic."""
    reader, steps = live(world), []
    monkeypatch.setattr(readers, "take_turn", lambda: (steps.append(1), take_turn()))

    assert b"" == reader.read(0.05)

    assert len(steps) < 5


def test_a_parked_client_wakes_up_when_its_feed_ends(world):
    """A client that stayed parked would receive neither records nor heartbeats."""
    reader, woken = live(world), Event()
    client = ParkedClient()
    client.wake = woken.set
    reader.park(client)

    world.tails[0].close()

    assert woken.is_set()


def test_a_parked_client_receives_a_new_position_once():
    """After filtered records, one heartbeat carries the new event ID; the heartbeats after it are comments."""
    world = ReaderWorld(heartbeat_s=0.001)
    world.encoder = Encoder(filterer=lambda message: False)
    reader, client = world.open(), ParkedClient()
    reader.park(client)
    world.append(1)

    wait_until(lambda: turn(world.tails[0]) >= 0 and client.received.endswith(b":heartbeat\n\n" * 3))

    assert 1 == client.received.count(b"id: ")
    world.feeds.close()


@pytest.mark.parametrize("make", [catching_up, live])
@pytest.mark.parametrize("reason", [StopReason.ENDED, StopReason.CLIENT_LEFT])
def test_stopping_a_reader_ends_a_read_that_waits(world, make, reason):
    reader = make(world)
    while reader.read(0):
        pass
    waiting = gevent.spawn(reader.read, TIMEOUT_S * 2)
    gevent.sleep(0)

    reader.stop(reason)

    assert b"" == waiting.get(timeout=TIMEOUT_S)
    assert reason is reader.stop_reason


def test_a_reader_waits_for_a_slot_with_its_stream_open(waiting):
    """While all slots are in use, read() returns nothing. The reader catches up as soon as another reader is closed."""
    assert b"" == waiting.reader.read(0.01)
    assert BEHIND is waiting.reader.state

    waiting.holder.close()

    assert [0, 1, 2] == offsets(waiting.reader.read(TIMEOUT_S))


@pytest.mark.parametrize("reason", [StopReason.ENDED, StopReason.CLIENT_LEFT])
def test_stopping_a_reader_ends_its_wait_for_a_slot(waiting, reason):
    reading = gevent.spawn(waiting.reader.read, TIMEOUT_S * 2)
    gevent.sleep(0)

    waiting.reader.stop(reason)

    assert b"" == reading.get(timeout=TIMEOUT_S)
    waiting.reader.close()
    waiting.holder.close()
    assert [0, 1, 2] == offsets(waiting.world.open(start=StartAt.EARLIEST).read(TIMEOUT_S))


def test_a_reader_whose_client_does_not_read_loses_its_slot(waiting, monkeypatch):
    """Its greenlet is blocked while it sends, so it does not call read(). Later, it continues where it was."""
    monkeypatch.setattr(waiting.world.feeds._slots, "quantum_s", 0.0)
    waiting.world.append(3)
    assert [3, 4, 5] == offsets(waiting.holder.read(TIMEOUT_S))

    frames = waiting.reader.read(MAX_START_S / 2)

    assert [0, 1, 2, 3, 4, 5] == offsets(frames)
    assert BEHIND is waiting.holder.state
    waiting.reader.close()
    waiting.world.append(1)
    assert [6] == offsets(waiting.holder.read(TIMEOUT_S))


def test_a_reader_whose_client_does_not_read_loses_the_slot_that_it_has_waited_for(waiting, monkeypatch):
    """Its greenlet is blocked while it sends a heartbeat, so it does not use the slot."""
    monkeypatch.setattr(slots, "MAX_START_S", 0.0)
    assert b"" == waiting.reader.read(0)
    waiting.holder.close()
    other = behind(waiting.world)

    assert [0, 1, 2] == offsets(other.read(TIMEOUT_S))

    other.close()
    assert [0, 1, 2] == offsets(waiting.reader.read(TIMEOUT_S))


class Waiting(NamedTuple):
    """A world with one slot, the reader that has it, and a reader that waits for it."""

    world: ReaderWorld
    holder: Reader
    reader: Reader


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    world = ReaderWorld(max_catch_ups=1)
    holder = catching_up(world)
    yield Waiting(world, holder, behind(world))
    world.feeds.close()


def test_a_reader_that_is_closed_while_it_opens_a_cursor_releases_the_cursor(world):
    """A worker that exits closes the streams that wait for Kafka, too."""
    reader = behind(world)
    cursors, is_free = reader._cursors, Event()
    reader._cursors = cursors._replace(open=lambda *at: is_free.wait() and cursors.open(*at))
    reading = gevent.spawn(reader.read, TIMEOUT_S)
    gevent.sleep(0)
    assert BEHIND is reader.state

    reader.close()
    is_free.set()

    assert b"" == reading.get(timeout=TIMEOUT_S)
    assert CLOSED is reader.state
    assert len(world.tails) == world.log.open_cursors


def count_readers() -> int:
    return sum(type(instance) is Reader for instance in gc.get_objects())


@pytest.mark.parametrize("state", [BEHIND, CATCHING_UP, LIVE, PARKED])
def test_a_closed_reader_is_freed_at_once(state):
    """No reference cycle waits for the garbage collector, and the worker exempts what survives a collection."""
    world = ReaderWorld(max_catch_ups=2)
    holders = [catching_up(world) for _ in range(2 if state is BEHIND else 1)]
    reader = behind(world) if state in (BEHIND, CATCHING_UP) else world.open()
    if state in (BEHIND, CATCHING_UP):
        reader.read(0)
    elif state is PARKED:
        reader.park(ParkedClient())
    assert state is reader.state
    gc.collect()
    gc.disable()
    try:
        before = count_readers()
        reader.close()
        del reader
        assert before - 1 == count_readers()
    finally:
        gc.enable()
    for holder in holders:
        holder.close()
    world.feeds.close()


def test_a_cursor_is_closed_before_another_reader_gets_its_slot(waiting, monkeypatch):
    """The slot may be revoked while the cursor opens. Closing the cursor lets other greenlets run."""
    world, holder, reader = waiting
    holder.close()
    open_cursor, granted = reader._cursors.open, []
    other = behind(world)

    def open_revoked(*at: Any) -> Any:
        catch_up = open_cursor(*at)
        reader.core_state.slot.revoked = True
        gevent.spawn(other.read, TIMEOUT_S)
        wait_until(lambda: hasattr(other.core_state, "slot"))  # it waits for a slot
        close = catch_up.close
        monkeypatch.setattr(catch_up, "close", lambda: (granted.append(other.core_state.slot.granted), close()))
        return catch_up

    reader._cursors = reader._cursors._replace(open=open_revoked)
    reader.read(0)

    assert [False] == granted
    assert other.core_state.slot.granted
    other.close()


def test_a_reader_that_is_closed_while_it_joins_stays_closed(world):
    """Closing the cursor lets other greenlets run, and one of them may close the stream."""
    reader = catching_up(world)
    cursor = reader.core_state.catch_up._cursor
    close_cursor = cursor.close
    cursor.close = lambda: (close_cursor(), reader.close())

    assert b"" == reader.read(0)

    assert CLOSED is reader.state
    assert (0, len(world.tails)) == (world.readers, world.log.open_cursors)


# What the client was sent.


def test_a_joining_reader_receives_the_first_record_of_an_added_partition():
    """The client has received a record of partition 1 that this worker has not read yet, so it is not live."""
    world = ImpatientWorld()
    start_id = world.open().position_id
    world.write(1, partition=1)
    reader = world.open(start_id.replace('"partition":1,"offset":0', '"partition":1,"offset":1'))
    world.log.lose_leader("t", 1)
    world.log.create("t", 3)
    world.turn()
    world.put(1, partition=2)

    assert JOINING is reader.state
    assert [0] == offsets(reader.read(0))
    assert JOINING is reader.state


def test_counts_each_record_once_in_every_state(world):
    """A client that catches up, joins, is parked and continues was sent every record once."""
    reader, client = catching_up(world), ParkedClient()
    while reader.state is not LIVE:
        reader.read(0)
    world.append(2)
    reader.read(0)
    reader.park(client)
    world.append(3)

    parked = reader.totals()
    reader.unpark()

    assert 3 + 2 + 3 == parked[0] == reader.totals()[0] == reader.stats.events
    assert len(client.received) == parked[1] == reader.totals()[1] == reader.stats.bytes
    assert (1, 1, 0) == (reader.stats.catch_ups, reader.stats.joins, reader.stats.falls_behind)


def test_counts_the_records_that_a_reader_receives_while_it_joins(world):
    reader = joining(world)

    received = offsets(reader.read(0))

    assert 0 < len(received) == reader.stats.events


def test_measures_the_encoding_of_each_record_once(world):
    reader = catching_up(world)
    for _ in range(MAX_PIECE_RECORDS + 1):
        world.log.append("t", b'{"n":1}')
    world.append(1)

    assert 3 + MAX_PIECE_RECORDS + 2 == reader.stats.records
    assert 0 < reader.stats.encode_s < TIMEOUT_S


def test_the_states_of_closed_readers_are_not_counted(world):
    first, second = catching_up(world), live(world)

    assert {CATCHING_UP: 1, LIVE: 1} == +first.stats.readers
    assert [first] == list(first.stats.catching_up)
    first.close()
    second.close()
    assert not +first.stats.readers
    assert not first.stats.catching_up


def test_a_live_reader_that_the_ring_leaves_behind_is_counted(world):
    """The lag is the number of records that the client lacks."""
    reader = live(world)
    world.append(5)
    assert 5 == reader.lag()

    reader.read(0)

    assert (1, 5) == (reader.stats.falls_behind, reader.lag() + reader.events)


# Rare orders of events, in which a reader must not lose or repeat anything.


def test_a_reader_that_cannot_open_a_cursor_releases_its_slot(monkeypatch):
    """Otherwise no other reader could catch up after Kafka was unavailable."""
    monkeypatch.setattr(readers, "UNAVAILABLE_BACKOFF_S", 0.0)
    world = ReaderWorld(max_catch_ups=1)
    unlucky = behind(world)
    unlucky._cursors = unlucky._cursors._replace(open=Mock(side_effect=KafkaUnavailable("down")))

    assert b"" == unlucky.read(0)

    assert [0, 1, 2] == offsets(behind(world).read(TIMEOUT_S))
    world.feeds.close()


def test_a_position_with_other_pending_partitions_is_not_that_of_the_feed(world):
    """A partition without a leader starts at a timestamp, which is a part of the position."""
    world.open()
    feed = world.feed
    same, later = feed.ids.copy_at(feed.ids.places()), dict.fromkeys(feed.ids.offsets, Place(9))

    assert feed.is_at(same)
    assert not feed.is_at(same.copy_at(later))
    assert not feed.is_at(same.copy_at(same.places() | {Partition("t", 2): Place(timestamp=5)}))


def test_a_heartbeat_contains_the_position_of_the_frames_that_were_sent(world):
    """Another greenlet may have appended frames that parked clients have not received. Their ID would skip these frames."""
    reader, client = world.open(), ParkedClient()
    reader.park(client)
    feed = world.feed
    feed._change_flushed(id_sent=False)
    world.log.append("t", b'{"n":1}')
    batch = world.log.read(Partition("t", 0), 3)
    assert batch is not None
    feed.append(batch)

    list(feed.send_heartbeat(0))

    [event] = Parser().receive(client.received)
    assert 3 == parse(event.id).starts[Partition("t", 0)].offset


def test_a_parked_client_does_not_move_back_before_filtered_records(world):
    """Its next event ID is that with which it was parked, or a later one, although no frame was sent for these records."""
    world.encoder = Encoder(filter=Filter.of(expressions=[compile_expression("value.n > 5")]))
    reader = world.open()
    reader.begin()
    world.put(1)
    [sent] = Parser().receive(reader.id_if_moved())
    reader.park(ParkedClient())
    world.log.append("t", b'{"n":9}')
    batch = world.log.read(Partition("t", 0), 4)
    assert batch is not None
    world.feed.append(batch)  # and not flushed

    reader.unpark()

    assert sent.id == reader.position_id


@pytest.mark.parametrize("error", [None, KafkasseError("it failed")])
def test_a_reader_of_a_feed_that_has_ended_cannot_be_parked(world, error):
    """A parked client of such a feed would receive nothing, and its stream would never end."""
    reader = live(world)
    assert reader.can_park

    world.feed.fail(error)

    assert not reader.can_park
