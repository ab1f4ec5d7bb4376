"""All faults in a random order, on clients of all kinds at once, for as long as one likes.

A seed gives the order of the faults, their victims and how long they last, so a run can be had again as far as the machine
plays along: what falls between two bytes is chance each time.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence

import gevent

from tests.chaos.network import Network, Weather
from tests.chaos.scene import Author, Reader, Scene, TransactionAuthor
from tests.support.kafka import patiently
from tests.support.waiting import eventually

CALM_S = 0.3, 2.0  # between faults
LASTS_S = 0.5, 4.0
WEATHERS = Weather(latency_s=0.05), Weather(bytes_per_s=50_000), Weather(slice_bytes=11)
COMERS_MAX = 3
RECORDS_PER_S = 20.0
PARTITIONS_MAX = 8
WITNESS_EVERY_S = 10.0

PLAIN, COMMITTED, COMPACTED, GROWING, SHRINKING, REMADE, FORBIDDEN, TRUNCATED = TOPICS = (
    "plain",
    "committed",
    "compacted",
    "growing",
    "shrinking",
    "remade",
    "forbidden",
    "truncated",
)
CONFIGS = {
    PLAIN: {"compression_type": "gzip"},
    GROWING: {"compression_type": "snappy"},
    SHRINKING: {"compression_type": "lz4"},
    REMADE: {"compression_type": "zstd"},
    COMPACTED: {
        "cleanup_policy": "compact",
        "segment_ms": "1000",
        "min_cleanable_dirty_ratio": "0.01",
        "min_compaction_lag_ms": "60000",  # the witness has to read it first, and a fault may keep it from that
    },
    TRUNCATED: {"min_insync_replicas": "1", "unclean_leader_election_enable": "true"},
}
STATUSES = {REMADE: {404, 410}, FORBIDDEN: {404}}  # that only readers of these topics may be answered, beside 503

Fault = Callable[["Storm"], object]


class Storm:
    """Faults on a scene, one after another.

    Args:
        scene: with two servers.
        seed: of the order of faults.
        say: told what happens.
    """

    def __init__(self, scene: Scene, seed: int, say: Callable[[str], object]) -> None:
        self.scene = scene
        self.cluster = scene.cluster
        self.order = random.Random(seed)  # noqa: S311 - chance that can be had again
        self._say = say
        self._names: dict[str, str] = {}

    def prepare(self, prefix: str, readers: int) -> None:
        """Make a topic for each kind of fault, and let clients of all kinds read them."""
        for topic in TOPICS:
            author = TransactionAuthor if topic == COMMITTED else Author
            partitions, replicas = (1, 2) if topic == TRUNCATED else (2, 3)
            of = partitions, author, RECORDS_PER_S, replicas
            self._names[topic] = self.scene.topic(f"{prefix}-{topic}", *of, **CONFIGS.get(topic, {}))
        for _ in range(readers):
            self._come()
        eventually(lambda: all(each.last_id for each in self.scene.readers))

    def rage(self, seconds: float, faults: Sequence[Fault] = ()) -> None:
        """One fault after the other, of all or of these, for so long; then all is healed."""
        until = time.monotonic() + seconds
        watching = gevent.spawn(self._watch)
        while time.monotonic() < until:
            fault = self.order.choice(faults or FAULTS)
            self._say(f"{until - time.monotonic():4.0f} s left: {fault.__name__.replace('_', ' ')}")
            fault(self)
            self._rest(CALM_S)
        watching.kill()
        self.cluster.heal()
        for way in self.scene.ways:
            way.heal()

    def violations(self) -> list[str]:
        """What is wrong with what the clients had."""
        lossy = [self._names[TRUNCATED], self._names[COMPACTED]]
        return self.scene.violations({503}, excused=lossy, compacted=[self._names[COMPACTED]])

    def _watch(self) -> None:
        while True:
            self.scene.witness(self._names[COMPACTED])
            gevent.sleep(WITNESS_EVERY_S)

    def _rest(self, between_s: tuple[float, float] = LASTS_S) -> None:
        gevent.sleep(self.order.uniform(*between_s))

    def _come(self) -> Reader:
        topics = self.order.sample(TOPICS, self.order.choice([1, 1, 1, 2, 3]))
        query, about = self.order.choice([("", {}), ("?timestamp=0", {"start": 0})])
        statuses = frozenset().union({503}, *(STATUSES.get(each, ()) for each in topics))
        return self.scene.read(*(self._names[each] for each in topics), query=query, statuses=statuses, **about)

    # Kafka.

    def kill_a_broker(self) -> None:
        self._kill(self.order.choice(list(self.cluster.nodes)))

    def kill_the_controller(self) -> None:
        self._kill(self.cluster.controller())

    def _kill(self, node: int) -> None:
        self.cluster.nodes[node].kill()
        self._rest()
        self.cluster.start(node)
        eventually(lambda: node in self.cluster.in_sync(self._names[PLAIN]))

    def move_leaders(self) -> None:
        for topic in (PLAIN, COMMITTED, GROWING):
            self.cluster.move_leader(self._names[topic], self.order.randrange(2))

    def truncate(self) -> None:
        """As test_kafka.py does it: the tail misses records, then the leader dies and the tail has to lead."""
        name = self._names[TRUNCATED]
        eventually(lambda: len(self.cluster.in_sync(name)) == 2)
        leader = self.cluster.leader(name)
        [behind] = self.cluster.in_sync(name) - {leader}
        self.cluster.nodes[behind].kill()
        eventually(lambda: self.cluster.in_sync(name) == {leader})
        self._rest()
        self.scene.retire(name)
        self.scene.witness(name)
        self.cluster.nodes[leader].kill()
        self.cluster.start(behind)
        eventually(lambda: self.cluster.leader(name) == behind)
        self.scene.truncated(name)
        self.scene.hire(name, 1, per_s=RECORDS_PER_S)
        self.cluster.start(leader)
        eventually(lambda: leader in self.cluster.in_sync(self._names[PLAIN]))

    # Networks.

    def slow_network_to_kafka(self) -> None:
        self._weather(list(self.cluster.networks.values()))

    def slow_network_to_clients(self) -> None:
        self._weather(self.scene.ways)

    def _weather(self, networks: list[Network]) -> None:
        weather = self.order.choice(WEATHERS)
        self._while_they(networks, lambda network: setattr(network, "weather", weather))

    def half_open_network_to_kafka(self) -> None:
        self._while_they(list(self.cluster.networks.values()), Network.stall)

    def half_open_network_to_clients(self) -> None:
        self._while_they(self.scene.ways, Network.stall)

    def refusing_network_to_kafka(self) -> None:
        self._while_they(list(self.cluster.networks.values()), Network.refuse)

    def refusing_network_to_clients(self) -> None:
        self._while_they(self.scene.ways, Network.refuse)

    def _while_they(self, networks: list[Network], are_ill: Callable[[Network], object]) -> None:
        victims = self.order.sample(networks, self.order.randint(1, len(networks)))
        for each in victims:
            are_ill(each)
        self._rest()
        for each in victims:
            each.heal()

    def broken_connections(self) -> None:
        every = [*self.cluster.networks.values(), *self.scene.ways]
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
        for worker in workers:
            os.kill(worker, by)
        eventually(lambda: not {*server.workers()} & {*workers} and server.workers())

    def restart_a_server(self) -> None:
        self.scene.replace(self.order.randrange(len(self.scene.ways))).stop()

    def clients_come(self) -> None:
        for _ in range(self.order.randint(1, COMERS_MAX)):
            self._come()

    # Topics.

    def make_a_topic_again(self) -> None:
        self.scene.delete(self._names[REMADE])
        if self.order.random() < 0.5:
            self._rest()
        self.scene.make_again(self._names[REMADE], per_s=RECORDS_PER_S)

    def add_a_partition(self) -> None:
        name = self._names[GROWING]
        partitions = self.scene.authors[name].partitions + 1
        if partitions <= PARTITIONS_MAX:
            self.scene.grow(name, partitions)

    def retention(self) -> None:
        name = self._names[SHRINKING]
        ends = self.scene.witness(name)
        partition = self.order.randrange(2)
        first = int(ends[name, partition] * self.order.uniform(0.5, 1))
        patiently(lambda: self.scene.kafka.drop_before(name, first, partition))

    def forbid_a_topic(self) -> None:
        self.cluster.forbid(self._names[FORBIDDEN])
        self._rest()
        self.cluster.forgive(self._names[FORBIDDEN])


FAULTS: tuple[Fault, ...] = (
    Storm.kill_a_broker,
    Storm.kill_the_controller,
    Storm.move_leaders,
    Storm.truncate,
    Storm.slow_network_to_kafka,
    Storm.slow_network_to_clients,
    Storm.half_open_network_to_kafka,
    Storm.half_open_network_to_clients,
    Storm.refusing_network_to_kafka,
    Storm.refusing_network_to_clients,
    Storm.broken_connections,
    Storm.kill_a_worker,
    Storm.stop_a_worker,
    Storm.restart_a_server,
    Storm.clients_come,
    Storm.make_a_topic_again,
    Storm.add_a_partition,
    Storm.retention,
    Storm.forbid_a_topic,
)
