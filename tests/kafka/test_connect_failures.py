"""Kafka cannot be reached: the log contains one line with the address, the reason, and what to check."""

from __future__ import annotations

import socket as standard_socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from gevent import socket
from gevent.server import StreamServer

from kafkasse.config import Config
from kafkasse.config.settings import KafkaSettings
from kafkasse.errors import KafkaUnavailable
from kafkasse.kafka.log import KafkaLog
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
    for each in servers:
        each.stop()


@pytest.fixture
def reason(caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """Opens a log, which must fail. Returns the line that a server logs at its default level."""

    def fail(servers: Any) -> str:
        with closing(open_log(servers, kafka_timeout_s=TIMEOUT_S)) as log, pytest.raises(KafkaUnavailable) as error:
            log.describe(["t"])
        assert HOST not in str(error.value.problem())
        return line(caplog)

    return fail


def line(caplog: pytest.LogCaptureFixture) -> str:
    [found] = {each.getMessage() for each in caplog.records if each.name.startswith("kafkasse")}
    return found


def resolve_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DNS know only this machine."""
    original = standard_socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host.endswith(".example"):
            raise standard_socket.gaierror(standard_socket.EAI_NONAME, "Name or service not known")
        return original(host, *rest, **options)

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)


def test_nothing_listens(reason: Callable[..., str], refused: str) -> None:
    """The log contains the address."""
    logged = reason(refused)

    assert f"{refused}: Connection refused." in logged
    assert "check kafka.bootstrap_servers" in logged
    assert "is not set" not in logged


def test_bootstrap_servers_are_not_set(
    refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so, because nobody chose the default address."""
    monkeypatch.setattr("kafkasse.kafka.client.BOOTSTRAP_DEFAULT", refused)  # a broker may listen at the real one
    settings = KafkaSettings(**{**DEFAULTS, "kafka_timeout_s": TIMEOUT_S})
    with closing(KafkaLog(settings, Config.load({}).kafka_settings())) as log, pytest.raises(KafkaUnavailable):
        log.describe(["t"])

    assert "KAFKASSE_BOOTSTRAP_SERVERS is not set; trying localhost:9092." in line(caplog)


def test_several_servers(refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each address is logged with its own reason."""
    resolve_nothing(monkeypatch)
    reasons = f"{refused}: Connection refused.", "kafka.example:9092: The host name cannot be resolved (DNS)."

    def is_logged() -> bool:
        with pytest.raises(KafkaUnavailable):
            log.describe(["t"])
        return any(all(reason in message for reason in reasons) for message in caplog.messages)

    with closing(open_log([refused, "kafka.example:9092"], kafka_timeout_s=TIMEOUT_S)) as log:
        wait_until(is_logged)  # on a busy machine, a call may try only one of them


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (b"", "The listener closed the connection. It may expect TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "The response is not Kafka's, so another program uses this port"),
        (None, "The listener accepted the connection, but did not respond."),
    ],
)
def test_another_server_listens(
    reason: Callable[..., str], serve: Callable[[bytes | None], str], response: bytes | None, expected: str
) -> None:
    """It has another protocol, or is a firewall or a port forwarder in front of a broker that is down."""
    server = serve(response)

    assert f"{server}: {expected}" in reason(server)


@pytest.mark.parametrize("host", ["kafka.example", HOST])
def test_brokers_announce_an_address_that_cannot_be_reached(
    host: str, refused: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
