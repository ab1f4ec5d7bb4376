"""Nothing lost, nothing twice, never silently stuck: a cursor against brokers that answer late, wrongly, or not at all."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID

import gevent
import pytest
from crc32c import crc32c

from kafkasse.errors import KafkasseError
from kafkasse.kafka import client
from kafkasse.kafka.batches import MAX_RUN_RECORDS
from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.log import KafkaLog
from kafkasse.log import Batch, OffsetOutOfRange, OffsetRange, Partition
from tests.kafka import fake_broker
from tests.kafka.fake_broker import (
    METADATA,
    NO_LEADER,
    SESSION_ID,
    FakeBroker,
    FakeCluster,
    FakeTopic,
    batch,
    partition_data,
)
from tests.kafka.logs import open_log
from tests.support.certificates import Authority
from tests.support.waiting import eventually

TIMEOUT_S = 0.5
NO_LEADER_HERE, OUT_OF_RANGE, NO_SESSION = 6, 1, 70
LONG = 30.0
TURNS, TURN_S = 20, 0.001  # none of 0, or sockets are not looked at
CONTROL = struct.pack(">h", 0x30)  # the attributes of a batch that holds a marker
MUCH = b"x" * 600_000  # so much that more is fetched ahead


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    running = FakeCluster(brokers=2)
    running.topics["t"] = FakeTopic([0])
    yield running
    running.close()


@pytest.fixture
def log(cluster) -> Iterator[KafkaLog]:
    opened = open_log(cluster.bootstrap_servers, kafka_timeout_s=TIMEOUT_S)
    yield opened
    opened.close()


@pytest.fixture
def opened(cluster, log) -> Iterator[Callable[..., KafkaCursor]]:
    """Opens cursors: over so many partitions as there are leaders, from the same offset in each."""
    cursors = []

    def open(*leaders: int, offset: int = 0, tail: bool = False) -> KafkaCursor:
        cluster.topics["t"].leaders = list(leaders)
        log.describe(["t"])
        cursors.append(log.cursor({at(number): offset for number in range(len(leaders))}, tail))
        return cursors[-1]

    yield open
    for each in cursors:
        each.close()


def at(number: int) -> Partition:
    return Partition("t", number)


def polled(cursor: KafkaCursor) -> gevent.Greenlet:
    """A poll that is under way; what it finds, or raises, is its value."""

    def poll() -> list[Batch] | Exception:
        try:
            return cursor.poll(LONG)
        except (KafkasseError, OffsetOutOfRange) as error:
            return error

    return gevent.spawn(poll)


def offsets(batches: list[Batch], number: int = 0) -> list[int]:
    return [record.offset for each in batches if each.partition == at(number) for record in each.records]


def turn() -> None:
    """Let everything happen that is ready to happen: the only way to see that a thing does not."""
    for _ in range(TURNS):
        gevent.sleep(TURN_S)


def came(cursor: KafkaCursor) -> None:
    """Return when an answer has come that the cursor has not looked at."""
    eventually(lambda: cursor._responses)


def fetched_ahead(broker: FakeBroker, cursor: KafkaCursor) -> tuple[bytes, bytes]:
    """An answer has come before it is wanted: a whole run of partition 0 from 1 on, the first two of partition 1."""
    first = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"x" * 900_000)))
    first.get()
    many, few = batch(1, *[b"y" * 300] * MAX_RUN_RECORDS), batch(0, b"a", b"b")
    broker.next_fetch().respond(partition_data(0, many), partition_data(1, few))
    came(cursor)
    return many, few


# Nothing twice, nothing lost.


def test_an_answer_that_waits_is_not_asked_for_again(cluster, opened):
    """What was fetched ahead is had once, however late it is taken."""
    (broker, _), cursor = cluster.brokers, opened(0)
    first = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, MUCH)))
    first.get()
    broker.next_fetch().respond(partition_data(0, batch(1, MUCH)))
    came(cursor)

    found = cursor.poll(LONG)

    assert [1] == offsets(found)
    assert {0: 2} == broker.next_fetch().offsets


def test_records_come_once_while_the_topic_grows(cluster, opened):
    """Records that are written between two fetches ahead of a slow reader are not handed on by both."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    many, few = fetched_ahead(broker, cursor)
    found = cursor.poll(LONG)
    turn()
    if broker.pending_fetches:  # for the same once more
        broker.next_fetch().respond(partition_data(0, many), partition_data(1, few + batch(2, b"c")))
        came(cursor)
    found += cursor.poll(LONG)
    broker.next_fetch().respond(partition_data(1, batch(2, b"c") + batch(3, b"d")))
    came(cursor)

    found += cursor.poll(LONG)

    assert [0, 1, 2, 3] == offsets(found, 1)


def test_what_waits_is_not_overwritten(cluster, opened):
    """The bytes of an answer stay as they are until the last of its records was handed on."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    many, few = fetched_ahead(broker, cursor)

    found = cursor.poll(LONG)
    turn()
    if broker.pending_fetches:  # for the same once more
        broker.next_fetch().respond(
            partition_data(0, many + batch(MAX_RUN_RECORDS + 1, b"new")), partition_data(1, few)
        )
        came(cursor)
    found += cursor.poll(LONG)

    assert [0, 1] == offsets(found, 1)


def test_a_seek_while_a_fetch_is_under_way(cluster, opened):
    """Its answer is for another place, and is dropped."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    late = broker.next_fetch()
    cursor.seek({at(0): 7})
    late.respond(partition_data(0, batch(0, b"a")))

    again = broker.next_fetch()
    again.respond(partition_data(0, batch(5, b"b", b"c", b"d")))

    assert {0: 7} == again.offsets
    assert [7] == offsets(poll.get())


def test_damaged_records_end_the_stream_after_what_is_whole(cluster, opened):
    """What stands before them, and in other partitions, is handed on first."""
    (broker, _), cursor = cluster.brokers, opened(0, 0)
    damaged = bytearray(batch(1, b"bbbb"))
    damaged[-3] ^= 1
    poll = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a") + bytes(damaged)), partition_data(1, batch(0, b"c")))

    found = poll.get()

    assert ([0], [0]) == (offsets(found, 0), offsets(found, 1))
    with pytest.raises(KafkasseError, match="damaged"):
        cursor.poll(LONG)


def test_an_answer_to_another_request(cluster, opened):
    """Nothing of it is believed: the connection is given up, and the same is asked for by another one."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    asked = broker.next_fetch()
    asked.request.header.correlation_id += 1
    asked.respond(partition_data(0, batch(0, b"wrong")))

    broker.next_fetch().respond(partition_data(0, batch(0, b"right")))

    assert [b"right"] == [bytes(record.value) for each in poll.get() for record in each.records]


def test_a_default_is_no_divergence(cluster, opened):
    """A broker may write what it may leave out: no epoch diverges."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a"), diverging=(-1, -1)))

    assert [0] == offsets(poll.get())


def test_a_log_that_went_another_way(cluster, opened):
    """What was read of an epoch that the new leader never had is declared lost from its first record on."""
    (broker, _), cursor = cluster.brokers, opened(0, offset=80)
    for offset, epoch in ((80, 4), (90, 5)):
        poll = polled(cursor)
        broker.next_fetch().respond(partition_data(0, batch(offset, *[b"a"] * 10, epoch=epoch)))
        poll.get()
    poll = polled(cursor)
    broker.next_fetch().respond(
        partition_data(0, diverging=(4, 150))
    )  # its epoch 4 goes on to 149: unclean, but it is what there is

    gap = poll.get().gap(at(0), 100, OffsetRange(0, 160))

    assert gap is not None
    assert (100, 90) == (gap.start, gap.end)


def test_markers_have_an_epoch(cluster, opened):
    """After nothing but a marker of a new epoch the next fetch names that epoch, or a broker would see a divergence."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    marker = bytearray(batch(10, b"", epoch=5))
    marker[21:23] = CONTROL
    marker[17:21] = struct.pack(">I", crc32c(bytes(marker[21:])))
    broker.next_fetch().respond(partition_data(0, batch(0, *[b"a"] * 10, epoch=4) + marker))
    read = offsets(poll.get())
    poll = polled(cursor)
    request = broker.next_fetch().request

    (partition,) = request.topics[0].partitions
    assert list(range(10)) == read
    assert (11, 5) == (partition.fetch_offset, partition.last_fetched_epoch)
    poll.kill()


def test_a_leader_of_the_past(cluster, opened):
    """A broker whose metadata lags behind names a leader that was deposed: its end of the log is not believed."""
    cluster.topics["t"].epochs[0] = 5
    (broker, deposed), cursor = cluster.brokers, opened(0, tail=True)
    poll = polled(cursor)
    asked = broker.next_fetch()
    topic, looks = cluster.topics["t"], cluster.requests[METADATA]
    topic.leaders, topic.epochs[0] = [1], 4
    for _ in range(3):
        asked.respond(partition_data(0, error=NO_LEADER_HERE), session=SESSION_ID)
        asked = broker.next_fetch()
    believed = deposed.pending_fetches

    topic.leaders, topic.epochs[0] = [0], 6
    asked.respond(partition_data(0, batch(0, b"a", epoch=6)), session=SESSION_ID)

    assert cluster.requests[METADATA] > looks
    assert not believed
    assert [0] == offsets(poll.get())


# Sessions.


def test_a_session_tells_only_what_has_changed(cluster, opened):
    """A partition that brought records is named again, one that brought none is not."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    first = polled(cursor)
    opening = broker.next_fetch()
    opening.respond(partition_data(0, batch(0, b"a")), partition_data(1), session=SESSION_ID)
    first.get()
    second = polled(cursor)
    asked = broker.next_fetch()
    asked.respond(partition_data(1, batch(0, b"b")), session=SESSION_ID)

    assert ({0: 0, 1: 0}, {0: 1}) == (opening.offsets, asked.offsets)
    assert (SESSION_ID, 1) == (asked.request.session_id, asked.request.session_epoch)
    assert [0] == offsets(second.get(), 1)


def test_a_session_that_the_broker_has_dropped(cluster, opened):
    """A new one begins, with all partitions, at the offsets that were reached."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, tail=True)
    first = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")), partition_data(1), session=SESSION_ID)
    first.get()
    second = polled(cursor)
    broker.next_fetch().respond(error_code=NO_SESSION)

    again = broker.next_fetch()
    again.respond(partition_data(0, batch(1, b"b")), partition_data(1), session=SESSION_ID)

    assert ({0: 1, 1: 0}, 0) == (again.offsets, again.request.session_id)
    assert [1] == offsets(second.get())


def test_a_leader_that_moves_away_and_back(cluster, opened):
    """Its session forgets the partition, and is told of it again when it is back."""
    (broker, other), cursor = cluster.brokers, opened(0, 0, tail=True)
    poll = polled(cursor)
    opening = broker.next_fetch()
    cluster.topics["t"].leaders[0] = 1
    opening.respond(partition_data(0, error=NO_LEADER_HERE), partition_data(1), session=SESSION_ID)
    without = broker.next_fetch()
    moved = other.next_fetch()
    cluster.topics["t"].leaders[0] = 0
    moved.respond(partition_data(0, error=NO_LEADER_HERE), session=SESSION_ID + 1)
    back = without
    while 0 not in back.offsets:
        back.respond(session=SESSION_ID)
        back = broker.next_fetch()
    back.respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert ([0], {}) == (without.forgotten, without.offsets)
    assert ({0: 0}, []) == (back.offsets, back.forgotten)
    assert [0] == offsets(poll.get())


# Never silently stuck.


def test_a_broker_that_hangs_up(cluster, opened):
    """The same is asked for again, by another connection."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    broker.next_fetch().disconnect()

    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


def test_a_broker_that_does_not_answer(cluster, opened):
    """After a while the same is asked for by another connection."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    broker.next_fetch()

    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


def test_cursors_that_are_closed_before_their_answer_comes(cluster, opened):
    """Whoever comes next has the connection once it has come; one whose answer never comes is given up."""
    broker, _ = cluster.brokers
    for _ in range(3):
        poll = polled(cursor := opened(0))
        asked = broker.next_fetch()
        cursor.close()
        asked.respond(partition_data(0, batch(0, b"a")))
        assert [] == poll.get()
        turn()
    assert 1 == len(broker.connections)

    for _ in range(2):
        polled(cursor := opened(0))
        broker.next_fetch()
        cursor.close()
    assert 2 == len(broker.connections)


def test_connections_that_the_broker_closed_while_they_were_kept(cluster, log, opened):
    """It is not waited for before a new one is tried."""
    broker, _ = cluster.brokers
    for cursor in (opened(0), opened(0)):
        poll = polled(cursor)
        broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
        poll.get()
        cursor.close()
    eventually(lambda: any(log.pool.idle()))
    for sock in broker.connections:
        sock.shutdown(fake_broker.socket.SHUT_RDWR)

    poll = polled(opened(0))
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())


def test_connections_that_went_silent_while_they_were_kept(cluster, log, opened):
    """One that is found to be dead stands for all that were kept: the wait for an answer is waited once."""
    broker, _ = cluster.brokers
    cursors = [opened(0) for _ in range(3)]
    for cursor in cursors:
        poll = polled(cursor)
        broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
        poll.get()
    for cursor in cursors:
        cursor.close()
    eventually(lambda: len(list(log.pool.idle())) == len(cursors))
    kept = set(broker.connections)

    poll = polled(opened(0))
    silent = 0
    while (asked := broker.next_fetch()).sock in kept:
        silent += 1
    asked.respond(partition_data(0, batch(0, b"a")))

    assert [0] == offsets(poll.get())
    assert 1 == silent


def test_out_of_range_is_told_until_somebody_moves_it(cluster, opened):
    """Whoever could not find out where the log goes on is asked again, and other partitions are read meanwhile."""
    (broker, _), cursor = cluster.brokers, opened(0, 0, offset=5)
    first = polled(cursor)
    broker.next_fetch().respond(partition_data(0, error=OUT_OF_RANGE), partition_data(1))

    def serve() -> None:
        while asked := broker.next_fetch():
            parts = {
                0: partition_data(0, error=OUT_OF_RANGE),
                1: partition_data(1, batch(asked.offsets.get(1, 5), b"a")),
            }
            asked.respond(*(parts[number] for number in asked.offsets))

    serving = gevent.spawn(serve)
    told, read = [first.get()], []
    while len(told) < 3 or len(read) < 3:
        found = polled(cursor).get()
        _ = told.append(found) if isinstance(found, OffsetOutOfRange) else read.extend(offsets(found, 1))
        assert len(told) < 100, "the other partition is not read"
    serving.kill()

    assert {(at(0),)} == {each.partitions for each in told}
    assert [5, 6, 7] == read[:3]


def test_a_partition_without_a_leader(cluster, opened):
    """It is looked for with patience, and read as soon as it has one; others do not wait for it."""
    (broker, other), cursor = cluster.brokers, opened(0, NO_LEADER)
    first = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
    found = first.get()
    second = polled(cursor)
    asked = broker.next_fetch()
    cluster.topics["t"].leaders[1] = 1

    other.next_fetch().respond(partition_data(1, batch(0, b"b")))

    assert ([0], {0: 1}) == (offsets(found), asked.offsets)
    assert [0] == offsets(second.get(), 1)


def test_a_partition_without_a_leader_costs_little(cluster, opened):
    """However much the others bring, the cluster is not asked for it all the time."""
    (broker, _), cursor = cluster.brokers, opened(0, NO_LEADER, tail=True)
    looks = cluster.requests[METADATA]

    def serve() -> None:
        for offset in range(200):
            broker.next_fetch().respond(partition_data(0, batch(offset, b"a")), session=SESSION_ID)

    serving = gevent.spawn(serve)
    found: list[int] = []
    while len(found) < 200:
        found += offsets(cursor.poll(LONG))
        gevent.sleep(0.002)
    serving.kill()

    assert list(range(200)) == found
    assert cluster.requests[METADATA] - looks < 10


def test_a_topic_that_was_made_again(cluster, opened):
    """It is another one: the cursor does not read it."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    asked = broker.next_fetch()
    cluster.topics["t"].id = UUID(int=8)
    looks = cluster.requests[METADATA]
    asked.respond(partition_data(0, error=100))
    eventually(lambda: cluster.requests[METADATA] > looks + 2)

    assert 0 == broker.pending_fetches
    poll.kill()


def test_a_broker_without_topic_ids(cluster, opened):
    """Kafka 2.7 calls topics by name."""
    cluster.topics["t"].id = UUID(int=0)
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    asked = broker.next_fetch()
    asked.respond(partition_data(0, batch(0, b"a")))

    assert ("t", 12) == (asked.request.topics[0].topic, asked.request.API_VERSION)
    assert [0] == offsets(poll.get())


def test_a_closed_cursor_keeps_its_hands_off(cluster, log, opened):
    """Its connection may be another's by now: a late poll sends nothing by it."""
    (broker, _), cursor = cluster.brokers, opened(0)
    poll = polled(cursor)
    broker.next_fetch().respond(partition_data(0, batch(0, b"a")))
    poll.get()
    cursor.close()
    eventually(lambda: any(log.pool.idle()))

    cursor.poll(0)

    assert [None] == [each.in_flight for each in log.pool.idle()]


def test_two_cursors_over_the_same_broker(cluster, opened):
    """Each has its own connection and its own place."""
    broker, _ = cluster.brokers
    polls = [polled(opened(0)), polled(opened(0))]
    for asked, value in zip([broker.next_fetch(), broker.next_fetch()], (b"a", b"b"), strict=True):
        asked.respond(partition_data(0, batch(0, value)))

    assert [[0], [0]] == [offsets(each.get()) for each in polls]
    assert 2 == len(broker.connections)


class SpeaksTls:
    """Lets a broker speak TLS, or only take connections while it is not `awake`."""

    def __init__(self, broker: FakeBroker, context: ssl.SSLContext) -> None:
        self.awake, self.taken = True, 0
        self._serve, self._context = broker._serve, context
        broker._server.set_handle(self.serve)

    def serve(self, sock: fake_broker.socket.socket, address: object) -> None:
        self.taken += 1
        if not self.awake:
            gevent.sleep(LONG)
        with suppress(OSError):
            self._serve(self._context.wrap_socket(sock, server_side=True), address)


def test_a_broker_that_takes_connections_but_does_not_shake_hands(cluster, tmp_path, monkeypatch):
    """TLS: it is given up after a while, and tried again."""
    monkeypatch.setattr(client, "MAX_HANDSHAKE_S", TIMEOUT_S)
    authority = Authority()
    certificate, key = authority.issue("a broker")
    for name, text in {"ca": authority.certificate, "cert": certificate, "key": key}.items():
        (tmp_path / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    _, silent = [SpeaksTls(each, context) for each in cluster.brokers]
    cluster.topics["t"].leaders = [1]
    settings = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "ca"), "ssl_check_hostname": False}
    log = open_log(cluster.bootstrap_servers, settings, kafka_timeout_s=TIMEOUT_S)
    log.describe(["t"])
    silent.awake, taken = False, silent.taken
    cursor = log.cursor({at(0): 0}, tail=True)
    poll = polled(cursor)
    eventually(lambda: silent.taken > taken)
    silent.awake = True

    cluster.brokers[1].next_fetch().respond(partition_data(0, batch(0, b"a")), session=SESSION_ID)

    assert [0] == offsets(poll.get())
    cursor.close()
    log.close()
