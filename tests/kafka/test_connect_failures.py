"""Kafka cannot be reached: the log contains one line with the address, the reason, and what to check."""

from __future__ import annotations

import socket as standard_socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from gevent import socket, spawn
from gevent.event import Event
from gevent.server import StreamServer
from kafka.errors import KafkaError

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError, KafkaUnavailable
from kafkasse.kafka.client import Broker
from kafkasse.kafka.log import KafkaLog
from kafkasse.settings import KafkaSettings
from tests.kafka.fake_broker import HOST, FakeCluster, FakeTopic
from tests.kafka.logs import DEFAULTS, open_log
from tests.support.waiting import wait_until

TIMEOUT_S = 1.0
MAX_REQUEST_BYTES = 65_536


@pytest.fixture
def refused() -> Iterator[str]:
    """An address at which no process listens. The socket prevents other tests from listening there."""
    with closing(socket.socket()) as reserved:
        reserved.bind((HOST, 0))
        yield f"{HOST}:{reserved.getsockname()[1]}"


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], str]]:
    """Starts a server that answers every request with these bytes and closes the connection. Returns its address.

    Without bytes, it keeps the connection, and does not respond.
    """
    servers = []

    def start(response: bytes | None) -> str:
        def respond(sock: socket.socket, _: object) -> None:
            while response is None and sock.recv(MAX_REQUEST_BYTES):
                pass
            if response is not None:
                sock.recv(MAX_REQUEST_BYTES)
                sock.sendall(response)

        servers.append(StreamServer((HOST, 0), respond))
        servers[-1].start()
        return f"{HOST}:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Callable[..., None]:
    """Opens a log, which fails, and checks that a server at its default level logs one line that contains these texts."""

    def check(servers: Any, *texts: str) -> None:
        def is_logged() -> bool:
            caplog.clear()
            with pytest.raises(KafkaUnavailable) as error:
                log.describe(["t"])
            assert HOST not in str(error.value.problem())
            return all(text in line(caplog) for text in texts)

        with closing(open_log(servers, kafka_timeout_s=TIMEOUT_S)) as log:
            wait_until(is_logged)  # on a busy machine, the timeout may interrupt an attempt to connect

    return check


def line(caplog: pytest.LogCaptureFixture) -> str:
    [message] = {record.getMessage() for record in caplog.records if record.name.startswith("kafkasse.kafka")}
    return message


def resolve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DNS know only this machine."""
    original = standard_socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host.endswith(".example"):
            raise standard_socket.gaierror(standard_socket.EAI_NONAME, "Name or service not known")
        return original(host, *rest, **options)

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)


def test_nothing_listens(logs, refused, caplog):
    logs(refused, f"{refused}: Connection refused.", "check kafka.bootstrap_servers")

    assert "is not set" not in line(caplog)


def test_bootstrap_servers_are_not_set(refused, monkeypatch, caplog):
    """The log says so, because nobody chose the default address."""
    monkeypatch.setattr("kafkasse.kafka.client.BOOTSTRAP_DEFAULT", refused)  # a broker may listen at the real one
    settings = KafkaSettings(**{**DEFAULTS, "kafka_timeout_s": TIMEOUT_S})
    with closing(KafkaLog(settings, Config.load({}).kafka_settings())) as log, pytest.raises(KafkaUnavailable):
        log.describe(["t"])

    assert "KAFKASSE_BOOTSTRAP_SERVERS is not set; trying localhost:9092." in line(caplog)


def test_several_servers(logs, refused, monkeypatch):
    """Each address is logged with its own reason."""
    resolve_nothing(monkeypatch)
    servers = [refused, "kafka.example:9092"]

    logs(servers, f"{refused}: Connection refused.", f"{servers[1]}: The host name cannot be resolved (DNS).")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (b"", "The listener closed the connection. It may expect TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "The response is not Kafka's, so another program uses this port"),
        (None, "The listener accepted the connection, but did not respond."),
    ],
)
def test_another_server_listens(logs, serve, response, expected):
    """The server has another protocol, or is a firewall or a port forwarder in front of a broker that is down."""
    server = serve(response)

    logs(server, f"{server}: {expected}")


@pytest.mark.parametrize("host", ["kafka.example", HOST])
def test_brokers_announce_an_address_that_cannot_be_reached(host, refused, monkeypatch, caplog):
    """The bootstrap server answers, but the metadata contains other addresses. This is common with containers."""
    resolve_nothing(monkeypatch)
    port = int(refused.rpartition(":")[2])
    cluster = FakeCluster()
    cluster.topics["t"] = FakeTopic([0])
    cluster.advertised = (host, port)
    with closing(cluster), closing(open_log(cluster.bootstrap_servers)) as log, pytest.raises(KafkaUnavailable):
        log.describe(["t"])

    assert f"{host}:{port}: " + ("Connection refused." if host == HOST else "The host name cannot") in line(caplog)
    assert "advertised.listeners" in line(caplog)


def test_the_password_of_a_proxy_is_not_logged(refused, caplog):
    """kafka-python shows the URL of a proxy that it cannot parse."""
    settings = {"proxy_url": "socks5://ada:hunter2@[::1"}
    with closing(open_log(refused, settings)) as log, pytest.raises(ConfigurationError):
        log.describe(["t"])

    assert "proxy_url" in line(caplog)
    assert "hunter2" not in line(caplog)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses a connection."""
    with closing(socket.socket()) as server:
        server.bind((HOST, 0))
        server.listen(0)  # with a backlog of 0, the system ignores all connections after the first
        with closing(socket.create_connection(server.getsockname())):
            yield server.getsockname()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with closing(FakeCluster()) as cluster:
        cluster.topics["t"] = FakeTopic([0])
        yield cluster


def test_if_an_address_of_a_name_does_not_answer_the_others_are_tried(monkeypatch, cluster, silent):
    """The name of a load balancer has an address in each zone, and a zone has failed."""
    addresses = [silent, (HOST, cluster.brokers[0].port)]
    info = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for address in addresses]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: info)
    with closing(open_log("kafka.example:9092", kafka_timeout_s=TIMEOUT_S)) as log:
        assert ["t"] == list(log.describe(["t"]))


def test_dns_that_does_not_answer_delays_only_new_connections(monkeypatch, cluster):
    """During an outage of DNS, existing connections still work, although kafka-python has one thread for all connections."""
    asked, answer = Event(), Event()
    with closing(open_log(cluster.bootstrap_servers)) as log:
        log.describe(["t"])
        monkeypatch.setattr("socket.getaddrinfo", lambda *_: asked.set() or (answer.wait(60) and []))
        connect = spawn(log._client.connect, Broker(7, "kafka.example", 9092))
        asked.wait(60)

        assert ["t"] == list(log.describe(["t"]))
        assert not connect.ready()
        answer.set()
        with pytest.raises(KafkaError):
            connect.get()


def test_if_a_bootstrap_server_does_not_answer_another_one_is_tried(monkeypatch, cluster, silent):
    """Each server gets a share of the timeout, so that another one can be tried. kafka-python chooses them at random."""
    choices = iter([0, 1])
    monkeypatch.setattr("kafka.net.manager.random.choice", lambda servers: servers[next(choices, 1)])
    servers = [f"{HOST}:{silent[1]}", cluster.bootstrap_servers]
    with closing(open_log(servers, kafka_timeout_s=TIMEOUT_S)) as log:
        assert ["t"] == list(log.describe(["t"]))
