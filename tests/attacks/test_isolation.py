"""Loads of one topic or client that could delay or block all others. Each attack has a server of its own."""

from __future__ import annotations

import itertools
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import gevent
import pytest

from kafkasse.feed.core.chunk import BLOCK_OFFSETS
from kafkasse.log import Partition
from kafkasse.records.position import IdWriter, stream_offset
from kafkasse.records.position.position import INT32_MAX
from kafkasse.tools.broker import EmbeddedBroker
from tests.attacks.batches import UNCOMPRESSED, encode_batch, produce_batch
from tests.attacks.conftest import Attack
from tests.attacks.crowd import Crowd, Visitor
from tests.attacks.memory import Load
from tests.attacks.sizes import SIZES, is_full
from tests.chaos.cluster import EmbeddedCluster
from tests.chaos.network import HOST, Conditions, Network
from tests.support.client import Client, fetch
from tests.support.examples import first_of
from tests.support.kafka import Cluster
from tests.support.ports import reserved_ports
from tests.support.server import Server
from tests.support.waiting import wait_until

CATCH_UPS = 8  # the server's max_catch_ups: few, so that few clients can use them all up
NORMAL = 2  # clients beside the slow readers
MAX_CONNECTIONS = 3  # to one broker: for data, metadata, and the bootstrap
DISTANCE_S = 0.1  # one way
TOPICS = 8
CHUNKS = 100  # of 2 MB


def records(count: int, size: int = 100) -> list[bytes]:
    return [b'{"n":%d,"x":"%b"}' % (n, b"x" * size) for n in range(count)]


def broker_port(broker: EmbeddedBroker) -> int:
    return int(broker.bootstrap_servers.rpartition(":")[2])


def complete(count: int) -> Callable[[Visitor], bool]:
    return lambda client: client.events >= count


# Readers that hold their slots.


def test_slow_readers_do_not_starve_catching_up(attack, cluster, fresh_name):
    """Readers that take 4 KB per 15 s do not keep a client with another address from catching up."""
    topic = cluster.create(fresh_name)
    values = records(2_000, 1_000)
    cluster.send(topic, *values)
    worker = attack(max_catch_ups=CATCH_UPS, write_timeout_s=120)
    path, port = f"/{topic}?timestamp=0", worker.port
    with ExitStack() as stack:
        slow = stack.enter_context(
            Crowd(port, [path] * SIZES.slow_readers, reads=False, receive_buffer=4096, distinct=True)
        )
        dripping = [gevent.spawn(_drip_4_kb, client) for client in slow.clients]
        wait_until(lambda: readers(worker.server).get("catching_up", 0) >= CATCH_UPS)
        began = time.monotonic()
        normal = stack.enter_context(Crowd(port, [path] * NORMAL, "X-Forwarded-For: 192.0.2.1"))
        normal.wait(complete(len(values)))
        worker.measured["caught_up_after_s"] = round(time.monotonic() - began, 1)
        gevent.killall(dripping)
        clients = SIZES.slow_readers + NORMAL
        worker.is_bounded(Load(streams=clients, stalled=SIZES.slow_readers, catching_up=clients))
    assert {len(values): NORMAL} == normal.events()


def _drip_4_kb(client: Visitor) -> None:
    while client.read(4096):
        gevent.sleep(15)


def test_a_client_reads_many_different_chunks(attack, cluster, fresh_name):
    """The worker keeps the newest ones."""
    topic = cluster.create(fresh_name)
    cluster.send(topic, *records(BLOCK_OFFSETS + 1, 2_000))
    worker = attack(shared_cache_s=60)
    for offset in range(CHUNKS):
        text = stream_offset.of(IdWriter({Partition(topic, 0): offset}, {topic: ""}))
        answer = fetch(worker.port, f"/{topic}?offset={text}")
        assert "public, max-age=60, stale-while-revalidate=10" == answer.headers["cache-control"]  # the chunk is kept
    worker.is_bounded(Load(streams=1, catching_up=1, finite=1))


def test_slow_clients_of_different_chunks(attack, cluster, fresh_name):
    """Each response keeps its chunk until its client has received it. Meanwhile, a stream receives a new record."""
    topic, live = cluster.create_all([f"{fresh_name}-{name}" for name in ("chunks", "live")])
    cluster.send(topic, *records(BLOCK_OFFSETS + 1, 2_000))
    worker, slow = attack(write_timeout_s=120), SIZES.slow_readers
    offsets = [stream_offset.of(IdWriter({Partition(topic, 0): at}, {topic: ""})) for at in range(slow)]
    paths = [f"/{topic}?offset={offset}" for offset in offsets]
    with (
        Client(worker.port, f"/{live}") as stream,
        Crowd(worker.port, paths, reads=False, receive_buffer=4096, distinct=True) as crowd,
    ):
        stream.ready()
        for client in crowd.clients:
            assert client.read(1000)
        cluster.send(live, b"{}")
        stream.events(1)
        worker.is_bounded(Load(streams=slow + 1, catching_up=slow, finite=slow))
        reading = [gevent.spawn(client.read_all) for client in crowd.clients]
        crowd.wait(lambda client: client.events >= BLOCK_OFFSETS - slow)
        gevent.killall(reading)


# Partitions without a leader.


@pytest.fixture(scope="module")
def nodes(processes: None) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as nodes:
        yield nodes


@pytest.mark.long
def test_a_partition_without_a_leader(nodes, attack, fresh_name):
    """Its topic opens, and delivers the records of its other partitions. Topics that are opened meanwhile open at once."""
    dark, lit = f"{fresh_name}-dark", [f"{fresh_name}-{n}" for n in range(10)]
    placed = {0: [3]} | {n: [1 + n % 2] for n in range(1, 12)}
    on_one = {topic: {"assignments": {0: [1]}, "configs": {"min.insync.replicas": "1"}} for topic in lit}
    topics = on_one | {dark: {"assignments": placed, "configs": {"min.insync.replicas": "1"}}}
    nodes.run(lambda admin: admin.create_topics(topics, wait_for_metadata=True))
    worker = attack(quiet=lit.pop(), kafka={"bootstrap_servers": nodes.bootstrap_servers[:2]})
    nodes.nodes[3].kill()
    wait_until(lambda: nodes.leader(dark) == -1)
    port = worker.port
    with Crowd(port, [f"/{dark}"]) as unlucky:
        blocked = [gevent.spawn(_retry_forever, port, dark) for _ in range(3)]
        began = time.monotonic()
        with Crowd(port, [f"/{topic}" for topic in lit]) as others:
            others.wait(lambda client: client.opened_after_s)
            worker.measured["others_open_after_s"] = round(time.monotonic() - began, 2)
        unlucky.wait(lambda client: client.opened_after_s)
        with closing(Cluster(nodes.bootstrap_servers[:2])) as producer:
            producer.send(dark, b'{"n":1}', partition=1)
        unlucky.wait(complete(1))
        gevent.killall(blocked)
    nodes.start(3)
    worker.is_bounded(Load(streams=20, feeds=11, partitions=24))


def _catch_up(worker: Attack, topic: str, count: int) -> None:
    """A client with another address reads the topic from the start."""
    with Crowd(worker.port, [f"/{topic}?timestamp=0"], "X-Forwarded-For: 192.0.2.1") as other:
        other.wait(complete(count))


def _retry_forever(port: int, topic: str) -> None:
    while True:
        with Client(port, f"/{topic}"):
            pass
        gevent.sleep(0.1)


# Many topics, and many combinations.


def test_many_topics(attack, broker, cluster, fresh_name):
    """50 live topics use one connection for data."""
    topics = cluster.create_all([f"{fresh_name}-{n}" for n in range(50)])
    worker, batch = attack(), encode_batch([(None, b'{"n":1}')], UNCOMPRESSED)
    with ExitStack() as stack:
        crowd = stack.enter_context(Crowd(worker.port, [f"/{topic}" for topic in topics]))
        crowd.wait(lambda client: client.opened_after_s)
        sent, began = 0, time.monotonic()
        while time.monotonic() < began + SIZES.seconds:
            for topic in topics:  # kafka-python would wait for the metadata of each topic
                produce_batch(cluster.bootstrap_servers, topic, 0, batch)
            sent += 1
            gevent.sleep(max(0.0, began + sent / 10 - time.monotonic()))  # 500 records/s
        crowd.wait(complete(sent))
        worker.measured["connections"] = worker.server.connections_to(broker_port(broker))
    worker.is_bounded(Load(streams=50, feeds=50, partitions=50))
    assert worker.measured["connections"] <= MAX_CONNECTIONS


def test_one_client_of_many_combinations_of_topics(attack, broker, cluster, fresh_name):
    """Every combination is served, and another client can still catch up."""
    topics = cluster.create_all([f"{fresh_name}-{n}" for n in range(TOPICS)])
    values = records(100)
    cluster.send(topics[0], *values)
    combinations = [
        f"/{','.join(combination)}"
        for size in range(1, TOPICS + 1)
        for combination in itertools.combinations(topics, size)
    ][: SIZES.combinations]
    worker = attack(max_catch_ups=CATCH_UPS)
    with Crowd(worker.port, combinations) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        _catch_up(worker, topics[0], len(values))
        worker.measured["connections"] = worker.server.connections_to(broker_port(broker))
        count = len(combinations)
        worker.is_bounded(Load(streams=count, catching_up=1, feeds=count, partitions=count * TOPICS))
    assert worker.measured["connections"] <= MAX_CONNECTIONS + 4  # idle connections that the worker keeps


# Event IDs that did not join the shared feed.


@pytest.mark.parametrize("epoch", ["", f',"leader_epoch":{INT32_MAX}'], ids=["KafkaSSE", "forged leader epoch"])
def test_many_clients_with_unusual_ids(attack, broker, cluster, fresh_name, epoch):
    """They join the feed of an idle topic, and another client can catch up. Otherwise, each would keep a slot."""
    topic, values = cluster.create(fresh_name, 2), records(100)
    worker = attack(max_catch_ups=CATCH_UPS)
    at = f'"topic":"{topic}","partition"'
    last_id = f'Last-Event-ID: [{{{at}:0,"offset":{len(values)}{epoch}}},{{{at}:1,"offset":0}}]'
    with ExitStack() as stack:
        first = stack.enter_context(Client(worker.port, f"/{topic}")).ready()
        cluster.send(topic, *values)
        first.events(len(values))  # now the feed knows the leader epoch
        crowd = stack.enter_context(Crowd(worker.port, [f"/{topic}"] * SIZES.clients, last_id))
        crowd.wait(lambda client: client.opened_after_s)
        wait_until(lambda: readers(worker.server).keys() == {"parked"})
        _catch_up(worker, topic, len(values))
        cluster.send(topic, *records(10))
        crowd.wait(complete(10))
        worker.measured["connections"] = worker.server.connections_to(broker_port(broker))
        worker.is_bounded(Load(streams=SIZES.clients + 2, catching_up=1, partitions=2))
    assert {10: SIZES.clients} == crowd.events()
    assert worker.measured["connections"] <= MAX_CONNECTIONS + 4


def readers(server: Server) -> dict[str, int]:
    metrics = fetch(server.port, "/-/metrics").body.decode()
    samples = re.findall(r'^kafkasse_stream_states\{.*state="(.*?)".*\} (.*)', metrics, re.MULTILINE)
    return {state: int(float(count)) for state, count in samples if float(count)}


@pytest.mark.parametrize("id_type", first_of("both", "timestamp"))
def test_clients_that_resume_with_timestamps_share_the_feed(attack, cluster, fresh_name, id_type):
    """Records to clients that have resumed cost the same CPU time as records to new clients."""
    topic = cluster.create(fresh_name, 3)
    with Client(attack(id_type=id_type).server.port, f"/{topic}") as client:
        client.ready()
        cluster.send(topic, *records(3), partition=1)
        client.events(3)
        last_id = client.last_id
    worker = attack(id_type=id_type, idle_feed_timeout_s=60)
    costs = {}
    for name, fields in {"new": (), "resumed": (f"Last-Event-ID: {last_id}",)}.items():
        with Crowd(worker.port, [f"/{topic}"] * SIZES.clients, *fields) as crowd:
            crowd.wait(lambda client: client.opened_after_s)
            before = [client.events for client in crowd.clients]
            gevent.sleep(0.5)
            began = worker.server.cpu_s()
            for value in records(SIZES.sent):
                cluster.send(topic, value, partition=2)
            crowd.wait(complete(max(before) + SIZES.sent))
            costs[name] = worker.server.cpu_s() - began
            worker.measured[f"{name}_cpu_s"] = round(costs[name], 2)
    worker.is_bounded(Load(streams=SIZES.clients, partitions=3))
    assert costs["resumed"] < 2 * costs["new"] + 0.05


# Lookups.


@pytest.fixture
def far_away(processes: None) -> Iterator[tuple[EmbeddedBroker, Network]]:
    """A broker, and the network through which everybody connects to it."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_ports("kafka"))["kafka"]
        network = Network(port)
        stack.callback(network.close)
        address = {"advertised.listeners": f"PLAINTEXT://{HOST}:{network.port}"}
        yield stack.enter_context(EmbeddedBroker(port, settings=address)), network


def test_lookups_of_unknown_topics(far_away, attack, fresh_name):
    """While Kafka is far away, hundreds of requests for random names do not delay the opening of an existing topic."""
    broker, network = far_away
    cluster = Cluster(broker.bootstrap_servers)
    quiet, topic = cluster.create(f"quiet-{fresh_name}"), cluster.create(fresh_name)
    cluster.close()
    worker = attack(quiet=quiet, kafka={"bootstrap_servers": broker.bootstrap_servers})
    network.conditions = Conditions(latency_s=DISTANCE_S)
    names = [f"/unknown-{n}" for n in range(SIZES.lookups)]
    with Crowd(worker.port, names) as unknown:
        gevent.sleep(0.1)
        with Crowd(worker.port, [f"/{topic}"]) as existing:
            existing.wait(lambda client: client.opened_after_s)
            worker.measured["open_after_s"] = round(existing.clients[0].opened_after_s, 2)
        unknown.wait(lambda client: client.status)
    worker.is_bounded(Load(streams=1))
    assert worker.measured["open_after_s"] < len(names) * DISTANCE_S  # one after another would take twice as long
    assert {404: len(names)} == unknown.statuses()


# The return of a whole fleet.


@pytest.mark.parametrize("fleet", SIZES.fleets)
def test_a_fleet_returns_to_an_empty_ring(attack, cluster, fresh_name, fleet):
    """Each client missed some records while the server restarted. Each receives them; none gets 503."""
    topic, missed = cluster.create(fresh_name, 3), 300
    limit = {} if is_full() else {"max_catch_ups": CATCH_UPS, "kafka_timeout_s": 1}
    with Client(attack().server.port, f"/{topic}") as client:
        last_id = client.ready().last_id
    cluster.send(topic, *records(missed, 1_000))
    worker = attack(**limit)
    began = time.monotonic()
    with Crowd(worker.port, [f"/{topic}"] * fleet, f"Last-Event-ID: {last_id}", distinct=True) as crowd:
        crowd.wait(complete(missed))
        worker.measured["all_after_s"] = round(time.monotonic() - began, 1)
        worker.is_bounded(Load(streams=fleet, stalled=fleet, catching_up=fleet, partitions=3))
    assert {missed: fleet} == crowd.events()


def test_many_clients_connect_at_once(attack, cluster, fresh_name):
    """Their requests, and the records that they receive, are handled over several turns of the event loop."""
    topic = cluster.create(fresh_name)
    worker = attack()
    _allow_descriptors(SIZES.connecting + 1_000)
    with Crowd(worker.port, [f"/{topic}"] * SIZES.connecting) as crowd:
        crowd.wait(lambda client: client.opened_after_s)
        for value in records(10):
            cluster.send(topic, value)
        crowd.wait(complete(10))
    worker.is_bounded(Load(streams=SIZES.connecting))
    assert {10: SIZES.connecting} == crowd.events()


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
