"""Keyed dispatch: what a record costs, and gaps and heartbeats, which all clients receive."""

from __future__ import annotations

from functools import partial
from typing import Any

from kafkasse.feed.core.ring import Segment
from kafkasse.log import Partition
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Selector
from kafkasse.records.frame.record_view import RecordView
from kafkasse.records.position import parse
from kafkasse_client.sse import Parser
from tests.feed.world import World
from tests.support.parked_client import ParkedClient
from tests.support.turns import most_lines_in_a_piece


class CountingClient(ParkedClient):
    chunks = 0

    def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
        self.chunks += 1
        return super().try_send(chunk)


class Crowd(World):
    """Parked clients of one feed, each with its own key."""

    def __init__(self, count: int, partitions: int = 1) -> None:
        # No heartbeat is due, however long it takes to open the readers.
        super().__init__(Encoder(dimensions=Dimensions((Dimension("key"),))), {"t": partitions}, heartbeat_s=300)
        self.clients = [CountingClient() for _ in range(count)]
        for number, client in enumerate(self.clients):
            reader = self.open(selector=Selector.of([str(number)]))
            reader.begin()
            reader.park(client)

    def append(self, *keys: int, partition: int = 0) -> None:
        for key in keys:
            self.write(1, partition=partition, key=b"%d" % key)
        self.turn()


def test_a_record_is_encoded_once_and_sent_only_to_its_receivers(monkeypatch):
    """With 2,000 subscribers, each record costs one call of Dimensions.values(), and no work for the other clients."""
    crowd = Crowd(2_000)
    looked_up: list[int] = []
    values = Dimensions.values

    def counted(self: Dimensions, view: RecordView) -> Any:
        looked_up.append(view.record.offset)
        return values(self, view)

    monkeypatch.setattr(Dimensions, "values", counted)
    crowd.append(7, 1_999, 7, 5_000)

    assert [0, 1, 2, 3] == looked_up
    assert {7: 1, 1_999: 1} == {number: client.chunks for number, client in enumerate(crowd.clients) if client.chunks}
    assert 2 == crowd.clients[7].received.count(b"event: message")


def test_a_client_that_left_does_not_receive_records():
    """Another client, whose selector contains the same dispatch value, still receives them."""
    crowd, client = Crowd(1), ParkedClient()
    reader = crowd.open(selector=Selector.of(["0"], ["1"]))
    reader.park(client)
    reader.close()

    crowd.append(0)

    assert b"" == client.received
    assert 1 == crowd.clients[0].chunks
    assert 1 == len(crowd.feed._subscribers.groups_of(("0",)))


def test_a_flush_takes_the_same_number_of_steps_for_any_number_of_subscribers():
    crowds = [Crowd(10), Crowd(200)]
    few, many = ([most_lines_in_a_piece(partial(crowd.append, 1, 2, 3)) for _ in range(2)][-1] for crowd in crowds)

    assert many < 1.1 * few


def test_idle_clients_of_a_busy_feed_receive_heartbeats_with_its_position(monkeypatch):
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


def test_a_returning_client_reads_only_its_own_segments(monkeypatch):
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
    reader = crowd.open(id_at(0).decode(), selector=Selector.of(["42"]))
    data = reader.read(0)

    assert [42, 142, 242, 342, 442] == read
    assert 5 == data.count(b"event: message")
    assert reader.can_park


def test_a_client_that_reads_the_ring_in_chunks_is_exactly_at_its_last_event_id():
    """Its position includes the records of others before that event, so that a gap cannot start before the event ID."""
    crowd = Crowd(1, partitions=2)
    reader = crowd.open(crowd.feed.ids.render(), selector=Selector.of(["7"]))
    for _ in range(3):
        crowd.append(5, partition=1)
        crowd.append(7, partition=0)
    reader._max_chunk_bytes = 1
    parser = Parser()

    for _ in range(2):
        list(parser.receive(reader.read(0)))
        assert parser.last_event_id == reader.position_id


def test_a_heartbeat_does_not_precede_a_gap_with_its_position():
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


def test_the_position_after_a_truncation_has_the_new_leader_epoch():
    """Also if the new records end where the lost ones did. With the old epoch, a client that returns gets the gap again."""
    crowd = Crowd(1)
    crowd.log.elect_leader("t")
    reader = crowd.open(selector=Selector.of(["7"]))
    crowd.append(5, 5)
    reader.read(0)
    crowd.log.truncate("t", 1)
    for key in ((7,), (), ()):
        crowd.append(*key)

    received = reader.read(0)

    assert (1, 1) == (received.count(b"event: gap"), received.count(b"event: message"))
    assert 1 == parse(reader.position_id).starts[Partition("t", 0)].epoch


def id_at(offset: int) -> bytes:
    return b'[{"topic":"t","partition":0,"offset":%d,"topic_id":"memory1"}]' % offset
