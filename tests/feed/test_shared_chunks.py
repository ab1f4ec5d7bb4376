"""Chunks are read once for all clients, and the memory of those that are kept is limited."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace

import gevent
import pytest
from gevent.event import Event

from kafkasse.errors import OffsetGone, ServerFull, TooManySelections
from kafkasse.feed import shared_chunks
from kafkasse.feed.core.chunk import Chunk
from kafkasse.feed.shared_chunks import ENTRY_BYTES, ReadWaits, SharedChunks, SharedRead
from kafkasse.feed.slots import Clients
from tests.support.turns import turns_given_by
from tests.support.waiting import wait_until

FULL = Chunk((b"x" * 2_000,), "b10.x", is_full=True, is_up_to_date=False, elements=1, read_at=0)
LAST = replace(FULL, is_full=False, is_up_to_date=True)


class Selection:
    """A part of a key that takes up much memory."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.program = bytes(10_000)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and other.number == self.number

    def __repr__(self) -> str:
        return f"Selection({self.number})"


class Reads:
    """Counts the reads."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.count = 0

    def __call__(self, clients: Clients) -> Chunk:
        self.count += 1
        gevent.sleep(0)
        return self.chunk


@pytest.mark.parametrize(("chunk", "reads"), [(FULL, 1), (LAST, 3)])
def test_only_a_full_chunk_is_kept(chunk, reads):
    shared, read = SharedChunks(1), Reads(chunk)

    assert [chunk] * 3 == [shared.get("key", read, "") for _ in range(3)]
    assert reads == read.count


def test_equal_reads_at_the_same_time_share_one_read():
    shared, read = SharedChunks(1), Reads(LAST)

    tasks = [
        gevent.spawn(shared.get, key, read, "", must_wait)
        for key in "ab"
        for must_wait in (False, True)
        for _ in range(9)
    ]

    assert [LAST] * 36 == [task.get() for task in tasks]
    assert 4 == read.count


def test_an_error_is_raised_for_all_callers_and_not_kept():
    shared = SharedChunks(1)

    def fail(clients: Clients) -> Chunk:
        raise OffsetGone("Gone.")

    tasks = [gevent.spawn(shared.get, "key", fail, "") for _ in range(3)]
    for task in tasks:
        with pytest.raises(OffsetGone):
            task.get()
    assert FULL == shared.get("key", Reads(FULL), "")


@pytest.mark.parametrize("error", [TooManySelections, ServerFull])
def test_a_client_that_has_used_up_its_share_does_not_affect_the_others(error):
    """Those that share its read try again. Clients of one address do so together."""
    shared, reads = SharedChunks(1), []

    def read(clients: Clients) -> Chunk:
        reads.append(clients.addresses)
        gevent.sleep(0)
        if "greedy" in clients.addresses:
            raise error("Full.")
        return LAST

    tasks = [gevent.spawn(shared.get, "key", read, address) for address in ("greedy", "a", "a", "b")]
    gevent.joinall(tasks)

    assert [True, False, False, False] == [isinstance(task.exception, error) for task in tasks]
    assert [{"greedy", "a", "b"}, {"greedy"}, {"a"}, {"b"}] == reads
    with pytest.raises(error):
        shared.get("key", read, "greedy")
    assert 5 == len(reads)


def test_the_bytes_of_all_chunks_are_limited():
    """The oldest chunks are dropped. A chunk without records takes up memory, too."""
    shared, read = SharedChunks(1, max_bytes=4 * (ENTRY_BYTES + 2_005)), Reads(FULL)
    for key in range(10):
        shared.get(key, read, "")
        assert shared.bytes <= 4 * (ENTRY_BYTES + 2_005)
    assert 10 == read.count

    for key in range(9, -1, -1):
        shared.get(key, read, "")

    assert 10 + 6 == read.count
    empty = SharedChunks(1, max_bytes=10 * ENTRY_BYTES)
    for key in range(30):
        empty.get(key, Reads(replace(FULL, parts=(b"[]",))), "")
    assert len(empty._kept) < 10


def test_kept_chunks_count_their_memory():
    """Also the key with its long filter, and all that it refers to, which must not be kept."""
    shared, chunks = SharedChunks(1), [replace(FULL, parts=(bytes([at]) * 100,)) for at in range(200)]
    keys = (("t", Selection(at)) for at in range(200))
    shared.get("warm up", Reads(FULL), "")
    before = shared.bytes
    tracemalloc.start()
    try:
        for key, chunk in zip(keys, chunks, strict=True):
            shared.get(key, Reads(chunk), "")
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert used < shared.bytes - before


def test_a_chunk_is_not_kept_for_longer_than_its_age(monkeypatch):
    """Kafka may have removed its records. It is dropped by the next read of any chunk."""
    shared, read = SharedChunks(1), Reads(FULL)
    shared.get("key", read, "")
    monkeypatch.setattr(shared_chunks, "MAX_AGE_S", 0.0)

    shared.get("other", Reads(LAST), "")
    assert 0 == shared.bytes

    shared.get("key", read, "")
    assert (2, ENTRY_BYTES + 2_005) == (read.count, shared.bytes)


def test_clients_of_a_read_that_waits_park_and_are_answered_in_turn():
    """One read answers all of them, and an answer that fails does not affect the others."""
    shared, ended, turns = SharedChunks(1), Event(), list[bool]()
    reads, answers = list[SharedRead](), list[Chunk | None]()

    def read(waiting: SharedRead) -> Chunk:
        waiting.begin_to_wait()
        ended.wait()
        return LAST

    def park(number: int) -> None:
        with pytest.raises(ReadWaits) as waits:
            shared.get("key", read, "", must_wait=True, may_park=True)
        reads.append(waits.value.read)
        reads[0].park(lambda: answers.append(reads[0].chunk if number else [][0]))

    with turns_given_by(turns.append):
        gevent.joinall([gevent.spawn(park, number) for number in range(5)], raise_error=True)
        assert (1, [False] * 5, []) == (len(set(reads)), turns, answers)
        ended.set()
        wait_until(lambda: len(turns) == 10)

    assert [LAST] * 4 == answers
    assert [True] * 5 == turns[5:]
    reads[0].park(lambda: answers.append(None))
    assert [None] == answers[4:]
