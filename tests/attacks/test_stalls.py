"""Loads that could stall a worker's event loop or fill its memory. Each attack has a server of its own.

`make attacks` runs them in full size; by default they are as small as they can be while they still find the defects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import gevent
import pytest
from kafka import KafkaProducer

from tests.attacks.batches import UNCOMPRESSED, ZSTD, encode_batch, produce, produce_batch
from tests.attacks.crowd import Crowd
from tests.attacks.memory import DEFAULTS, Load
from tests.attacks.sizes import COMBINED, MB, SIZES
from tests.support.client import Client
from tests.support.examples import first_of
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until


def tiny(count: int) -> list[tuple[None, bytes]]:
    return [(None, b'{"n":1}')] * count


@pytest.fixture(scope="module")
def tiny_topic(cluster: Cluster) -> str:
    """A topic with one batch of very many tiny records."""
    topic = cluster.create("tiny", max_message_bytes="20000000")
    produce(cluster.bootstrap_servers, topic, tiny(SIZES.tiny_records))
    return topic


# A batch of very many tiny records.


def test_one_live_client_of_a_batch_of_tiny_records(attack, cluster, fresh_name):
    topic = cluster.create(fresh_name, max_message_bytes="20000000")
    worker = attack()
    with Crowd(worker.port, [f"/{topic}"]) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        produce(cluster.bootstrap_servers, topic, tiny(SIZES.tiny_records))
        crowd.wait(lambda client: client.events >= SIZES.tiny_records)

        worker.is_bounded(Load(streams=1, large_batches=1))
        assert {SIZES.tiny_records: 1} == crowd.events()


def test_ten_slow_clients_of_a_batch_of_tiny_records(attack, tiny_topic):
    """All clients read from the start. A fast client receives all records at the same time."""
    worker = attack()
    # Kafka itself needs seconds to find timestamps in such a batch.
    path, start = f"/{tiny_topic}", f'Last-Event-ID: [{{"topic":"{tiny_topic}","partition":0,"offset":0}}]'
    with (
        Crowd(worker.port, [path] * 10, start, reads=False, receive_buffer=4096) as slow,
        Crowd(worker.port, [path], start) as fast,
    ):
        dripping = [gevent.spawn(_drip, client) for client in slow.clients]
        fast.wait(lambda client: client.events >= SIZES.tiny_records)

        worker.is_bounded(Load(streams=11, catching_up=11, large_batches=11, stalled=10))
        assert {SIZES.tiny_records: 1} == fast.events()
        gevent.killall(dripping)


def _drip(client: Any) -> None:
    while client.read(4096):
        gevent.sleep(0.05)


# A batch in each of many partitions.


class Records(NamedTuple):
    codec: int
    count: int
    value_bytes: int

    @property
    def is_large(self) -> bool:
        return self.count * self.value_bytes > MB

    def produce_to_all(self, cluster: Cluster, topic: str) -> None:
        values = [(None, b'{"n":%d,"x":"%b"}' % (n, b"x" * self.value_bytes)) for n in range(self.count)]
        batch = encode_batch(values, self.codec)
        for partition in range(SIZES.batches):
            produce_batch(cluster.bootstrap_servers, topic, partition, batch)


RECORDS = {
    "tiny": Records(ZSTD, 20_000, 0),
    "medium": Records(ZSTD, 90, 10_000),
    "large": Records(ZSTD, 400, 10_000),
    "uncompressed": Records(UNCOMPRESSED, 20_000, 0),
}


@pytest.mark.parametrize("kind", first_of("large", "medium", "tiny", "uncompressed"))
def test_a_live_client_receives_a_batch_from_each_of_many_partitions(attack, cluster, fresh_name, kind):
    """One fetch contains many batches. Only a few of them are in memory after decompression."""
    records = RECORDS[kind]
    topic = cluster.create(fresh_name, SIZES.batches)
    worker = attack()
    with Crowd(worker.port, [f"/{topic}"]) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        records.produce_to_all(cluster, topic)
        crowd.wait(lambda client: client.events >= records.count * SIZES.batches)

        worker.is_bounded(Load(streams=1, stalled=1, large_batches=int(records.is_large), partitions=SIZES.batches))
        assert {records.count * SIZES.batches: 1} == crowd.events()


@pytest.mark.parametrize("max_fetch_bytes", first_of(65_536, DEFAULTS["max_fetch_bytes"]))
@pytest.mark.parametrize("kind", first_of("large", "medium", "tiny", "uncompressed"))
def test_clients_that_catch_up_on_many_partitions(attack, cluster, fresh_name, kind, max_fetch_bytes):
    """The same for clients that start at the first record, but do not read."""
    records = RECORDS[kind]
    topic, clients = cluster.create(fresh_name, SIZES.batches), SIZES.batch_readers
    worker = attack(max_fetch_bytes=max_fetch_bytes)
    records.produce_to_all(cluster, topic)
    # Kafka itself needs seconds to find timestamps in so many batches.
    position = ",".join(
        f'{{"topic":"{topic}","partition":{partition},"offset":0}}' for partition in range(SIZES.batches)
    )
    start = f"Last-Event-ID: [{position}]"
    with Crowd(worker.port, [f"/{topic}"] * clients, start, reads=False, receive_buffer=4096) as crowd:
        gevent.sleep(SIZES.seconds)

        large = clients if records.is_large else 0
        worker.is_bounded(Load(clients, clients, clients, large_batches=large, partitions=SIZES.batches))
        for client in crowd.clients:
            while not client.events:
                assert client.read()


# Clients that join the ring.


@pytest.mark.parametrize("reads", first_of(False, True))
def test_many_clients_join_the_ring_at_once(attack, cluster, fresh_name, reads):
    """All start at the oldest record of a full ring."""
    topic = cluster.create(fresh_name)
    worker = attack(max_ring_bytes=8 * MB, write_timeout_s=60)
    values = [b'{"n":%d,"x":"%b"}' % (n, b"x" * 1000) for n in range(3500)]
    with Client(worker.port, f"/{topic}") as keeper:
        first = keeper.ready().last_id
        cluster.send(topic, *values)
        keeper.events(len(values))
        before = worker.server.memory_bytes()
        with Crowd(worker.port, [f"/{topic}"] * SIZES.joining, f"Last-Event-ID: {first}", reads=reads) as crowd:
            if reads:
                crowd.wait(lambda client: client.events >= len(values))
            else:
                gevent.sleep(SIZES.seconds)
            worker.measured["ring_mb"] = round(before / MB)
            worker.is_bounded(Load(streams=SIZES.joining, stalled=SIZES.joining))
            assert not reads or {len(values): SIZES.joining} == crowd.events()


# Snapshots.


def table(keys: int, value_bytes: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield batches with one record for each key."""
    step = 4 * MB // value_bytes
    for start in range(0, keys, step):
        numbers = range(start, min(keys, start + step))
        yield [(b"k%d" % n, b'{"n":%d,"x":"%b"}' % (n, b"x" * value_bytes)) for n in numbers]


@pytest.mark.long  # test_all_limits_at_once fails without the limit, too
def test_a_snapshot_of_a_large_table(attack, cluster, fresh_name):
    """Readers of a table that is larger than max_snapshot_bytes get an error that names the setting."""
    topic = cluster.create(fresh_name, max_message_bytes="20000000")
    for batch in table(SIZES.table_mb * 100, 10_000):
        produce(cluster.bootstrap_servers, topic, batch)
    worker = attack(
        max_snapshot_bytes=16 * MB, routes={"table": {"path": "/table", "topics": [topic], "start": "snapshot"}}
    )
    with Crowd(worker.port, ["/table"] * SIZES.table_readers) as crowd:
        crowd.wait(lambda client: client.ended or client.events >= SIZES.table_mb * 100)

        worker.is_bounded(Load(streams=SIZES.table_readers, large_batches=1, snapshots=1))
        assert all(b"max_snapshot_bytes" in client.head for client in crowd.clients)


def test_many_clients_of_a_snapshot(attack, cluster, fresh_name):
    """They share the snapshot."""
    topic = cluster.create(fresh_name, max_message_bytes="20000000")
    for batch in table(SIZES.keys, 100):
        produce(cluster.bootstrap_servers, topic, batch)
    worker = attack(
        max_snapshot_bytes=SIZES.keys * 700,
        routes={"table": {"path": "/table", "topics": [topic], "start": "snapshot"}},
    )
    with Crowd(worker.port, ["/table"] * SIZES.keys_readers) as crowd:
        crowd.wait(lambda client: client.events >= SIZES.keys)
    worker.is_bounded(Load(streams=SIZES.keys_readers, stalled=SIZES.keys_readers, large_batches=1, snapshots=1))
    assert {SIZES.keys: SIZES.keys_readers} == crowd.events()


# Rings.


@pytest.mark.parametrize("id_type", first_of("both", "timestamp"))
def test_small_records_on_many_partitions(attack, cluster, fresh_name, id_type):
    """The event IDs count against max_ring_bytes."""
    topic = cluster.create(fresh_name, SIZES.partitions)
    worker = attack(max_ring_bytes=4 * MB, id_type=id_type)
    with Crowd(worker.port, [f"/{topic}"]) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        for n in range(SIZES.id_records):
            cluster.produce(topic, b'{"n":1}', n % SIZES.partitions)
        crowd.wait(lambda client: client.events >= SIZES.id_records)

        worker.is_bounded(Load(streams=1, partitions=SIZES.partitions))
        assert {SIZES.id_records: 1} == crowd.events()


@pytest.mark.long  # test_all_limits_at_once fails without the limit, too
def test_many_rings(attack, cluster, fresh_name):
    """All rings together have at most max_total_ring_bytes."""
    topics = cluster.create_all([f"{fresh_name}-{n}" for n in range(SIZES.rings)])
    worker = attack(max_ring_bytes=4 * MB, max_total_ring_bytes=16 * MB)
    [batch] = table(80, 10_000)
    with Crowd(worker.port, [f"/{topic}" for topic in topics]) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        for at, topic in enumerate(topics):  # one after another: this test is about rings, not about a burst
            for _ in range(SIZES.ring_batches):
                produce(cluster.bootstrap_servers, topic, batch)
            sent = (at + 1) * SIZES.ring_batches * len(batch)
            wait_until(lambda sent=sent: sum(client.events for client in crowd.clients) >= sent)
        crowd.wait(lambda client: client.events >= SIZES.ring_batches * len(batch))
        worker.is_bounded(Load(streams=SIZES.rings, feeds=SIZES.rings, partitions=SIZES.rings))


# All at once.


def test_all_limits_at_once(attack, cluster, fresh_name):
    """Full rings, a snapshot that becomes too large, and clients that catch up but do not read: the bounds add up."""
    topics = cluster.create_all([f"{fresh_name}-{n}" for n in range(COMBINED.rings)])
    large_table = cluster.create(f"{fresh_name}-table", max_message_bytes="20000000")
    for batch in table(COMBINED.table_mb * 100, 10_000):
        produce(cluster.bootstrap_servers, large_table, batch)
    [batch] = table(90, 10_000)  # less than max_fetch_bytes, so it does not count as a large batch
    worker = attack(
        max_ring_bytes=8 * MB,
        max_total_ring_bytes=8 * MB,
        max_snapshot_bytes=8 * MB,
        max_catch_ups=4,
        routes={"table": {"path": "/table", "topics": [large_table], "start": "snapshot"}},
    )
    port = worker.port
    with Crowd(port, [f"/{topic}" for topic in topics]) as live:
        live.wait(lambda client: client.opened_after_s)
        for topic in topics * COMBINED.batches:
            produce(cluster.bootstrap_servers, topic, batch)
        records = COMBINED.batches * len(batch)
        live.wait(lambda client: client.events >= records)
        paths = [f"/{topics[0]},{topics[1]}?timestamp=0"] * COMBINED.behind
        with Crowd(port, paths, reads=False, receive_buffer=4096), Crowd(port, ["/table"]) as of_table:
            of_table.wait(lambda client: client.ended)
            gevent.sleep(SIZES.seconds)
            streams, rings, behind = COMBINED.rings + COMBINED.behind + 1, COMBINED.rings, COMBINED.behind
            worker.is_bounded(Load(streams, behind, behind, feeds=rings, partitions=rings + 3, snapshots=1))
    assert b"max_snapshot_bytes" in of_table.clients[0].head


# Records that are not JSON.


def test_many_records_that_are_not_json(attack, cluster, fresh_name):
    """One request that reads them all writes little to the log."""
    topic = cluster.create(fresh_name, max_message_bytes="20000000")
    for _ in range(10):
        produce(cluster.bootstrap_servers, topic, [(None, b"not json")] * (SIZES.not_json // 10))
    produce(cluster.bootstrap_servers, topic, tiny(1))
    worker = attack()
    log_bytes = len(worker.server.log)
    with Crowd(worker.port, [f"/{topic}?timestamp=0"]) as crowd:
        crowd.wait(lambda client: client.events)

        worker.measured["log_bytes"] = len(worker.server.log) - log_bytes
        worker.is_bounded(Load(streams=1, catching_up=1, large_batches=1))
        assert worker.measured["log_bytes"] < 10_000
        assert 1 == crowd.clients[0].events


# Batches that are small in Kafka and huge when decompressed.


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_decompression_bomb(attack, cluster, fresh_name, codec):
    """A client that reads the batch receives a gap."""
    topic, sizes = cluster.create(fresh_name), {"max_request_size": 2**31 - 1, "batch_size": 2**28}
    with closing(
        KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, compression_type=codec, **sizes)
    ) as producer:
        producer.send(topic, b'{"x":"' + b"x" * 64 * MB + b'"}').get(30)
    worker = attack()
    worker.server.expect("too large when decompressed")
    with Client(worker.port, f"/{topic}?timestamp=0") as client:
        client.read_until(lambda: len(client.body) > 64 * MB or b"event: gap" in client.body[:10_000])

        worker.is_bounded(Load(streams=1, catching_up=1))
