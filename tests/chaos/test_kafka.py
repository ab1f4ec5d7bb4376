"""Kafka faults: what clients see of each, and that they lose nothing unless a gap says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.chaos.network import Conditions
from tests.chaos.scene import Scene, connect_clients, has_record, wait_for_heartbeats, wait_for_records
from tests.history.wire import blocks
from tests.support.client import fetch
from tests.support.waiting import wait_until

NewScene = Callable[..., Scene]


def test_a_broker_is_killed(scene, kafka, topic, clients):
    """The leader dies. Clients receive heartbeats until another broker leads (3 s), then the records. No stream ends."""
    killed = kafka.leader(topic)

    with scene.outage():
        kafka.nodes[killed].kill()
        wait_for_heartbeats(clients)
        wait_until(lambda: kafka.leader(topic) not in (killed, -1))
    wait_for_records(clients)
    kafka.start(killed)
    wait_until(lambda: killed in kafka.in_sync(topic))

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_a_leader_moves(scene, kafka, topic, clients):
    """Another node becomes the leader. Clients do not notice."""
    for partition in (0, 1, 0, 1):
        kafka.move_leader(topic, partition)
        wait_for_records(clients)

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_a_rolling_restart_of_the_cluster(scene, kafka, topic, clients):
    """Each broker is shut down and restarted in turn. Clients wait while leaders move. No stream ends."""
    for node in kafka.nodes:
        with scene.outage():
            kafka.nodes[node].stop()
            kafka.start(node)
            wait_until(lambda node=node: node in kafka.in_sync(topic, 0) & kafka.in_sync(topic, 1))
        wait_for_records(clients)

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_the_controller_quorum_is_lost(scene, kafka, topic, clients):
    """Two of three nodes die, so no leader is elected and producers fail. Streams send heartbeats, then the records."""
    alive = kafka.leader(topic)
    dead = [node for node in kafka.nodes if node != alive]

    with scene.outage():
        for node in dead:
            kafka.nodes[node].kill()
        wait_for_heartbeats(clients)
        kafka.start(*dead)
        wait_until(lambda: -1 not in (kafka.leader(topic, 0), kafka.leader(topic, 1)))
    wait_for_records(clients)
    wait_until(lambda: kafka.in_sync(topic, 0) == kafka.in_sync(topic, 1) == {*kafka.nodes})

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_too_few_replicas_are_in_sync(new_scene, kafka, fresh_name):
    """With too few replicas in sync, producers fail. Stored records stay readable, and new ones follow later."""
    scene = new_scene()
    topic = scene.topic(fresh_name, 1, replicas=2)
    clients = connect_clients(scene, topic, partitions=1)
    [follower] = kafka.in_sync(topic) - {kafka.leader(topic)}

    with scene.outage():
        kafka.nodes[follower].kill()
        wait_until(lambda: len(kafka.in_sync(topic)) == 1)
        wait_for_heartbeats(clients)
        newcomer = scene.read(topic, query="?timestamp=0", start=0)
        wait_until(lambda: has_record(newcomer))
        kafka.start(follower)
        wait_until(lambda: len(kafka.in_sync(topic)) == 2)
    wait_for_records(scene.clients)

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_a_broker_is_stopped(scene, kafka, topic, clients):
    """The leader stops (SIGSTOP) with its connections open. Another one is elected; the old one continues later."""
    stopped = kafka.leader(topic)

    with scene.outage():
        os.kill(kafka.nodes[stopped].pid, signal.SIGSTOP)
        try:
            wait_for_heartbeats(clients)
            wait_until(lambda: kafka.leader(topic) not in (stopped, -1))
        finally:
            os.kill(kafka.nodes[stopped].pid, signal.SIGCONT)
    wait_for_records(clients)
    wait_until(lambda: stopped in kafka.in_sync(topic))

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_the_network_to_kafka_is_slow(scene, kafka, fresh_name, clients):
    """With latency, a low rate, slices of seven bytes, or packet loss, records only arrive later."""
    latency, slow, tiny = Conditions(latency_s=0.05), Conditions(bytes_per_s=50_000), Conditions(slice_bytes=7)
    for conditions in (latency, slow, tiny, Conditions(slice_bytes=1400, loss=0.1)):
        for network in kafka.networks.values():
            network.conditions = conditions
        wait_for_records(clients)
        newcomer = scene.read(fresh_name, query="?timestamp=0", start=0)
        wait_until(lambda newcomer=newcomer: has_record(newcomer))
    for network in kafka.networks.values():
        network.heal()

    assert [] == scene.violations(clients)


@pytest.mark.long
def test_connections_to_kafka_break(scene, kafka, clients):
    """All connections are closed or reset repeatedly. kafkasse reconnects, and clients do not notice."""
    for at in range(6):
        for network in kafka.networks.values():
            _ = network.cut() if at % 2 else network.reset()
        wait_for_records(clients)

    assert [] == scene.violations(clients)


@pytest.mark.long
@pytest.mark.parametrize("whole", [True, False], ids=["all nodes", "the leader alone"])
def test_the_network_to_kafka_is_half_open(new_scene, kafka, fresh_name, whole):
    """No data arrives. Open streams send heartbeats, new clients get 503, and the records arrive after healing."""
    scene = new_scene()
    topic = scene.topic(fresh_name, partitions=1)
    clients = connect_clients(scene, topic, partitions=1)
    faulty = list(kafka.networks.values()) if whole else [kafka.networks[kafka.leader(topic)]]

    with scene.outage():
        for network in faulty:
            network.stall()
        wait_for_heartbeats(clients)
        if whole:  # a client that needs only what the ring holds is still served while the metadata is fresh
            assert 503 == fetch(scene.networks[0].port, f"/{topic}?timestamp=0").status
        for network in faulty:
            network.heal()
    wait_for_records(clients)

    assert [] == scene.violations(clients)


def test_a_log_is_truncated(new_scene, kafka, fresh_name):
    """An unclean election removes records. Clients that received them get a gap, then the new records."""
    scene = new_scene()
    topic = scene.topic(fresh_name, 1, replicas=2, min_insync_replicas="1", unclean_leader_election_enable="true")
    clients = connect_clients(scene, topic, partitions=1)
    leader = kafka.leader(topic)
    [replica] = kafka.in_sync(topic) - {leader}

    kafka.nodes[replica].kill()
    wait_for_records(clients)
    scene.stop_producer(topic)
    ends = scene.witness(topic)
    wait_until(lambda: all(client.has_reached(ends, ends) for client in clients))
    with scene.outage():
        kafka.nodes[leader].kill()
        kafka.start(replica)
        wait_until(lambda: kafka.leader(topic) == replica)
    scene.mark_truncated(topic)
    scene.start_producer(topic, 1)
    wait_for_records(clients)
    kafka.start(leader)

    assert all(b"the log was truncated" in client.body for client in clients)
    gap_ids = [block.id or "" for client in clients for block in blocks(bytes(client.body)) if block.event == "gap"]
    assert gap_ids
    assert all('"leader_epoch"' in gap_id for gap_id in gap_ids)  # so that the next truncation would be noticed
    assert [] == scene.violations(clients, excused=[topic])


def test_kafkasse_loses_its_permission(scene, kafka, topic, clients):
    """Streams end with a 404, as for a topic that does not exist. When the permission returns, clients lose nothing."""
    with scene.outage():
        kafka.deny_access(topic)
        wait_until(lambda: all(404 in client.statuses for client in clients))
        kafka.restore_access(topic)
    wait_for_records(clients)

    assert all(b"event: error\n" in client.body and b'"status":404' in client.body for client in clients)
    assert [] == scene.violations(statuses={404}, max_ended=1)
