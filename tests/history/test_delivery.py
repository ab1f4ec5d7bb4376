"""Nothing lost, nothing twice: clients of every kind at real servers over a real Kafka, as the checker sees it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.feed import Feeds
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.memory_log import MemoryLog
from kafkasse.position import IdType, of_topics
from kafkasse.route import Route, StartAt
from tests.history import inside
from tests.history.checker import Attempt, History, Written, complaints, last_id
from tests.history.scenario import Kind, World, kinds
from tests.history.wire import blocks
from tests.support.kafka import Cluster
from tests.support.server import Server

SEED = int(os.environ.get("KAFKASSE_TEST_SEED") or secrets.randbits(32))
STEPS = 150
WORLDS = 40
RETENTION_SEEDS = range(60)  # each known to be well; see test_a_reader_that_joins_is_told_of_what_it_had
WITH_EVERY_CUT = ("from the first", "filtered", "both", "timestamps", "compact", "sparse", "table")


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> Iterator[World]:
    print(f"to run this again: KAFKASSE_TEST_SEED={SEED}")
    with closing(World(cluster, tmp_path, SEED)) as world:
        yield world


def test_every_kind_of_client_is_sent_exactly_its_records(world: World) -> None:
    """All formats, ids, starts and wires, cut at random bytes, back at any worker, amid transactions: no complaint."""
    world.fill_table()
    world.write(20, pause_s=0)

    outcome = world.play([""], batches=30, copies=2, workers=2)[""]

    assert [] == outcome.complaints


def test_cut_at_any_byte_and_resumed_from_any_id(world: World) -> None:
    """Of a whole stream, each number of bytes that a client may have had, and the rest that it is sent for its id."""
    world.fill_table(turns=2)
    world.write(1, pause_s=0)
    world.end()
    with world.servers(["", ""]) as (first, second):
        every = kinds(world.topic, world.table)
        streams = [replace(each, is_cut=False) for each in every if each.name in WITH_EVERY_CUT]
        played = gevent.joinall([gevent.spawn(every_cut, world, each, first, second) for each in streams])
        histories = [history for each in played for history in each.get()]

    assert [] == world.complaints(histories, world.read())


def every_cut(world: World, kind: Kind, first: Server, second: Server) -> list[History]:
    """A history for each byte at which one stream of `first` may be cut; `second` resumes from each of its ids."""
    whole = world.client([first], kind)
    body = whole.attempts[-1].body
    had = {None: 0, **{block.id: block.end for block in blocks(body) if block.id}}
    resumed = {
        each: gevent.spawn(world.client, [second], kind, known_id=each, had=body[:end]) for each, end in had.items()
    }
    rests = {each: history.get().attempts for each, history in resumed.items()}
    cuts = range(len(body) + 1)
    cut = {at: [Attempt(None, 200, body[:at]), *rests[last_id(body[:at])]] for at in cuts}
    return [replace(whole, client=f"{kind.name}, cut at {at}", attempts=cut[at]) for at in cuts]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_any_order_of_steps_inside(filtered: bool, sparse: bool) -> None:
    """Appends, fetches, opens, reads, heartbeats, cuts at any byte, in any order: no complaint."""
    for seed in range(SEED, SEED + WORLDS):
        world = inside.World(seed, filtered, sparse, drops=False)
        assert [] == world.play(STEPS), f"to run this again: KAFKASSE_TEST_SEED={seed}"


def test_retention_under_readers() -> None:
    """Records that are removed before a reader has had them are declared, with exactly their bounds."""
    for seed in RETENTION_SEEDS:
        assert [] == inside.World(seed, filtered=False, sparse=False).play(STEPS), f"seed {seed}"


def test_a_late_return_cut_before_its_gap() -> None:
    """Who comes back too late, and is cut before the gap has come, is told of it when it comes again."""
    for seed in RETENTION_SEEDS:
        assert [] == inside.World(seed, filtered=False, sparse=False, late_returns=True).play(STEPS), f"seed {seed}"


def test_a_reader_that_joins_is_told_of_what_it_had() -> None:
    """A reader that had the first of what retention then removed is told that the others alone are lost."""
    assert [] == inside.World(188, filtered=False, sparse=False).play(STEPS)


def test_times_follow_the_records_that_a_client_had() -> None:
    """A record that comes late, with a time after the last one's, is not passed over by who goes on by times."""
    log = MemoryLog()
    log.create(inside.TOPIC, 2)
    written = [Written(inside.TOPIC, *each, None, b'{"n":1}') for each in ((0, 0, 1000), (1, 0, 1001), (0, 1, 1500))]
    tails: list[Tail] = []
    feeds = Feeds(log, Config(metadata_refresh_s=300).feed, tails.append)
    route = Route("times", "/times", None, start=StartAt.EARLIEST, id_type=IdType.TIMESTAMP)
    log.append(inside.TOPIC, b'{"n":1}', 0, timestamp=1000)
    reader = feeds.open(route, of_topics([inside.TOPIC]), log.describe([inside.TOPIC]), Encoder())
    body = reader.begin() + b"".join(reader.read(0) for _ in range(3))
    log.append(inside.TOPIC, b'{"n":1}', 1, timestamp=1001)
    tails[0].turn(0)
    body += b"".join(reader.read(0) for _ in range(3))
    history = History("c", [inside.TOPIC], [Attempt(None, 200, body)], id_kind="timestamp", start="earliest")

    assert [] == complaints([history], written)
