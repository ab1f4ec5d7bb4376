"""Keyed dispatch: each client receives exactly the records that its selector selects, in any interleaving of steps.

The model is the one of test_joins.py, with a key for each record and a selector for each client.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkasse.filter import Dimension, Dimensions, Selector
from kafkasse.frame import Encoder, JsonLines, ServerSentEvents
from kafkasse.position import IdType
from tests.feed import test_joins as joins
from tests.feed.test_joins import MAX_PARTITIONS, RING, STEP, SWITCHES, starts, step
from tests.support.examples import examples

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
        """Let a client return with any event ID that it has received, as if it had not received the events after it."""
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
    """Random selectors, parks, slow sockets, evictions, lost records, and returns with any earlier event ID."""
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
