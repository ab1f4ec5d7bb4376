"""Hooks that wait for I/O: other feeds are not delayed, the backlog is bounded, and no record is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gevent
from gevent.event import Event

from kafkasse.feed import backlog
from kafkasse.records.encoder import Encoder
from tests.feed.world import World
from tests.support.parked_client import ParkedClient
from tests.support.turns import numbers
from tests.support.waiting import wait_until


class HookedWorld(World):
    """A feed whose filter waits until the test calls answer.set(), and a feed without hooks."""

    def __init__(self) -> None:
        super().__init__(Encoder(filterer=self.wait), {"t": 1})
        self.answer = Event()
        self.slow, self.fast = self.open(), self.open(encoder=Encoder())
        [self.tail] = self.tails
        [self.backlog] = self.tail.backlogs.values()

    def wait(self, message: Mapping[str, Any]) -> bool:
        self.answer.wait()
        return True

    def write_and_fetch(self, n: int) -> None:
        self.write(n)
        self.tail.turn(0)
        gevent.sleep(0)


def test_a_hook_that_waits_delays_only_its_own_feed():
    """The feed receives its records as soon as the hook returns, in their order."""
    world = HookedWorld()
    for n in range(3):
        world.write_and_fetch(n)
    assert ([0, 1, 2], []) == (numbers(world.fast), numbers(world.slow))

    world.answer.set()
    world.backlog.join()

    assert [0, 1, 2] == numbers(world.slow)


def test_the_tail_calls_no_hook_of_a_feed_that_was_removed_meanwhile(monkeypatch):
    """While the tail appends a batch to one feed, the next one may be dropped. Its hook would delay all feeds."""
    world = HookedWorld()
    appended = world.fast._feed.append
    other = world.open(encoder=Encoder(filterer=lambda message: calls.append(message)))
    calls: list[Any] = []
    monkeypatch.setattr(world.fast._feed, "append", lambda batch: (appended(batch), world.tail.remove(other._feed)))

    world.write_and_fetch(0)

    assert [] == calls
    assert [0] == numbers(world.fast)


def test_a_full_backlog_is_dropped_and_its_readers_catch_up(monkeypatch):
    """The readers receive each record exactly once, through their own cursors, and then join the feed again."""
    monkeypatch.setattr(backlog, "MAX_BYTES", 5 * backlog.RECORD_BYTES)
    world = HookedWorld()
    for n in range(20):
        world.write_and_fetch(n)
        assert world.backlog.bytes <= backlog.MAX_BYTES
    world.answer.set()
    world.backlog.join()
    received = numbers(world.slow)
    wait_until(lambda: received.extend(numbers(world.slow)) or len(received) >= 20)
    world.write_and_fetch(20)
    world.backlog.join()
    wait_until(lambda: received.extend(numbers(world.slow)) or len(received) >= 21)

    assert list(range(21)) == received
    wait_until(lambda: world.slow.read(0) or world.slow.can_park)


def test_a_backlog_counts_all_bytes_of_a_record():
    """A producer could otherwise fill the memory with large headers while a hook waits."""
    world = HookedWorld()
    world.write_and_fetch(0)  # the hook waits with this record
    world.log.append("t", b"v" * 100, key=b"k" * 20, headers=[("h" * 3000, b"x" * 40_000), ("empty", None)])

    world.tail.turn(0)

    assert backlog.RECORD_BYTES + 43_125 == world.backlog.bytes


def test_the_totals_of_a_parked_client_include_what_it_received_before_its_backlog_was_dropped(monkeypatch):
    """Otherwise, the log line of the end of its stream would contain too few records, or a negative number."""
    world, clients = HookedWorld(), [ParkedClient(), ParkedClient()]
    world.answer.set()
    readers = [world.slow, world.open()]
    for n, (reader, client) in enumerate(zip(readers, clients, strict=True)):
        reader.read(0)
        reader.park(client)
        world.write_and_fetch(n)
        world.backlog.join()
    monkeypatch.setattr(backlog, "MAX_BYTES", 0)

    world.write_and_fetch(2)
    world.backlog.join()

    assert [(2, len(each.received)) for each in clients] == [each.totals() for each in readers]
