"""Kafka fails, in each way that it can: what clients see of it, and that they lose nothing but what they are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.network import Weather
from tests.chaos.scene import Scene, beat, go_on, moves, unbroken, watch
from tests.support.client import ask
from tests.support.waiting import eventually

Stage = Callable[..., Scene]


def test_nothing_happens(stage: Stage, fresh_name: str) -> None:
    """The scene by itself: nobody has anything to complain of."""
    scene = stage()
    readers = watch(scene, scene.topic(fresh_name))

    go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations()


def test_a_broker_is_killed(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """The leader dies: heartbeats until another leads, some 3 s; then the records. No stream ends."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)
    dead = nodes.leader(topic)

    nodes.nodes[dead].kill()
    beat(readers)
    eventually(lambda: nodes.leader(topic) not in (dead, -1))
    go_on(readers)
    nodes.start(dead)
    eventually(lambda: dead in nodes.in_sync(topic))

    assert unbroken(readers)
    assert [] == scene.violations()


def test_a_leader_moves(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """Another node leads: nothing is to be seen of it."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    for partition in (0, 1, 0, 1):
        nodes.move_leader(topic, partition)
        go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations()


def test_the_controller_is_lost(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """The controller dies, and with it no leader of the topic: the records go on, those with a new leader 3 to 6 s late."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)
    dead = nodes.controller()

    nodes.nodes[dead].kill()
    eventually(lambda: nodes.controller() not in (dead, -1))
    go_on(readers)
    nodes.start(dead)

    assert unbroken(readers)
    assert [] == scene.violations()


def test_the_network_to_kafka_is_slow(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """Late, thin or in slices of seven bytes: records come later, by as much as the network needs."""
    scene = stage()
    readers = watch(scene, scene.topic(fresh_name))

    for weather in (Weather(latency_s=0.05), Weather(bytes_per_s=50_000), Weather(slice_bytes=7)):
        for network in nodes.networks.values():
            network.weather = weather
        go_on(readers)
        late = scene.read(fresh_name, query="?timestamp=0", start=0)
        eventually(lambda late=late: moves(late))
    for network in nodes.networks.values():
        network.heal()

    assert unbroken(readers)
    assert [] == scene.violations()


def test_connections_to_kafka_break(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """All at once, closed or reset, twenty times: kafkasse connects again, and clients see nothing of it."""
    scene = stage()
    readers = watch(scene, scene.topic(fresh_name))

    for at in range(20):
        for network in nodes.networks.values():
            _ = network.cut() if at % 2 else network.reset()
        go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations()


@pytest.mark.parametrize("whole", [True, False], ids=["all nodes", "the leader alone"])
def test_the_network_to_kafka_is_half_open(stage: Stage, nodes: EmbeddedCluster, fresh_name: str, whole: bool) -> None:
    """Nothing comes, and nobody says why: heartbeats, 503 for who comes, and the records when it is healed."""
    scene = stage()
    topic = scene.topic(fresh_name, partitions=1)
    readers = watch(scene, topic)
    ill = list(nodes.networks.values()) if whole else [nodes.networks[nodes.leader(topic)]]

    for network in ill:
        network.stall()
    beat(readers)
    if whole:  # who needs no more than what the ring holds is let in for as long as the topic was just seen
        assert 503 == ask(scene.ways[0].port, f"/{topic}?timestamp=0").status
    for network in ill:
        network.heal()
    go_on(readers)

    assert unbroken(readers)
    assert [] == scene.violations()


def test_a_log_is_truncated(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """An unclean election takes records back: clients that had them are told by a gap, and go on with the new ones."""
    scene = stage()
    topic = scene.topic(fresh_name, 1, replicas=2, min_insync_replicas="1", unclean_leader_election_enable="true")
    readers = watch(scene, topic)
    leader = nodes.leader(topic)
    [behind] = nodes.in_sync(topic) - {leader}

    nodes.nodes[behind].kill()
    go_on(readers)
    scene.retire(topic)
    ends = scene.witness(topic)
    eventually(lambda: all(each.has_reached(ends) for each in readers))
    nodes.nodes[leader].kill()
    nodes.start(behind)
    eventually(lambda: nodes.leader(topic) == behind)
    scene.truncated(topic)
    scene.hire(topic, 1)
    go_on(readers)
    nodes.start(leader)

    assert all(b"the log was truncated" in each.body for each in readers)
    assert unbroken(readers)
    assert [] == scene.violations(excused=[topic])


def test_kafkasse_may_no_longer_read(stage: Stage, nodes: EmbeddedCluster, fresh_name: str) -> None:
    """Its permission is taken: streams end with a 404, as if there were no topic. Given again, clients lose nothing."""
    scene = stage()
    topic = scene.topic(fresh_name)
    readers = watch(scene, topic)

    nodes.forbid(topic)
    eventually(lambda: all(404 in each.statuses for each in readers))
    nodes.forgive(topic)
    go_on(readers)

    assert all(b"event: error\n" in each.body and b'"status":404' in each.body for each in readers)
    assert [] == scene.violations(statuses={404})
