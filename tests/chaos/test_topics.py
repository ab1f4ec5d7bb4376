"""Changes to topics, and unusual records. Clients receive each record, or a gap for the records that are lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.network import Conditions
from tests.chaos.scene import (
    Producer,
    Scene,
    TransactionalProducer,
    connect_clients,
    has_record,
    never_disconnected,
    wait_for_records,
    wait_until,
)

NewScene = Callable[..., Scene]


def test_a_topic_is_deleted_and_recreated(new_scene: NewScene, fresh_name: str) -> None:
    """Streams end with a 410 and reconnects get 404. The recreated topic is read from its start, after a gap."""
    scene = new_scene()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)[:2]  # the third reads only partition 0, so it gets no gap for the other one
    del scene.clients[2]

    scene.delete(topic)
    wait_until(lambda: all(404 in each.statuses for each in clients))
    scene.recreate(topic)
    wait_for_records(clients)

    assert all(b'"status":410' in each.body for each in clients)
    assert all(b"the topic was deleted and recreated" in each.body for each in clients)
    assert [] == scene.violations(statuses={404, 410}, max_ended=1)


def test_a_topic_is_recreated_immediately(new_scene: NewScene, fresh_name: str) -> None:
    """kafkasse does not notice that the topic was missing. The streams end cleanly and resume after a gap."""
    scene = new_scene()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)

    for _ in range(3):
        scene.delete(topic)
        scene.recreate(topic)
        wait_for_records(clients)

    assert all(b"the topic was deleted and recreated" in each.body for each in clients)
    # A stream ends with an error if a metadata refresh happened in between.
    assert [] == scene.violations(statuses={404, 410, 503}, max_ended=3)


def test_partitions_are_added(new_scene: NewScene, fresh_name: str) -> None:
    """Clients that read the whole topic receive the new partitions from their start."""
    scene = new_scene()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)

    for partitions in (3, 5):
        scene.grow(topic, partitions)
        wait_for_records(clients)

    assert never_disconnected(clients)
    assert [] == scene.violations()


def test_retention_removes_records_of_disconnected_clients(new_scene: NewScene, fresh_name: str) -> None:
    """A gap covers the records that were removed meanwhile, and no others."""
    scene = new_scene(idle_feed_timeout_s=0)  # otherwise, clients might get the removed records from the ring
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)

    for _ in range(3):
        with scene.outage():
            scene.networks[0].refuse()
            ends = scene.witness(topic)
            wait_until(lambda ends=ends: scene.witness(topic)[topic, 0] > ends[topic, 0] + 20)
            scene.kafka.drop_before(topic, ends[topic, 0] + 10)
            scene.networks[0].heal()
        wait_for_records(clients)

    assert all(b"removed by retention" in each.body for each in clients)
    assert [] == scene.violations()


@pytest.mark.long
def test_retention_while_clients_read(new_scene: NewScene, kafka: EmbeddedCluster, fresh_name: str) -> None:
    """Kafka is so slow that retention removes records before they are read. Open streams get a gap for exactly these."""
    scene = new_scene()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)

    with scene.outage():
        for network in kafka.networks.values():
            network.conditions = Conditions(bytes_per_s=2_000)
        for _ in range(3):
            ends = scene.witness(topic)
            wait_until(lambda ends=ends: scene.witness(topic)[topic, 0] > ends[topic, 0] + 40)
            for partition in (0, 1):
                scene.kafka.drop_before(topic, ends[topic, partition] + 20, partition)
        for network in kafka.networks.values():
            network.heal()
    wait_for_records(clients)

    assert all(b"removed by retention" in each.body for each in clients)
    assert never_disconnected(clients)
    assert [] == scene.violations()


COMPACTION = {
    "cleanup_policy": "compact",
    "segment_ms": "500",
    "min_cleanable_dirty_ratio": "0.01",
    "min_compaction_lag_ms": "5000",  # so that the witness can read records before they are removed
}


@pytest.mark.long
def test_compaction_during_streams(new_scene: NewScene, fresh_name: str) -> None:
    """Records with a newer record of the same key are optional. The newest arrive once and in order."""
    scene = new_scene()
    topic = scene.topic(fresh_name, per_s=200, **COMPACTION)
    clients = connect_clients(scene, topic)

    def compacted() -> bool:
        ends = scene.witness(topic)
        newcomer = scene.read(topic, query="?timestamp=0", start=0)
        wait_until(lambda: has_record(newcomer))
        return scene.count_records(topic) < sum(ends.values()) / 2

    wait_until(compacted)
    wait_for_records(clients)

    assert never_disconnected(clients)
    assert [] == scene.violations(excused=[topic], compacted=[topic])


def test_transactions(new_scene: NewScene, fresh_name: str) -> None:
    """Committed records arrive after the commit. Aborted records never arrive, and event IDs advance past them."""
    scene = new_scene()
    topic = scene.topic(fresh_name, producer=TransactionalProducer)
    clients = connect_clients(scene, topic)

    for _ in range(5):
        scene.networks[0].cut()
        wait_for_records(clients)

    assert [] == scene.violations()


def test_every_compression_codec(new_scene: NewScene, fresh_name: str) -> None:
    """Records compressed with gzip, snappy, lz4 or zstd arrive like others."""
    scene = new_scene()
    topics = [scene.topic(f"{fresh_name}-{each}", compression_type=each) for each in ("gzip", "snappy", "lz4", "zstd")]
    clients = [scene.read(*topics, query="?timestamp=0", start=0), *(scene.read(topic) for topic in topics)]

    for _ in range(3):
        scene.networks[0].cut()
        wait_for_records(clients)

    assert [] == scene.violations()


class LargeRecordProducer(Producer):
    """Writes records of up to 900 kB."""

    def _send(self, turn: int) -> None:
        size = random.Random(turn).choice([10, 100_000, 900_000])  # noqa: S311
        self._writer.send(self.topic, turn % self.partitions, b'{"n":%d,"x":"%b"}' % (turn, b"x" * size))


def test_records_larger_than_a_fetch(new_scene: NewScene, fresh_name: str) -> None:
    """Records of up to fourteen times max_fetch_bytes arrive."""
    scene = new_scene()
    clients = connect_clients(scene, scene.topic(fresh_name, producer=LargeRecordProducer, per_s=20))

    for _ in range(3):
        scene.networks[0].cut()
        wait_for_records(clients)

    assert [] == scene.violations()


class SkewedClockProducer(Producer):
    """Writes with a clock that jumps by up to twenty minutes."""

    def _send(self, turn: int) -> None:
        for n in range(4 * turn, 4 * turn + 4):
            jump_ms = random.Random(n).randrange(-1_200_000, 1_200_000)  # noqa: S311
            value = b'{"n":%d}' % n
            self._writer.send(self.topic, n % self.partitions, value, timestamp_ms=self.began_ms + jump_ms)


def test_timestamps_out_of_order(new_scene: NewScene, fresh_name: str) -> None:
    """A client that starts at a timestamp starts at the first record at or after it, and resumes by offset."""
    scene = new_scene()
    topic = scene.topic(fresh_name, producer=SkewedClockProducer)
    scene.read(topic)
    wait_until(lambda: scene.witness(topic) and scene.stored)
    for _ in range(5):
        scene.witness(topic)
        when = scene.random.choice(list(scene.stored.values())).timestamp
        scene.read(topic, query=f"?timestamp={when}", start=when)
        scene.networks[0].cut()
        wait_for_records(scene.clients)

    assert [] == scene.violations()
