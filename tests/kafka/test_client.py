"""client.py's use of kafka-python: the private names that it needs, and the cleanup after a failed bootstrap."""

from __future__ import annotations

import gc
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID

import gevent
import pytest
from gevent.server import StreamServer
from kafka import KafkaAdminClient
from kafka.cluster import ClusterMetadata
from kafka.errors import KafkaProtocolError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.schemas import StructField

import kafkasse
from kafkasse.errors import KafkaUnavailable
from kafkasse.kafka import client
from kafkasse.kafka.client import Broker, Client
from kafkasse.kafka.log import KafkaLog
from tests.kafka.fake_broker import API_VERSIONS, HOST, FakeBroker, FakeCluster, FakeTopic
from tests.kafka.logs import at, open_log
from tests.support.waiting import TIMEOUT_S, wait_until

SIGNATURES = {
    StructField.compiled_decode_from: "self version compact tagged data_class",
    KafkaAdminClient._list_partition_offsets_request: "partition_timestamps isolation_level_int",
    KafkaNetClient.__init__: "self net manager configs",
    KafkaNetSocket.connect: "self net addrinfo socket_options timeout_at",
    KafkaNetSocket.dns_lookup: "self host port raise_error",
    KafkaConnectionManager.__init__: "self net configs",
    KafkaConnectionManager._build_transport: "self node timeout_at",
    KafkaConnectionManager._connect: "self node conn reset_backoff_on_connect timeout_at",
    KafkaConnectionManager.least_loaded_node: "self",
    KafkaConnectionManager.run: "self coro args",
    KafkaConnection.__init__: "self net node_id broker_version_data configs",
    KafkaConnection.connection_made: "self transport",
    KafkaConnection.initialize: "self timeout_at",
    KafkaTCPTransport.__init__: "self net sock host",
    KafkaTCPTransport._sock_recv: "self",
    KafkaSSLTransport._sock_recv: "self",
    KafkaSSLTransport.handshake: "self",
    KafkaSSLTransport._build_ssl_context: "config",
    NetworkSelector.wait_read: "self fileobj timeout_at",
    NetworkSelector.wait_write: "self fileobj timeout_at",
    NetworkSelector.cancel: "self task",
}
OVERRIDES = {
    client._NetClient: {"__init__"},
    client._ConnectionManager: {"__init__", "_connect", "_build_transport", "least_loaded_node"},
    client._TcpTransport: {"_sock_recv"},
    client._TlsTransport: {"_sock_recv", "handshake"},
}
PACKAGE = Path(kafkasse.__file__).parent
PRIVATE_USE = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-z]\w*")
KAFKA_IMPORT = re.compile(r"^\s*(?:from|import) kafka\b", re.MULTILINE)
WITHOUT_KAFKA = ("config", "feed", "frame", "position", "server", "web", "*.py")


def test_private_functions_have_the_expected_parameters():
    """This test fails for a version of kafka-python that changes a function which client.py calls or overrides."""
    assert SIGNATURES == {function: " ".join(inspect.signature(function).parameters) for function in SIGNATURES}


@pytest.mark.parametrize("subclass", OVERRIDES, ids=lambda subclass: subclass.__name__)
def test_subclasses_override_only_what_they_mean_to(subclass):
    """An accidental override could break kafka-python, so all other names of our subclasses must be new."""
    inherited = {name for base in subclass.__mro__[1:-1] for name in vars(base)}
    our_names = {name for name, value in vars(subclass).items() if callable(value) or not name.startswith("__")}

    assert OVERRIDES[subclass] == our_names & inherited


METADATA_VERSIONS = range(1 + MetadataResponse.max_version)


def metadata_response(topics: int) -> MetadataResponse:
    topic_class = MetadataResponse.MetadataResponseTopic
    partitions = [
        topic_class.MetadataResponsePartition(
            error_code=0, partition_index=at, leader_id=1, leader_epoch=5, replica_nodes=[1, 2], isr_nodes=[1]
        )
        for at in range(2)
    ]
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="b", port=9092, rack="r")
    entries = [
        topic_class(error_code=0, name=f"t{at}", topic_id=UUID(int=at), partitions=partitions) for at in range(topics)
    ]
    return MetadataResponse(brokers=[broker], cluster_id="c", controller_id=1, topics=entries)


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_decodes_metadata_as_kafka_python_does(version):
    body = metadata_response(3).encode(version=version)

    brokers, topics = client._EncodedMetadata(version, body).decode()

    expected = MetadataResponse.decode(body, version=version)
    assert expected.brokers == brokers
    assert expected.topics == [*topics]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster()) as running:
        running.topics["t"] = FakeTopic([0])
        yield running


@pytest.fixture
def opened(cluster: FakeCluster) -> Iterator[Client]:
    with closing(Client({"bootstrap_servers": cluster.bootstrap_servers}, 5.0)) as opened:
        yield opened


def test_a_long_list_of_topics_is_decoded_over_several_turns(monkeypatch, cluster, opened):
    """A cluster may have thousands of topics, and the list of all of them must not block the event loop."""
    turns: list[bool] = []
    monkeypatch.setattr(client, "take_turn", lambda urgent: turns.append(urgent))
    cluster.topics |= {f"t{at}": FakeTopic([0]) for at in range(500)}

    assert 501 == len(opened.metadata(None)) == len(turns)


@pytest.mark.parametrize("body", [b"", bytes(4) + b"\xff" * 60], ids=["too short", "invalid"])
def test_metadata_that_cannot_be_decoded_is_an_error_of_kafka(monkeypatch, opened, body):
    """Clients receive status 503 instead of 500, as for other errors of a broker."""
    monkeypatch.setattr(client._MetadataClass, "decode", lambda self, data: client._EncodedMetadata(9, body))

    with pytest.raises(KafkaProtocolError):
        opened.metadata(None)


def test_detached_socket_belongs_to_the_caller(cluster, opened):
    """A socket from connect() stays open when kafka-python's client closes."""
    sock, versions = opened.connect(Broker(0, "127.0.0.1", cluster.brokers[0].port))
    opened.close()

    assert (0, 13) == versions
    assert sock.getpeername() == ("127.0.0.1", cluster.brokers[0].port)
    sock.close()


def test_only_client_uses_private_names():
    """Private names of kafka-python, and of the package's other modules, stay out of all other modules."""
    modules = [path for path in (PACKAGE / "kafka").glob("*.py") if path.name != "client.py"]

    uses = {path.name: names for path in modules if (names := PRIVATE_USE.findall(path.read_text()))}

    assert {"batches.py": ["._crecords"]} == uses  # aiokafka's compiled decoder


def test_only_this_package_imports_kafka_python():
    """No other part of the web process depends on kafka-python."""
    modules = [file for part in WITHOUT_KAFKA for file in PACKAGE.glob(part if "*" in part else f"{part}/**/*.py")]

    assert len(modules) > len(WITHOUT_KAFKA)
    assert [] == [file.name for file in modules if KAFKA_IMPORT.search(file.read_text())]


def test_failed_bootstrap_leaves_no_descriptors(caplog):
    """A server whose Kafka is unavailable for hours must not run out of descriptors."""
    caplog.set_level(logging.CRITICAL, "kafka")  # log records would keep errors, and through them sockets
    counts = []
    with closing(open_log("127.0.0.1:1", kafka_timeout_s=0.05)) as log:
        for _ in range(3):
            with pytest.raises(KafkaUnavailable):
                log.describe(["t"])
            gc.collect()  # kafka-python does not close sockets that never connected
            counts.append(len(list(Path("/proc/self/fd").iterdir())))

    assert counts[0] >= counts[-1]


def test_waiting_callers_share_a_failed_bootstrap(monkeypatch):
    """While Kafka is unavailable, ten clients that connect at the same time wait for one timeout, not for ten."""
    attempts = []
    bootstrap = Client._bootstrap
    monkeypatch.setattr(Client, "_bootstrap", lambda self: attempts.append(1) or bootstrap(self))
    with closing(open_log("127.0.0.1:1", kafka_timeout_s=0.5)) as log:
        calls = [gevent.spawn(log.describe, ["t"]) for _ in range(10)]
        gevent.joinall(calls)

    assert {KafkaUnavailable} == {type(call.exception) for call in calls}
    assert 1 == len(attempts)


UNPATCHED = """
import sys
from threading import Event
from types import SimpleNamespace

import gevent

from kafkasse.kafka.client import Client
from kafkasse.process.loop_thread import loop_thread

called, answer = Event(), Event()

def block(*_):
    called.set()
    answer.wait(60)
    raise TimeoutError

def call():
    try:
        client.metadata([])
    except TimeoutError:
        return "timeout"

client = Client({}, timeout_s=60)
client._bootstrap = block
if "bootstrapped" in sys.argv:
    client._admin = SimpleNamespace(_manager=SimpleNamespace(run=block))
caller = loop_thread.run(lambda: gevent.spawn(call))
called.wait(60)
print(loop_thread.run(caller.ready))
answer.set()
print(loop_thread.run(caller.get))
"""


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [[], ["bootstrapped"]])
def test_a_cluster_that_does_not_answer_blocks_no_other_reads(arguments):
    """Also under servers with threads, where kafka-python blocks the thread that calls it."""
    process = subprocess.run(
        [sys.executable, "-c", UNPATCHED, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )

    assert ["False", "timeout"] == process.stdout.split()


def test_client_bootstraps_when_the_cluster_is_back(cluster):
    with closing(open_log(cluster.bootstrap_servers, kafka_timeout_s=0.5)) as log:
        cluster.brokers[0].close()
        with pytest.raises(KafkaUnavailable):
            log.describe(["t"])
        cluster.restart(0)

        assert ["t"] == list(log.describe(["t"]))


def test_brokers_with_new_addresses_are_found_through_the_bootstrap_servers(monkeypatch, cluster):
    """For example, all containers of a cluster were replaced, but the bootstrap server has kept its name.

    This does not depend on kafka-python's refresh loop, which ends at the first exception that escapes from a login.
    """
    monkeypatch.setattr(ClusterMetadata, "start_refresh_loop", lambda self: None)
    cluster.topics["t"].offset_range = 0, 7
    with closing(open_log(cluster.bootstrap_servers, kafka_timeout_s=0.5)) as log:
        for _ in range(2):
            broker = FakeBroker(cluster, 0)  # at a new address
            cluster.advertised = HOST, broker.port
            wait_until(lambda: is_described(log))
            assert 7 == log.offset_ranges([at(0)])[at(0)].end  # at once
            broker.close()


def test_a_broker_that_could_not_be_reached_is_not_asked_for_metadata():
    """Otherwise, while one of several brokers hangs, some new clients would wait for a timeout and get a 503."""
    with closing(FakeCluster(brokers=2)) as cluster:
        cluster.topics["t"] = FakeTopic([1])
        with closing(open_log(cluster.bootstrap_servers, kafka_timeout_s=0.5)) as log:
            log.describe(["t"])
            cluster.brokers[1].close()
            cluster.restart(1)
            cluster.brokers[1].silent.add(API_VERSIONS)
            with suppress(KafkaUnavailable):
                log.offset_ranges([at(0)])
            wait_until(lambda: not log._client._admin._manager.connection_delay(1))
            described = [gevent.spawn(log.describe, ["t"]) for _ in range(10)]
            gevent.joinall(described)

    assert [["t"]] * 10 == [list(call.value or ()) for call in described]


def test_a_broker_that_accepts_and_closes_connections_is_not_flooded(cluster):
    """For example, a load balancer whose brokers are down. kafka-python itself would not back off between two attempts."""
    port, accepted = cluster.brokers[0].port, []
    with closing(open_log(cluster.bootstrap_servers)) as log:
        log.describe(["t"])
        cluster.brokers[0].close()
        with closing(StreamServer((HOST, port), lambda sock, _: accepted.append(sock.close()))) as server:
            server.start()
            with pytest.raises(KafkaUnavailable):
                log.describe(["t"])

    assert 1 < len(accepted) < 25


def is_described(log: KafkaLog) -> bool:
    with suppress(KafkaUnavailable):
        return "t" in log.describe(["t"])
    return False
