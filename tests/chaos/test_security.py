"""A broker with TLS and passwords that limits how long a login is valid, and whose certificate changes."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from tests.chaos.scene import Scene, connect_clients, documented_delay_s, wait_for_records
from tests.support.certificates import Authority
from tests.support.ports import HOST, reserved_ports
from tests.support.secured_broker import PASSWORD, USER, encrypted_broker
from tests.support.waiting import wait_until

LOGIN_VALID_MS = 1500
LISTENER = "SASL_SSL"


class EncryptedKafka(NamedTuple):
    """The parts of a cluster that a Scene uses, and the authority that signed the certificate of the broker."""

    bootstrap_servers: str
    settings: dict[str, Any]
    port: int
    authority: Authority

    def certificate(self) -> bytes | None:
        context = ssl.create_default_context(cadata=self.authority.certificate)
        context.check_hostname = False
        with socket.create_connection((HOST, self.port)) as plain, context.wrap_socket(plain) as encrypted:
            return encrypted.getpeercert(binary_form=True)


@pytest.fixture(scope="module")
def encrypted(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncryptedKafka]:
    """A broker that closes each connection whose login is older than LOGIN_VALID_MS."""
    authority = Authority()
    trusted = tmp_path_factory.mktemp("tls") / "authority.pem"
    trusted.write_text(authority.certificate)
    with reserved_ports("PLAINTEXT", LISTENER, "CONTROLLER") as ports:
        settings = {
            "bootstrap_servers": [f"{HOST}:{ports[LISTENER]}"],
            "security_protocol": LISTENER,
            "ssl_cafile": str(trusted),
            "ssl_check_hostname": False,
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        more = {"connections_max_reauth_ms": str(LOGIN_VALID_MS)}
        with encrypted_broker(authority.issue("broker"), ports, **more) as broker:
            yield EncryptedKafka(broker.bootstrap_servers, settings, ports[LISTENER], authority)


@pytest.fixture
def scene(encrypted: EncryptedKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Scene(encrypted, tmp_path, max_delay_s=documented_delay_s(request.node.originalname)) as scene:
        yield scene


@pytest.mark.long
def test_logins_expire(scene, fresh_name):
    """The broker closes connections whose login has expired (connections.max.reauth.ms). Clients do not notice."""
    clients = connect_clients(scene, scene.topic(fresh_name, replicas=1))

    for _ in range(4):
        before = time.monotonic()
        wait_until(lambda before=before: time.monotonic() > before + LOGIN_VALID_MS / 1000)
        wait_for_records(clients)

    assert [] == scene.violations(clients)


def test_the_certificate_of_a_broker_is_replaced(scene, encrypted, fresh_name):
    """The broker gets another certificate of the same authority. New connections use it, and clients do not notice."""
    clients = connect_clients(scene, scene.topic(fresh_name, replicas=1))
    before = encrypted.certificate()
    certificate, key = encrypted.authority.issue("broker")
    prefix = f"listener.name.{LISTENER.lower()}.ssl.keystore"
    changed = {f"{prefix}.certificate.chain": certificate, f"{prefix}.key": key}

    with closing(KafkaAdminClient(bootstrap_servers=encrypted.bootstrap_servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", changed)], raise_on_unknown=False)
    wait_until(lambda: encrypted.certificate() != before)
    wait_for_records(clients)
    newcomers = connect_clients(scene, fresh_name)
    wait_for_records(newcomers)

    assert [] == scene.violations(clients)
