"""Reads from the nearest replica of a real cluster. tests/kafka/test_replicas.py tests each case with fake brokers."""

from __future__ import annotations

from contextlib import closing

import pytest

from kafkasse.kafka.cursor import KafkaCursor
from kafkasse.kafka.partition_states import Decoding, Fetching
from kafkasse.log import Partition
from tests.chaos.cluster import NODES, rack
from tests.kafka.logs import open_log, take, values
from tests.support.kafka import Cluster
from tests.support.waiting import wait_until


@pytest.mark.long
def test_reads_from_the_nearest_replica(kafka, fresh_name):
    """While the replica in the rack of kafkasse is stopped, the cursor reads from the leader. It returns no record twice."""
    partition = Partition(fresh_name, 0)
    with closing(Cluster(kafka.bootstrap_servers)) as cluster:
        cluster.create(fresh_name, replicas=len(NODES))
        nearest = next(node for node in NODES if node != kafka.leader(fresh_name))
        settings = {"bootstrap_servers": kafka.bootstrap_servers}
        with (
            closing(open_log("", settings, client_rack=rack(nearest))) as log,
            closing(log.cursor({partition: 0}, tail=True)) as cursor,
        ):
            cluster.send(fresh_name, b"a")
            batches = take(cursor, 1)
            from_replica = node_of(cursor, partition)
            kafka.nodes[nearest].stop()
            cluster.send(fresh_name, b"b")
            batches += take(cursor, 1)
            from_leader = node_of(cursor, partition)
            kafka.start(nearest)
            wait_until(lambda: nearest in kafka.in_sync(fresh_name))
            cluster.send(fresh_name, b"c")
            batches += take(cursor, 1)

    assert (nearest, kafka.leader(fresh_name)) == (from_replica, from_leader)
    assert [b"a", b"b", b"c"] == values(batches)


def node_of(cursor: KafkaCursor, partition: Partition) -> int:
    state = cursor._core._partitions[partition]
    assert isinstance(state, Fetching | Decoding)
    return state.session.broker.node_id
