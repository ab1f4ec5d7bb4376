"""Kafka behind TLS and passwords, from the variables that a platform sets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.broker import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.client import Client, ask, data
from tests.support.kafka import Cluster
from tests.support.server import Server

HOST = "127.0.0.1"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    """One for each listener, as the system chooses."""
    names = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "CONTROLLER")
    listeners = [socket.create_server((HOST, 0)) for _ in names]
    ports = {name: listener.getsockname()[1] for name, listener in zip(names, listeners, strict=True)}
    for listener in listeners:
        listener.close()
    return ports


@pytest.fixture(scope="module")
def broker(authority: Authority, ports: dict[str, int]) -> Iterator[EmbeddedBroker]:
    """A Kafka that wants certificates of `authority` at one listener, and a password at another."""
    certificate, key = authority.issue("broker")
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    settings = {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(text for name, text in addresses.items() if name != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(f"{n}:{'PLAINTEXT' if n == 'CONTROLLER' else n}" for n in ports),
        "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _one_line(certificate),
        "ssl.keystore.key": _one_line(key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _one_line(authority.certificate),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{LOGIN} user_ada="12345";',
    }
    with EmbeddedBroker(ports["PLAINTEXT"], settings=settings) as running:
        yield running


def _one_line(pem: str) -> str:
    """As a file of Java properties holds it."""
    return pem.replace("\n", "\\n")


@pytest.fixture
def topic(broker: EmbeddedBroker, fresh_name: str) -> str:
    """A topic with a prefix and one record."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        cluster.create(f"wabash-1.{fresh_name}")
        cluster.send(f"wabash-1.{fresh_name}", b'{"n":1}')
    return fresh_name


def heroku(authority: Authority, port: int) -> dict[str, str]:
    certificate, key = authority.issue("kafkasse")
    return {
        "KAFKA_URL": f"kafka+ssl://{HOST}:{port},kafka+ssl://localhost:{port}",
        "KAFKA_TRUSTED_CERT": authority.certificate,
        "KAFKA_CLIENT_CERT": certificate,
        "KAFKA_CLIENT_CERT_KEY": key,
        "KAFKA_PREFIX": "wabash-1.",
    }


def test_herokus_variables_are_enough(authority: Authority, ports: dict[str, int], topic: str) -> None:
    """TLS both ways, from KAFKA_URL and the certificates in the environment alone; topics go without their prefix."""
    with Server(**heroku(authority, ports["SSL"])) as server, Client(server.port, f"/{topic}?timestamp=0") as stream:
        [event] = stream.events(1)

    assert [1] == data([event])
    assert f'"topic":"{topic}"' in event.data


def test_a_kafka_that_is_not_trusted(authority: Authority, ports: dict[str, int], topic: str) -> None:
    """A broker whose certificate another authority has signed gets nothing: 503, and no word of why to strangers."""
    variables = heroku(authority, ports["SSL"]) | {"KAFKA_TRUSTED_CERT": Authority().certificate}
    with Server(KAFKASSE_KAFKA_TIMEOUT_S="1", **variables) as server:
        refused = ask(server.port, f"/{topic}")

    assert 503 == refused.status
    assert b"certificate" not in refused.body.lower()


@pytest.fixture
def passwords(ports: dict[str, int]) -> dict[str, str]:
    return {
        "KAFKASSE_BOOTSTRAP_SERVERS": f"{HOST}:{ports['SASL_PLAINTEXT']}",
        "KAFKASSE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKASSE_KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKASSE_KAFKA_SASL_PLAIN_USERNAME": "ada",
        "KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "12345",
        "KAFKASSE_TOPIC_PREFIX": "wabash-1.",
    }


def test_a_password(passwords: dict[str, str], topic: str) -> None:
    """SASL from the environment, with a password that looks like a number."""
    with Server(**passwords) as server, Client(server.port, f"/{topic}?timestamp=0") as stream:
        assert [1] == data(stream.events(1))


def test_a_wrong_password(passwords: dict[str, str], topic: str) -> None:
    """Kafka just hangs up on it, so it is as if Kafka were away; the password is neither in the answer nor in the log."""
    wrong = passwords | {"KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "s3cret", "KAFKASSE_KAFKA_TIMEOUT_S": "2"}
    with Server(**wrong, KAFKASSE_LOG_LEVEL="debug") as server:
        refused = ask(server.port, f"/{topic}")

    assert 503 == refused.status
    assert "s3cret" not in refused.body.decode() + server.log
    assert "kafka.net" in server.log
