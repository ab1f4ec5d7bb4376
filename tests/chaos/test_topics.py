"""Changes to topics, and unusual records. Clients receive each record, or a gap for the records that are lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.chaos.scene import Producer, Scene, connect_clients, wait_for_records, wait_until

NewScene = Callable[..., Scene]


def test_a_topic_is_deleted_and_recreated(new_scene, fresh_name):
    """Streams end with a 410 and reconnects get 404. The recreated topic is read from its start, after a gap."""
    scene = new_scene()
    topic = scene.topic(fresh_name)
    clients = connect_clients(scene, topic)[:2]  # the third reads only partition 0, so it gets no gap for the other one
    del scene.clients[2]

    scene.delete(topic)
    wait_until(lambda: all(404 in client.statuses for client in clients))
    scene.recreate(topic)
    wait_for_records(clients)

    assert all(b'"status":410' in client.body for client in clients)
    assert all(b"the topic was deleted and recreated" in client.body for client in clients)
    assert [] == scene.violations(statuses={404, 410}, max_ended=1)


@pytest.mark.long
def test_a_topic_is_recreated_immediately(scene, topic, clients):
    """kafkasse does not notice that the topic was missing. The streams end cleanly and resume after a gap."""
    for _ in range(3):
        scene.delete(topic)
        scene.recreate(topic)
        wait_for_records(clients)

    assert all(b"the topic was deleted and recreated" in client.body for client in clients)
    # A stream ends with an error if a metadata refresh happened in between.
    assert [] == scene.violations(statuses={404, 410}, max_ended=3)


@pytest.mark.long
def test_retention_removes_records_of_disconnected_clients(new_scene, fresh_name):
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

    assert all(b"removed by retention" in client.body for client in clients)
    assert [] == scene.violations()


class LargeRecordProducer(Producer):
    """Writes records of up to 900 kB."""

    def _send(self, turn: int) -> None:
        size = random.Random(turn).choice([10, 100_000, 900_000])  # noqa: S311
        self._writer.send(self.topic, turn % self.partitions, b'{"n":%d,"x":"%b"}' % (turn, b"x" * size))


class SkewedClockProducer(Producer):
    """Writes with a clock that jumps by up to twenty minutes."""

    def _send(self, turn: int) -> None:
        for n in range(4 * turn, 4 * turn + 4):
            jump_ms = random.Random(n).randrange(-1_200_000, 1_200_000)  # noqa: S311
            value = b'{"n":%d}' % n
            self._writer.send(self.topic, n % self.partitions, value, timestamp_ms=self.began_ms + jump_ms)


def test_unusual_records(scene, fresh_name):
    """Records of up to fourteen times max_fetch_bytes, and of producers whose clocks jump.

    A client that starts at a timestamp starts at the first record at or after it, and resumes by offset.
    """
    large = scene.topic(f"{fresh_name}-large", producer=LargeRecordProducer, per_s=20)
    skewed = scene.topic(f"{fresh_name}-skewed", producer=SkewedClockProducer)
    connect_clients(scene, large)
    scene.read(skewed)
    wait_until(lambda: scene.witness(skewed) and scene.stored)
    for _ in range(3):
        scene.witness(skewed)
        when = scene.random.choice([record.timestamp for record in scene.stored.values() if record.topic == skewed])
        scene.read(skewed, query=f"?timestamp={when}", start=when)
        scene.networks[0].cut()
        wait_for_records(scene.clients)

    assert [] == scene.violations()
