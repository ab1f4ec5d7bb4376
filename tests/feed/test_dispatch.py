"""Keyed dispatch: each client receives exactly the records that its selector selects, in any interleaving of steps.

The model is the one of test_joins.py, with a key for each record and a selector for each client.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkasse.config import Config
from kafkasse.feed import Feeds, Reader
from kafkasse.feed.ring import Segment
from kafkasse.feed.tail import Tail
from kafkasse.filter import Dimension, Dimensions, Selector
from kafkasse.frame import Encoder, JsonLines, ServerSentEvents
from kafkasse.frame.record_view import RecordView
from kafkasse.log import Partition
from kafkasse.memory_log import MemoryLog
from kafkasse.position import IdType, of_topics, parse
from kafkasse.route import Route
from kafkasse.sse import Parser
from tests.feed import test_joins as joins
from tests.feed.interleavings import MAX_PARTITIONS, RING, STEP, SWITCHES, starts, step
from tests.support.examples import examples
from tests.support.parked_client import ParkedClient
from tests.support.turns import turn

KEYS = ("a", "b", "c", "d", None)
# Different parts of a record. All have the same value, so that one selector per client is enough.
DIMENSIONS = (
    Dimensions((Dimension("key"),)),
    Dimensions((Dimension("header", "h"), Dimension("field", "customer.id"))),
)
SELECTED = ("a", "b", "c", "ab", "bcd", "e")  # the keys that a client selects; no record has the key "e"


class Client(joins.Client):
    """A client with a selector, which remembers all event IDs that it has received."""

    keys: str
    selector: Selector
    history: list[tuple[str, dict[int, list[int]], dict[int, list[tuple[int, int]]]]]

    def expected(self, partition: int, end: float = math.inf) -> list[int]:
        return [
            offset
            for offset in super().expected(partition, end)
            if (self.world.keys[partition, offset] or "no key") in self.keys
        ]

    def check(self, position_id: str) -> None:
        super().check(position_id)
        if position_id == self.last_id:
            self.history.append((position_id, copy.deepcopy(self.offsets), copy.deepcopy(self.gaps)))


class World(joins.World):
    """A world whose records have keys, and whose clients have selectors."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        keeps = self.keeps if self.filtered or self.hooked else None
        wire = JsonLines() if self.is_json_lines else ServerSentEvents()
        self.encoders = [
            Encoder(wire=wire, filterer=keeps, sparse_ids=self.sparse_ids, dimensions=each) for each in DIMENSIONS
        ]
        self.keys: dict[tuple[int, int], str | None] = {}

    def append(self, number: int) -> None:
        partition, key = number % self.partitions, KEYS[number // MAX_PARTITIONS % len(KEYS)]
        self.append_record(partition, key)

    def append_record(self, partition: int, key: str | None) -> None:
        data = None if key is None else key.encode()
        customer = b"{}" if data is None else b'{"id":"%b"}' % data
        value = b'{"n":%d,"customer":%b}' % (self.count, customer)
        offset = self.log.append("t", value, partition, data, headers=[("h", data)])
        is_visible = not self.filtered or self.count % 2 == 0
        self.records.setdefault(partition, []).append((offset, self.clock.now_ms, is_visible))
        self.keys[partition, offset] = key
        self.clock.now_ms += 1
        self.count += 1

    def connect(self, number: int) -> None:
        client = Client(self, self.encoders[number % len(DIMENSIONS)])
        client.history = []
        client.keys = SELECTED[number // len(DIMENSIONS) % len(SELECTED)]
        client.selector = Selector.of(*([each] * (1 + number % len(DIMENSIONS)) for each in client.keys))
        self.open(client)
        client.start = starts(client.reader.position_id)
        self.clients.append(client)
        with self.busy(client):
            client.receive(client.reader.begin())

    def return_to(self, client: Client, number: int) -> None:
        """Let a client reconnect with any event ID that it has received, as if it had not received the events after it."""
        if self.is_json_lines or not client.history:
            return
        with self.busy(client):
            client.reader.close()
            index = number * len(client.history) // 10
            client.last_id, client.offsets, client.gaps = copy.deepcopy(client.history[index])
            del client.history[index:]
            client.disconnect()
            self.open(client)
            client.receive(client.reader.begin())

    def open(self, client: Client) -> None:
        position = joins.parse(client.last_id) if client.last_id else joins.of_topics(["t"])
        topics = self.log.describe(["t"])
        client.reader = self.feeds.open(self.route, position, topics, client.encoder, selector=client.selector)


KEYED_STEP = st.one_of(
    STEP,
    step("append", MAX_PARTITIONS * len(KEYS) - 1),
    step("append", MAX_PARTITIONS * len(KEYS) - 1),
    step("connect", len(DIMENSIONS) * len(SELECTED) - 1),
    step("connect", len(DIMENSIONS) * len(SELECTED) - 1),
    step("return_to", 9),
)
STEPS = st.lists(KEYED_STEP, min_size=25, max_size=100)


@pytest.fixture(autouse=True, scope="module")
def _client_steps() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "CLIENT_STEPS", (*joins.CLIENT_STEPS, "return_to"))
        yield


@pytest.mark.parametrize("id_type", IdType)
@given(steps=STEPS, max_ring_records=RING, filtered=st.booleans(), hooked=SWITCHES, switched=SWITCHES)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_client_receives_exactly_its_own_records_in_any_interleaving(
    id_type, steps, max_ring_records, filtered, hooked, switched
):
    """Random selectors, parks, slow sockets, evictions, lost records, and reconnects with any earlier event ID."""
    world = World(max_ring_records, filtered, id_type=id_type, hooked=hooked, switched=switched)
    world.play(steps)

    world.check()


@given(steps=STEPS, max_ring_records=RING, filtered=st.booleans(), hooked=SWITCHES, switched=SWITCHES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_json_lines_contain_exactly_the_clients_own_records(steps, max_ring_records, filtered, hooked, switched):
    """JSON lines have no event IDs, but the reader's position is checked in the same way."""
    world = World(max_ring_records, filtered, is_json_lines=True, hooked=hooked, switched=switched)
    world.play(steps)

    world.check()


@pytest.mark.parametrize("id_type", IdType)
@given(steps=STEPS, max_ring_records=RING)
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_event_of_a_personal_stream_has_an_id(id_type, steps, max_ring_records):
    """With id_frequency=run, the last frame of a run may belong to another client, so each frame has an event ID."""
    world = World(max_ring_records, sparse_ids=True, id_type=id_type)
    world.play(steps)

    world.check()


# The cost.


class CountingClient(ParkedClient):
    """Counts the chunks that it receives."""

    chunks = 0

    def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
        self.chunks += 1
        return super().try_send(chunk)


class Crowd:
    """Parked clients of one feed, each with its own key, and a topic whose tail the test turns."""

    def __init__(self, count: int, partitions: int = 1) -> None:
        self.log = MemoryLog()
        self.log.create("t", partitions)
        self.tails: list[Tail] = []
        # No heartbeat is due, however long it takes to open the readers.
        self.feeds = Feeds(self.log, Config(heartbeat_s=300).feed, self.tails.append)
        self.encoder = Encoder(dimensions=Dimensions((Dimension("key"),)))
        self.clients = [CountingClient() for _ in range(count)]
        for number, client in enumerate(self.clients):
            reader = self.open(Selector.of([str(number)]))
            reader.begin()
            reader.park(client)
        (self.feed,) = self.tails[0].feeds.values()

    def open(self, selector: Selector, last_id: str = "") -> Reader:
        position = parse(last_id) if last_id else of_topics(["t"])
        route = Route("topics", "/{topics}", None)
        return self.feeds.open(route, position, self.log.describe(["t"]), self.encoder, selector=selector)

    def append(self, *keys: int, partition: int = 0) -> None:
        for key in keys:
            self.log.append("t", b'{"n":1}', partition, b"%d" % key)
        turn(self.tails[0])


def test_a_record_is_encoded_once_and_sent_only_to_its_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 2,000 subscribers, each record costs one call of Dimensions.values(), and no work for the other clients."""
    crowd = Crowd(2_000)
    looked_up: list[int] = []
    values = Dimensions.values

    def counted(self: Dimensions, view: RecordView) -> Any:
        looked_up.append(view.offset)
        return values(self, view)

    monkeypatch.setattr(Dimensions, "values", counted)
    crowd.append(7, 1_999, 7, 5_000)

    assert [0, 1, 2, 3] == looked_up
    assert {7: 1, 1_999: 1} == {number: each.chunks for number, each in enumerate(crowd.clients) if each.chunks}
    assert 2 == crowd.clients[7].received.count(b"event: message")


def test_a_client_receives_the_records_of_several_values_in_their_order() -> None:
    """The records of one flush are collected by their dispatch values, and sorted again for each group of clients."""
    crowd, client = Crowd(1), ParkedClient()
    reader = crowd.open(Selector.of(["1"], ["2"]))
    reader.begin()
    reader.park(client)

    crowd.append(2, 1, 0, 2)

    offsets = [json.loads(event.data)["_kafka"]["offset"] for event in Parser().receive(client.received)]
    assert [0, 1, 3] == offsets


def test_a_client_that_left_does_not_receive_records() -> None:
    """Another client, whose selector contains the same dispatch value, still receives them."""
    crowd, client = Crowd(1), ParkedClient()
    reader = crowd.open(Selector.of(["0"], ["1"]))
    reader.park(client)
    reader.close()

    crowd.append(0)

    assert b"" == client.received
    assert 1 == crowd.clients[0].chunks
    assert 1 == len(crowd.feed._subscribers.groups_of(("0",)))


def test_a_flush_takes_the_same_number_of_steps_for_any_number_of_subscribers() -> None:
    """The work per record does not depend on the number of clients that do not receive it."""
    crowds = [Crowd(10), Crowd(1_000)]
    few, many = ([count_steps(partial(crowd.append, 1, 2, 3)) for _ in range(3)][-1] for crowd in crowds)

    assert many < 1.1 * few


def test_idle_clients_of_a_busy_feed_receive_heartbeats_with_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of other clients do not postpone the heartbeat. It moves the client's event ID past them."""
    crowd = Crowd(2)
    crowd.append(1, 1)
    crowd.feed._heartbeat_at = 0.0
    crowd.append(1)
    crowd.append(1)

    idle, busy = crowd.clients
    assert b"event: position\ndata: {}\nid: %s\n\n" % id_at(3) == idle.received
    assert 4 == busy.received.count(b"event: message")
    assert 1 == busy.received.count(b"event: position")


def test_a_returning_client_reads_only_its_own_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the ring finds them, so that a client does not read through the records of all others."""
    crowd = Crowd(1)
    for number in range(500):
        crowd.append(number % 100)
    read: list[int] = []
    frames = Segment.frames

    def counted(self: Segment, selector: Selector | None) -> Any:
        read.append(self.offsets[0])
        return frames(self, selector)

    monkeypatch.setattr(Segment, "frames", counted)
    reader = crowd.open(Selector.of(["42"]), id_at(0).decode())
    data = reader.read(0)

    assert [42, 142, 242, 342, 442] == read
    assert 5 == data.count(b"event: message")
    assert reader.can_park


def test_a_client_that_reads_the_ring_in_chunks_is_exactly_at_its_last_event_id() -> None:
    """Its position includes the records of others before that event, so that a gap cannot start before the event ID."""
    crowd = Crowd(1, partitions=2)
    reader = crowd.open(Selector.of(["7"]), crowd.feed.ids.render())
    for _ in range(3):
        crowd.append(5, partition=1)
        crowd.append(7, partition=0)
    reader._cursors = reader._cursors._replace(max_chunk_bytes=1)
    parser = Parser()

    for _ in range(2):
        list(parser.receive(reader.read(0)))
        assert parser.last_event_id == reader.position_id


def test_a_client_that_falls_behind_receives_each_of_its_records_once() -> None:
    """The client's own cursor skips the records that the client has received, and older records of other clients."""
    crowd = Crowd(1)
    reader = crowd.open(Selector.of(["7"]))
    crowd.append(7, 5)
    first = reader.read(0)
    crowd.feed.ring._limits.max_records = 1
    for key in (5, 5, 7):
        crowd.append(key)

    rest = b"".join(reader.read(0) for _ in range(10))  # some of them only change the state of the reader

    assert 1 == reader.stats.falls_behind
    assert reader.can_park
    assert (1, 1) == (first.count(b"event: message"), rest.count(b"event: message"))


def test_a_live_client_receives_the_gap_of_a_truncated_log() -> None:
    """All clients receive a gap, whatever they select; afterwards, each receives its own new records."""
    crowd = Crowd(2)
    crowd.log.elect_leader("t")
    crowd.append(0, 1, 1)
    crowd.log.truncate("t", 1)
    for _ in range(3):
        crowd.append(0)

    assert [b"event: gap" in each.received for each in crowd.clients] == [True, True]
    assert 4 == crowd.clients[0].received.count(b"event: message")
    assert 2 == crowd.clients[1].received.count(b"event: message")


def test_a_heartbeat_does_not_precede_a_gap_with_its_position() -> None:
    """If a heartbeat is due, clients receive it at the position before the gap, so that none can resume after the gap."""
    crowd = Crowd(1)
    crowd.log.elect_leader("t")
    crowd.append(5, 5)
    crowd.log.truncate("t", 1)
    for _ in range(2):
        crowd.feed._heartbeat_at = 0.0
        crowd.append()

    before, _, after = crowd.clients[0].received.partition(b"event: gap")
    assert b'"offset":2' in before
    assert b'"offset":1' not in before
    assert b'"offset":1' in after


def test_the_position_after_a_truncation_has_the_new_leader_epoch() -> None:
    """Also if the new records end where the lost ones did. With the old epoch, a client that returns gets the gap again."""
    crowd = Crowd(1)
    crowd.log.elect_leader("t")
    reader = crowd.open(Selector.of(["7"]))
    crowd.append(5, 5)
    reader.read(0)
    crowd.log.truncate("t", 1)
    for key in ((7,), (), ()):
        crowd.append(*key)

    received = reader.read(0)

    assert (1, 1) == (received.count(b"event: gap"), received.count(b"event: message"))
    assert 1 == parse(reader.position_id).starts[Partition("t", 0)].leader_epoch


def test_a_parked_client_receives_a_gap_at_once() -> None:
    """The gap does not wait for the next record."""
    crowd = Crowd(1)
    crowd.append(0)
    for _ in range(2):
        crowd.log.append("t", b'{"n":1}')
    crowd.log.drop_before("t", 3)
    for _ in range(3):
        crowd.append()

    assert b"event: gap" in crowd.clients[0].received


def id_at(offset: int) -> bytes:
    return b'[{"topic":"t","partition":0,"offset":%d,"topic_id":"memory1"}]' % offset


def count_steps(function: Callable[[], object]) -> int:
    """Return the number of steps of Python's interpreter in a function, including those of comprehensions."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(None)
    return steps
