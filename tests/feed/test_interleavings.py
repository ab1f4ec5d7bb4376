"""Each client receives each of its records exactly once, in any interleaving of steps.

Some clients receive all records, and others those that their selectors select. The test calls turn() of the tail, so that
hypothesis can put any step between two other steps.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkasse.config import Config
from kafkasse.feed import Feeds, Reader, StopReason, catch_up, feeds, reader, shared_feed
from kafkasse.feed.tail import Tail
from kafkasse.filter import Dimension, Dimensions, Selector
from kafkasse.frame import Encoder, JsonLines, ServerSentEvents, encoder
from kafkasse.log import Partition
from kafkasse.position import IdType, PartitionStart, of_topics, parse
from kafkasse.route import Route
from tests.history.simulation import BusyLog
from tests.support.examples import examples
from tests.support.turns import turn

PARTITIONS = 3
MAX_PARTITIONS = 6
KEYS = ("a", "b", "c", "d", None)
# Different parts of a record, which have the same value. None: the client receives all records.
DIMENSIONS = (
    None,
    Dimensions((Dimension("key"),)),
    Dimensions((Dimension("header", "h"), Dimension("field", "customer.id"))),
)
SELECTED = ("a", "b", "c", "ab", "bcd", "e")  # the keys that a client selects; no record has the key "e"
EVENT = re.compile(rb"(?::.*\n)?(?:event: (\w+)\n)?(?:data: (.*)\n)?(?:id: (.*)\n)?\n")
FIRST = PartitionStart(offset=0)
Counts = dict[int, int]  # by partition
# Small limits, so that a few records make many pieces.
LIMITS = (
    (encoder, "MAX_PIECE_RECORDS"),
    (reader, "MAX_PIECE_SEGMENTS"),
    (shared_feed, "PARKED_CLIENTS_PER_TURN"),
)
STEPS_OF_THE_WORLD = ("append", "append_marker", "connect", "turn", "heartbeat", "grow", "drop")
STEPS_OF_A_CLIENT = (
    *("read", "park", "wake", "resume", "end", "revoke"),
    *("cut", "cut_while_sending", "return_to", "send_moved_id", "limit_socket"),
)
OFTEN = ("append", "append", "connect", "connect", "read", "park")


class Clock:
    """The time in milliseconds since the epoch. append() advances it, so that no two records have the same timestamp."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000


@dataclass(eq=False)
class Client:
    """A client and its socket, which may accept only part of a chunk. It remembers the offsets and gaps that it received."""

    world: World
    encoder: Encoder
    keys: str | None  # None: it receives all records
    selector: Selector | None
    reader: Reader = field(init=False)
    start: dict[int, PartitionStart] = field(default_factory=dict)
    offsets: dict[int, list[int]] = field(default_factory=dict)
    gaps: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    last_id: str = ""
    position: dict[int, PartitionStart] = field(default_factory=dict)  # of the event ID that was checked last
    history: list[tuple[str, Counts, Counts]] = field(
        default_factory=list
    )  # IDs, and how much was received before each
    is_busy: bool = False  # its greenlet is inside a call
    is_parked: bool = False
    is_woken: bool = False
    unsent: bytes = b""
    room: int | None = None  # how many bytes of the next chunk the socket accepts; None: all
    _received: bytes = b""

    coding = ""

    def to_chunk(self, data: bytes) -> bytes:
        return data

    def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
        room, self.room = self.room, None
        self.unsent = b"" if room is None else chunk[room:]
        self.receive(chunk[:room])
        if self.unsent:
            self.wake()
        return not self.unsent

    def wake(self) -> None:
        self.is_woken = True

    def receive(self, data: bytes) -> None:
        end = b"\n" if self.world.is_json_lines else b"\n\n"
        *frames, self._received = (self._received + data).split(end)
        for frame in frames:
            if not self.world.is_json_lines:
                self._receive_event(*EVENT.fullmatch(frame + end).groups())
            elif frame:
                line = json.loads(frame)
                self._receive_record(line) if "_kafka" in line else self._receive_gap(line)

    def _receive_event(self, event: bytes | None, data: bytes | None, position_id: bytes | None) -> None:
        if event == b"message":
            self._receive_record(json.loads(data))
        elif event == b"gap":
            self._receive_gap(json.loads(data))
        if position_id:
            self.last_id = position_id.decode()
            self.check(self.last_id)

    def _receive_record(self, message: Mapping[str, object]) -> None:
        kafka = message["_kafka"]
        self.offsets.setdefault(kafka["partition"], []).append(kafka["offset"])

    def _receive_gap(self, gap: Mapping[str, object]) -> None:
        self.gaps.setdefault(gap["partition"], []).append((gap["from"], gap["to"]))

    def disconnect(self) -> None:
        """Discard the bytes that have not arrived, and the records after the last event ID, which are sent again."""
        self.is_parked, self.unsent, self._received = False, b"", b""
        self.position = starts(self.last_id)
        if self.world.sparse_ids and self.keys is None:  # otherwise each record has an event ID
            for partition, offsets in self.offsets.items():
                end = self.world.offset(partition, self.position.get(partition, FIRST))
                self.offsets[partition] = [offset for offset in offsets if offset < end]

    def check(self, position_id: str) -> None:
        """Check that an event ID is exactly the position after what the client has received."""
        self.position = starts(position_id)
        for partition in range(MAX_PARTITIONS):
            end = self.world.offset(partition, self.position[partition]) if partition in self.position else 0
            assert self.expected(partition, end) == self.offsets.get(partition, [])
        if position_id == self.last_id:
            self.history.append((position_id, counts(self.offsets), counts(self.gaps)))

    def expected(self, partition: int, end: float = math.inf) -> list[int]:
        """Return the offsets of the records that the client must have received before `end`."""
        start = self.world.offset(partition, self.start.get(partition, FIRST))
        gaps = self.gaps.get(partition, [])
        return [
            offset
            for offset, _, is_visible, key in self.world.records.get(partition, [])
            if is_visible
            and start <= offset < end
            and (self.keys is None or (key or "no key") in self.keys)
            and not any(first <= offset < last for first, last in gaps)
        ]


def counts(lists: Mapping[int, list[Any]]) -> Counts:
    return {partition: len(each) for partition, each in lists.items()}


def first(lists: Mapping[int, list[Any]], counts: Counts) -> dict[int, list[Any]]:
    return {partition: lists[partition][:count] for partition, count in counts.items()}


def starts(position_id: str) -> dict[int, PartitionStart]:
    return {partition.partition: start for partition, start in parse(position_id).starts.items()}


class World:
    """A log, a tail whose turn() the test calls, and clients.

    Args:
        max_ring_records: the size of the ring.
        filtered: the filter rejects every other record.
        sparse_ids: only the last frame of a run has an event ID. Each record for a selector still has one, because the last
            frame of a run may belong to another client.
        id_type: what the event IDs contain.
        is_json_lines: the clients read JSON lines. They have no event IDs, so no client reconnects.
        hooked: steps that happen inside calls of the filter, one in each call, because a filter may let other greenlets run.
        switched: steps that happen between two pieces of a long computation, one at each call of take_turn().
    """

    def __init__(
        self,
        max_ring_records: int,
        filtered: bool = False,
        sparse_ids: bool = False,
        id_type: IdType = IdType.OFFSET,
        is_json_lines: bool = False,
        hooked: list[tuple[str, int]] | None = None,
        switched: list[tuple[str, int]] | None = None,
    ) -> None:
        self.clock = Clock()
        self.log = BusyLog()
        self.log.create("t", PARTITIONS)
        self.partitions = PARTITIONS
        # By partition: offset, timestamp, whether the filter accepts it, and key.
        self.records: dict[int, list[tuple[int, int, bool, str | None]]] = {}
        self.filtered = filtered
        self.sparse_ids = sparse_ids
        self.id_type = id_type
        self.is_json_lines = is_json_lines
        self.hooked = list(hooked or ())
        self.is_in_hook = False
        self.switched = list(switched or ())
        self.is_switched = False
        self.is_turning = False
        self.tails: list[Tail] = []
        config = Config(
            max_ring_records=max_ring_records, idle_feed_timeout_s=3600, max_chunk_bytes=1024, max_catch_ups=2
        )
        # Refresh the metadata whenever a tail or a cursor checks it.
        self.feeds = Feeds(self.log, replace(config.feed, metadata_refresh_s=0.0), self.tails.append)
        self.route = Route("topics", "/{topics}", None, id_type=id_type)
        keeps = self.keeps if filtered or self.hooked else None
        wire = JsonLines() if is_json_lines else ServerSentEvents()
        self.encoders = [
            Encoder(wire=wire, filterer=keeps, sparse_ids=sparse_ids, dimensions=each) for each in DIMENSIONS
        ]
        self.clients: list[Client] = []
        self.log.while_closing = self.run_others
        self.count = 0

    def take_turn(self, urgent: bool = False) -> None:
        """Replaces event_loop.take_turn()."""
        if self.switched and not self.is_switched:
            self.is_switched = True
            self.perform(*self.switched.pop(0))
            self.is_switched = False

    def keeps(self, message: Mapping[str, int]) -> bool:
        if self.hooked and not self.is_in_hook:
            self.is_in_hook = True
            self.perform(*self.hooked.pop(0))
            self.is_in_hook = False
        return not self.filtered or message["n"] % 2 == 0

    # Steps.

    def append(self, number: int) -> None:
        partition, key = number % self.partitions, KEYS[number // MAX_PARTITIONS % len(KEYS)]
        data = None if key is None else key.encode()
        value = b'{"n":%d,"customer":{"id":%b}}' % (self.count, b'"%b"' % data if data else b"null")
        offset = self.log.append("t", value, partition, data, headers=[("h", data)])
        is_visible = not self.filtered or self.count % 2 == 0
        self.records.setdefault(partition, []).append((offset, self.clock.now_ms, is_visible, key))
        self.clock.now_ms += 1
        self.count += 1

    def append_marker(self, partition: int) -> None:
        self.log.append_marker("t", partition % self.partitions)

    def grow(self, number: int) -> None:
        """Add a partition to the topic."""
        self.partitions = min(self.partitions + 1, MAX_PARTITIONS)
        self.log.create("t", self.partitions)

    def drop(self, number: int) -> None:
        """Let retention remove records. Not for IDs with timestamps only, which do not show that records are missing."""
        if self.id_type is not IdType.TIMESTAMP:
            partition = Partition("t", number % PARTITIONS)
            held = self.log.offset_ranges([partition])[partition]
            self.log.drop_before("t", held.start + (held.end - held.start) * number // 99, partition.partition)

    def turn(self, number: int = 0) -> None:
        if self.is_turning:
            return  # a tail has one greenlet
        self.is_turning = True
        for tail in self.tails:
            turn(tail)
            tail._check_topics()
            for backlog in list(tail.backlogs.values()):
                backlog.join()
        self.is_turning = False

    def heartbeat(self, number: int) -> None:
        if self.is_turning:
            return
        self.turn()
        for tail in self.tails:
            for feed in list(tail.feeds.values()):
                self.is_turning = True
                feed._heartbeat_at = 0.0
                feed.flush()
                self.is_turning = False
                for client in feed._parked:
                    assert client.is_woken or self.is_current(client, feed.ids.render())

    def connect(self, number: int) -> None:
        kind, keys = number % len(DIMENSIONS), SELECTED[number // len(DIMENSIONS) % len(SELECTED)]
        selector = Selector.of(*([each] * kind for each in keys)) if kind else None
        client = Client(self, self.encoders[kind], keys if kind else None, selector)
        self.open(client)
        client.start = starts(client.reader.position_id)
        self.clients.append(client)
        with self.busy(client):
            client.receive(client.reader.begin())

    # Steps of one client.

    def read(self, client: Client, number: int) -> bytes:
        self.resume(client)
        if client.is_parked:
            return b""
        with self.busy(client):
            unsent, client.unsent = client.unsent, b""
            client.receive(unsent)
            data = client.reader.read(0)
            client.receive(data)
            client.check(client.reader.position_id)
        return data

    def send_moved_id(self, client: Client, number: int) -> None:
        if not client.is_parked and not client.unsent:
            client.receive(client.reader.id_if_moved())
            assert self.is_current(client, client.reader.position_id)

    def park(self, client: Client, number: int) -> None:
        """Park the client if possible, as a stream does before its greenlet ends."""
        if client.is_parked or client.unsent or not client.reader.can_park:
            return
        if moved := client.reader.id_if_moved():
            client.receive(moved)
        else:
            client.reader.park(client)
            client.is_parked, client.is_woken = True, False

    def limit_socket(self, client: Client, number: int) -> None:
        client.room = number * 2

    def wake(self, client: Client, number: int) -> None:
        client.wake()

    def resume(self, client: Client, number: int = 0) -> None:
        """Run the greenlet of a client that was woken, up to the point where it sends the unsent bytes."""
        if client.is_parked and client.is_woken:
            client.reader.unpark()
            client.is_parked = False

    def revoke(self, client: Client, number: int) -> None:
        """Revoke the slot with which the client catches up. This may happen while the client's greenlet is busy."""
        slot = client.reader._slot
        if slot is not None and slot.granted:
            slot.revoked = True
            slot.on_revoke()

    def end(self, client: Client, number: int) -> None:
        """End the stream, as a server that stops does; the client reconnects with its last event ID."""
        if self.is_json_lines:
            return  # there are no event IDs
        client.reader.stop(StopReason.ENDED)
        client.wake()
        self.read(client, number)
        client.receive(client.reader.id_if_moved())
        self.cut(client, number)

    def cut(self, client: Client, number: int) -> None:
        """Break the client's connection; the client reconnects with its last event ID."""
        if self.is_json_lines:
            return  # there are no event IDs
        with self.busy(client):
            client.reader.close()
            client.disconnect()
            self.open(client)
            client.receive(client.reader.begin())

    def cut_while_sending(self, client: Client, number: int) -> None:
        """Break the connection while frames are sent."""
        if client.is_parked or self.is_json_lines:
            return
        with self.busy(client):
            data = client.unsent + client.reader.read(0)
            client.receive(data[: len(data) * number // 100])
        self.cut(client, number)

    def return_to(self, client: Client, number: int) -> None:
        """Let a client reconnect with any event ID that it has received, as if it had not received the events after it."""
        if client.history:
            with self.busy(client):
                index = number * len(client.history) // 100
                client.last_id, records, gaps = client.history[index]
                client.offsets, client.gaps = first(client.offsets, records), first(client.gaps, gaps)
                del client.history[index:]
            self.cut(client, number)

    # The implementation of the steps.

    def play(self, steps: list[tuple[str, int]]) -> None:
        with ExitStack() as patches:
            patches.enter_context(mock.patch("time.time_ns", self.clock.time_ns))
            for module in (catch_up, feeds, reader, shared_feed):
                patches.enter_context(mock.patch.object(module, "take_turn", self.take_turn))
            for module, limit in LIMITS:
                patches.enter_context(mock.patch.object(module, limit, 2))
            for step in steps:
                self.perform(*step)
            self.read_everything()

    def perform(self, step: str, number: int) -> None:
        if step in STEPS_OF_A_CLIENT:
            client = self.clients[number % len(self.clients)] if self.clients else None
            if client is not None and (step == "revoke" or not client.is_busy):
                getattr(self, step)(client, number)
        else:
            getattr(self, step)(number)

    def run_others(self) -> None:
        """Do what other greenlets may do while one waits: write records, and append them to the feed."""
        for partition in range(PARTITIONS):
            self.append(partition)
        self.turn()

    def read_everything(self) -> None:
        """Let every client read until there is nothing more."""
        self.log.while_closing = lambda: None  # otherwise there would always be more records
        self.hooked = self.switched = []
        for _ in range(6):
            self.turn()
            for client in self.clients:
                client.wake()
                empty = 0
                while empty < 3:  # a reader that changes its state may return nothing
                    empty += not self.read(client, 0)
                self.send_moved_id(client, 0)

    def open(self, client: Client) -> None:
        position = parse(client.last_id) if client.last_id else of_topics(["t"])
        topics = self.log.describe(["t"])
        client.reader = self.feeds.open(self.route, position, topics, client.encoder, selector=client.selector)

    @contextmanager
    def busy(self, client: Client) -> Iterator[None]:
        client.is_busy = True
        yield
        client.is_busy = False

    # Invariants.

    def is_current(self, client: Client, position_id: str) -> bool:
        """Return whether the client has this event ID, if it can be compared: timestamps of idle partitions may differ."""
        return self.is_json_lines or self.id_type is not IdType.OFFSET or client.last_id == position_id

    def offset(self, partition: int, start: PartitionStart) -> float:
        """Return the offset at which a client starts in a partition."""
        if start.offset is not None:
            return start.offset
        records = self.records.get(partition, [])
        return next((offset for offset, timestamp, *_ in records if timestamp >= start.timestamp), math.inf)

    def check(self) -> None:
        for client in self.clients:
            for partition in range(MAX_PARTITIONS):
                assert client.expected(partition) == client.offsets.get(partition, [])
            if self.id_type is not IdType.TIMESTAMP:
                held = self.log.offset_ranges(Partition("t", number) for number in range(self.partitions))
                ends = {partition.partition: offsets.end for partition, offsets in held.items()}
                assert ends == {partition: start.offset for partition, start in client.position.items()}


STEP = st.tuples(st.sampled_from([*STEPS_OF_THE_WORLD, *STEPS_OF_A_CLIENT, *OFTEN]), st.integers(0, 99))
STEPS = st.lists(STEP, min_size=25, max_size=100)  # hypothesis prefers short lists, in which no reader joins
SWITCHES = st.lists(STEP, max_size=10)
RING = st.integers(1, 12)


@pytest.mark.parametrize("id_type", IdType)
@given(steps=STEPS, max_ring_records=RING, filtered=st.booleans(), hooked=SWITCHES, switched=SWITCHES)
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
def test_each_client_receives_exactly_its_records_in_any_interleaving(
    id_type, steps, max_ring_records, filtered, hooked, switched
):
    """Writes, fetches, opens, reads, parking, slow sockets, evictions, lost records, and cuts at any byte."""
    world = World(max_ring_records, filtered, id_type=id_type, hooked=hooked, switched=switched)
    world.play(steps)

    world.check()


@given(steps=STEPS, max_ring_records=RING, filtered=st.booleans(), hooked=SWITCHES, switched=SWITCHES)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
def test_json_lines_contain_exactly_the_clients_records(steps, max_ring_records, filtered, hooked, switched):
    """The reader's position is checked in the same way as an event ID."""
    world = World(max_ring_records, filtered, is_json_lines=True, hooked=hooked, switched=switched)
    world.play(steps)

    world.check()


@pytest.mark.parametrize("id_type", IdType)
@given(steps=STEPS, max_ring_records=RING)
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
def test_event_ids_on_the_last_frame_of_a_run_lose_nothing(id_type, steps, max_ring_records):
    """With id_frequency=run, a client whose connection breaks resumes at the last event ID that it received."""
    world = World(max_ring_records, sparse_ids=True, id_type=id_type)
    world.play(steps)

    world.check()
