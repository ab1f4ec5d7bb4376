"""No step of a feed or reader takes long: it takes a turn for every piece, and returns about one chunk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkasse.feed.core import feed as feed_core
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.reader import Reader
from kafkasse.route import StartAt
from tests.feed.world import World
from tests.support.parked_client import ParkedClient
from tests.support.turns import turns_given_by

CHUNK = 16_384
RECORDS = 2000
FROM_THE_START = '[{"topic":"t","partition":0,"offset":0},{"topic":"t","partition":1,"offset":%d}]'


class PiecesWorld(World):
    """A feed whose ring holds all records of a topic."""

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append("t", b'{"n":"%b"}' % (b"x" * 500))
        while self.tails and self.tails[0].partitions and self._is_behind():
            self.tails[0].turn(0)

    def _is_behind(self) -> bool:
        held = self.log.offset_ranges(self.tails[0].partitions)
        return any(state.offset != held[partition].end for partition, state in self.tails[0].partitions.items())


@pytest.fixture
def world() -> PiecesWorld:
    return PiecesWorld(max_chunk_bytes=CHUNK)


@pytest.fixture
def turns() -> Iterator[list[bool]]:
    """Return a list that has one entry for each turn."""
    entries: list[bool] = []
    with turns_given_by(entries.append):
        yield entries


def live(world: PiecesWorld) -> Reader:
    return world.open()


def joining(world: PiecesWorld) -> Reader:
    """Return a reader at a position that the feed never has."""
    world.log.append("t", b"{}", 1)
    return world.open(FROM_THE_START % 1)


def catching_up(world: PiecesWorld) -> Reader:
    return world.open(start=StartAt.EARLIEST)


@pytest.mark.parametrize("make", [live, joining, catching_up])
def test_a_read_returns_about_one_chunk(world, make):
    """A reader that is far behind receives many chunks, none of which is much larger than the others."""
    first = world.open()
    reader = make(world)
    world.append(RECORDS)
    if make is joining:
        assert ReaderState.JOINING is reader.state

    chunks = []
    while chunk := reader.read(0):
        chunks.append(len(chunk))

    assert RECORDS * 500 < sum(chunks)
    assert max(chunks) < CHUNK + 65_536 + 1000
    first.close()


def test_a_feed_takes_a_turn_for_each_piece(world, turns):
    """The turns are urgent, because all clients of the feed wait for the records."""
    reader = world.open()
    turns.clear()
    world.append(RECORDS)

    assert RECORDS // 64 <= len(turns)
    assert all(turns)
    reader.close()


def test_a_reader_takes_a_turn_for_each_piece(world, turns):
    """While it catches up, it encodes many pieces."""
    world.append(RECORDS)
    reader = catching_up(world)
    while reader.read(0):
        pass

    assert RECORDS // 64 <= len(turns)
    assert not any(turns)


def test_a_feed_takes_turns_while_it_sends_to_parked_clients(world, turns):
    """Ten thousand system calls would take too long for one turn."""
    clients = []
    for _ in range(1000):
        reader, client = world.open(), ParkedClient()
        reader.park(client)
        clients.append(client)
    world.append(1)

    assert 1000 // feed_core.PARKED_CLIENTS_PER_TURN <= len(turns)
    assert all(b'"offset":0' in client.received for client in clients)
