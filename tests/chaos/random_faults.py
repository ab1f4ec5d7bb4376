"""All faults in random order, on many clients of all types, for any length of time.

The seed decides the order of the faults, their targets and their duration. A run with the same seed is similar, not
identical, because timing also depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent

from tests.chaos.network import Conditions, Network
from tests.chaos.scene import Client, Producer, Scene, TransactionalProducer
from tests.support.kafka import retry
from tests.support.server import KILLED
from tests.support.waiting import wait_until

PAUSE_S = 0.2, 1.0  # between two faults
FAULT_S = 0.3, 2.0
CONDITIONS = Conditions(latency_s=0.05), Conditions(bytes_per_s=50_000), Conditions(slice_bytes=11)
MAX_NEW_CLIENTS = 3
LINES_SHARE = 0.25
RECORDS_PER_S = 20.0
MAX_PARTITIONS = 8
WITNESS_EVERY_S = 10.0
MAX_REFUSED = 3  # connections in a row without a fault: on a busy machine, Kafka may be slow

TOPICS = "plain", "committed", "compacted", "growing", "shrinking", "recreated", "forbidden", "truncated"
PLAIN, COMMITTED, COMPACTED, GROWING, SHRINKING, RECREATED, FORBIDDEN, TRUNCATED = TOPICS
CONFIGS = {
    PLAIN: {"compression_type": "gzip"},
    GROWING: {"compression_type": "snappy"},
    SHRINKING: {"compression_type": "lz4"},
    RECREATED: {"compression_type": "zstd"},
    COMPACTED: {
        "cleanup_policy": "compact",
        "segment_ms": "1000",
        "min_cleanable_dirty_ratio": "0.01",
        # The witness must read a record before compaction removes it, and a fault may delay the witness.
        "min_compaction_lag_ms": "60000",
    },
    TRUNCATED: {"min_insync_replicas": "1", "unclean_leader_election_enable": "true"},
}
LINES = PLAIN, COMMITTED, COMPACTED, GROWING  # lines have no topic IDs and leader epochs
STATUSES = {RECREATED: {404, 410}, FORBIDDEN: {404}}  # statuses that clients of these topics may get in addition to 503

Fault = Callable[["RandomFaults"], object]


class Budget(NamedTuple):
    """What a kind of fault may cost a client.

    Attributes:
        wait_s: how long records may be missing, in addition to the time in docs/faults.md.
        refused: how many connections in a row may get no stream, until that time is over.
        ended: how many streams the servers may end. Streams that break do not count.
        topics: only clients of these topics are affected; an empty tuple stands for all topics.
    """

    wait_s: float = 0.0
    refused: int = 0
    ended: int = 0
    topics: tuple[str, ...] = ()


class RandomFaults:
    """Injects faults into a scene, one after another."""

    def __init__(self, scene: Scene, seed: int, log: Callable[[str], object]) -> None:
        self.scene = scene
        self.cluster = scene.cluster
        self.order = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self._log = log
        self.occurred: Counter[Fault] = Counter()
        self._names: dict[str, str] = {}

    @staticmethod
    def settings(prefix: str) -> dict[str, Any]:
        """Return the settings that the scene needs: clients of JSON lines resume exactly on routes with a fixed start."""
        routes = {
            name: {"path": f"/from-the-start/{name}", "topics": [f"{prefix}-{name}"], "start": "earliest"}
            for name in LINES
        }
        return {"routes": routes}

    def prepare(self, prefix: str, clients: int) -> None:
        """Create a topic for each type of fault, and connect clients of all types."""
        for topic in TOPICS:
            producer = TransactionalProducer if topic == COMMITTED else Producer
            partitions, replicas = (1, 2) if topic == TRUNCATED else (2, 3)
            of = partitions, producer, RECORDS_PER_S, replicas
            self._names[topic] = self.scene.topic(f"{prefix}-{topic}", *of, **CONFIGS.get(topic, {}))
        for _ in range(clients):
            self._connect_client()
        wait_until(lambda: all(client.body if client.reads_lines else client.last_id for client in self.scene.clients))

    def run(self, seconds: float) -> None:
        """Inject faults for this many seconds, and each kind at least once. Then heal everything."""
        until = time.monotonic() + seconds
        watcher = gevent.spawn(self._witness_compacted)
        while len(self.occurred) < len(FAULTS) or time.monotonic() < until:
            least = min(self.occurred[kind] for kind in FAULTS)
            fault = self.order.choice([kind for kind in FAULTS if self.occurred[kind] == least])
            self._log(f"{until - time.monotonic():4.0f} s left: {fault.__name__.replace('_', ' ')}")
            budget = FAULTS[fault]
            topics = frozenset(self._names[topic] for topic in budget.topics)
            with self.scene.outage(budget.wait_s), self.scene.allowance(budget.refused, budget.ended, topics):
                fault(self)
            self.occurred[fault] += 1
            self._rest(PAUSE_S)
        watcher.kill()
        self.cluster.heal()
        for network in self.scene.networks:
            network.heal()

    def violations(self) -> list[str]:
        """Return the violations in what the clients received. The budgets of the faults are in the scene's allowances."""
        lossy = [self._names[TRUNCATED], self._names[COMPACTED]]
        return self.scene.violations(max_refused=MAX_REFUSED, excused=lossy, compacted=[self._names[COMPACTED]])

    def _witness_compacted(self) -> None:
        while True:
            self.scene.witness(self._names[COMPACTED])
            gevent.sleep(WITNESS_EVERY_S)

    def _rest(self, between_s: tuple[float, float] = FAULT_S) -> None:
        gevent.sleep(self.order.uniform(*between_s))

    def _connect_client(self) -> Client:
        if self.order.random() < LINES_SHARE:
            name = self.order.choice(LINES)
            promises = {"start": "earliest", "wire": "lines"}
            return self.scene.read(self._names[name], path=f"/from-the-start/{name}", **promises)
        topics = self.order.sample(TOPICS, self.order.choice([1, 1, 1, 2, 3]))
        query, about = self.order.choice([("", {}), ("?timestamp=0", {"start": 0})])
        statuses = frozenset().union({503}, *(STATUSES.get(topic, ()) for topic in topics))
        return self.scene.read(*(self._names[topic] for topic in topics), query=query, statuses=statuses, **about)

    # Kafka.

    def kill_a_broker(self) -> None:
        self._kill(self.order.choice(list(self.cluster.nodes)))

    def kill_the_controller(self) -> None:
        self._kill(self.cluster.controller())

    def _kill(self, node: int) -> None:
        self.cluster.nodes[node].kill()
        self._rest()
        self.cluster.start(node)
        wait_until(lambda: node in self.cluster.in_sync(self._names[PLAIN]))

    def move_leaders(self) -> None:
        for topic in (PLAIN, COMMITTED, GROWING):
            self.cluster.move_leader(self._names[topic], self.order.randrange(2))

    def truncate(self) -> None:
        """Truncate a log as test_kafka.py does: a replica misses records, then the leader dies and the replica leads."""
        name = self._names[TRUNCATED]
        wait_until(lambda: len(self.cluster.in_sync(name)) == 2)
        leader = self.cluster.leader(name)
        [replica] = self.cluster.in_sync(name) - {leader}
        self.cluster.nodes[replica].kill()
        wait_until(lambda: self.cluster.in_sync(name) == {leader})
        self._rest()
        self.scene.stop_producer(name)
        self.scene.witness(name)
        self.cluster.nodes[leader].kill()
        self.cluster.start(replica)
        wait_until(lambda: self.cluster.leader(name) == replica)
        self.scene.mark_truncated(name)
        self.scene.start_producer(name, 1, per_s=RECORDS_PER_S)
        self.cluster.start(leader)
        wait_until(lambda: leader in self.cluster.in_sync(self._names[PLAIN]))

    # Networks.

    def slow_network_to_kafka(self) -> None:
        self._set_conditions(list(self.cluster.networks.values()))

    def slow_network_to_clients(self) -> None:
        self._set_conditions(self.scene.networks)

    def _set_conditions(self, networks: list[Network]) -> None:
        conditions = self.order.choice(CONDITIONS)
        self._with_fault(networks, lambda network: setattr(network, "conditions", conditions))

    def half_open_network_to_kafka(self) -> None:
        self._with_fault(list(self.cluster.networks.values()), Network.stall)

    def half_open_network_to_clients(self) -> None:
        self._with_fault(self.scene.networks, Network.stall)

    def refusing_network_to_kafka(self) -> None:
        self._with_fault(list(self.cluster.networks.values()), Network.refuse)

    def refusing_network_to_clients(self) -> None:
        self._with_fault(self.scene.networks, Network.refuse)

    def _with_fault(self, networks: list[Network], fault: Callable[[Network], object]) -> None:
        victims = self.order.sample(networks, self.order.randint(1, len(networks)))
        for network in victims:
            fault(network)
        self._rest()
        for network in victims:
            network.heal()

    def broken_connections(self) -> None:
        every = [*self.cluster.networks.values(), *self.scene.networks]
        for _ in range(5):
            self.order.choice([Network.cut, Network.reset])(self.order.choice(every))
            self._rest((0.05, 0.5))

    # Servers and clients.

    def kill_a_worker(self) -> None:
        self._end_a_worker(signal.SIGKILL)

    def stop_a_worker(self) -> None:
        self._end_a_worker(signal.SIGTERM)

    def _end_a_worker(self, by: signal.Signals) -> None:
        server = self.order.choice(self.scene.servers)
        workers = server.workers()
        if by == signal.SIGKILL:
            server.expect(KILLED)
        for worker in workers:
            os.kill(worker, by)
        wait_until(lambda: not {*server.workers()} & {*workers} and server.workers())

    def restart_a_server(self) -> None:
        self.scene.replace_server(self.order.randrange(len(self.scene.networks))).stop()

    def new_clients(self) -> None:
        for _ in range(self.order.randint(1, MAX_NEW_CLIENTS)):
            self._connect_client()

    # Topics.

    def recreate_a_topic(self) -> None:
        self.scene.delete(self._names[RECREATED])
        if self.order.random() < 0.5:
            self._rest()
        self.scene.recreate(self._names[RECREATED], per_s=RECORDS_PER_S)

    def add_a_partition(self) -> None:
        name = self._names[GROWING]
        partitions = self.scene.producers[name].partitions + 1
        if partitions <= MAX_PARTITIONS:
            self.scene.grow(name, partitions)

    def retention(self) -> None:
        name = self._names[SHRINKING]
        ends = self.scene.witness(name)
        partition = self.order.randrange(2)
        first = int(ends[name, partition] * self.order.uniform(0.5, 1))
        retry(lambda: self.scene.kafka.drop_before(name, first, partition))

    def deny_access_to_a_topic(self) -> None:
        self.cluster.deny_access(self._names[FORBIDDEN])
        self._rest()
        self.cluster.restore_access(self._names[FORBIDDEN])


# A fault lasts up to FAULT_S, and a client tries to connect every 0.3 s.
NETWORK = Budget(wait_s=3, refused=15)
ELECTION = Budget(wait_s=10, refused=15)  # a broker's session ends after 2 s; then a leader is elected
FAULTS: dict[Fault, Budget] = {
    RandomFaults.kill_a_broker: ELECTION,
    RandomFaults.kill_the_controller: ELECTION,
    RandomFaults.move_leaders: Budget(),
    RandomFaults.truncate: ELECTION,
    RandomFaults.slow_network_to_kafka: NETWORK,
    RandomFaults.slow_network_to_clients: NETWORK,
    RandomFaults.half_open_network_to_kafka: NETWORK,
    RandomFaults.half_open_network_to_clients: NETWORK,
    RandomFaults.refusing_network_to_kafka: NETWORK,
    RandomFaults.refusing_network_to_clients: NETWORK,
    RandomFaults.broken_connections: Budget(wait_s=3, refused=5),
    RandomFaults.kill_a_worker: Budget(wait_s=3, refused=10),
    RandomFaults.stop_a_worker: Budget(wait_s=3, refused=10, ended=1),
    RandomFaults.restart_a_server: Budget(wait_s=3, refused=10, ended=1),
    RandomFaults.new_clients: Budget(),
    # The streams end with an error, and then with a new topic ID.
    RandomFaults.recreate_a_topic: Budget(wait_s=5, refused=40, ended=2, topics=(RECREATED,)),
    RandomFaults.add_a_partition: Budget(),
    RandomFaults.retention: Budget(),
    RandomFaults.deny_access_to_a_topic: Budget(wait_s=5, refused=40, ended=1, topics=(FORBIDDEN,)),
}
