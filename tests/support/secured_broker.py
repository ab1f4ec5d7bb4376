"""A broker with three listeners: plaintext, TLS with client certificates, and SASL with a password."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from kafkasse.broker import EmbeddedBroker
from tests.support.certificates import Authority

HOST = "127.0.0.1"
USER, PASSWORD = "ada", "12345"
_LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "CONTROLLER")
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def free_ports(listeners: Sequence[str] = _LISTENERS) -> dict[str, int]:
    """Return a free port for each listener."""
    sockets = [socket.create_server((HOST, 0)) for _ in listeners]
    ports = {name: each.getsockname()[1] for name, each in zip(listeners, sockets, strict=True)}
    for each in sockets:
        each.close()
    return ports


def secured_broker(authority: Authority, ports: Mapping[str, int]) -> EmbeddedBroker:
    """Return a broker that is not started yet. It has a certificate of `authority` and accepts only its certificates."""
    certificate, key = authority.issue("broker")
    settings = {
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _property(certificate),
        "ssl.keystore.key": _property(key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _property(authority.certificate),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_LOGIN} user_{USER}="{PASSWORD}";',
    }
    return EmbeddedBroker(ports["PLAINTEXT"], settings=_listeners(ports) | settings)


def encrypted_broker(certificate: tuple[str, str], ports: Mapping[str, int], **more: str) -> EmbeddedBroker:
    """Return a broker that is not started yet. It has a listener without security, and one with TLS and a password.

    Args:
        certificate: the broker's certificate and key, as PEM.
        ports: the ports of the listeners PLAINTEXT, SASL_SSL and CONTROLLER.
        more: further settings, with underscores for dots.
    """
    settings = {
        "listener.name.sasl_ssl.ssl.keystore.type": "PEM",
        "listener.name.sasl_ssl.ssl.keystore.certificate.chain": _property(certificate[0]),
        "listener.name.sasl_ssl.ssl.keystore.key": _property(certificate[1]),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{_LOGIN} user_{USER}="{PASSWORD}";',
    }
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    return EmbeddedBroker(ports["PLAINTEXT"], settings=_listeners(ports) | settings)


def _listeners(ports: Mapping[str, int]) -> dict[str, str]:
    """Return the settings of a broker with a listener on each port, named after its security protocol, or CONTROLLER."""
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in ports.items()}
    return {
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(text for name, text in addresses.items() if name != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(f"{n}:{'PLAINTEXT' if n == 'CONTROLLER' else n}" for n in ports),
        "controller.quorum.voters": f"1@{HOST}:{ports['CONTROLLER']}",
    }


def _property(pem: str) -> str:
    """Escape line ends as a Java properties file requires."""
    return pem.replace("\n", "\\n")
