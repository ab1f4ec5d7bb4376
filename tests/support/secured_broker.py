"""A broker with listeners for plaintext, TLS with client certificates, SASL with a password, and SASL over TLS."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from kafkasse.tools.broker import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.ports import HOST

USER, PASSWORD = "ada", "12345"
MAX_LOGIN_S = 2  # on the listener SASL_SSL; the broker closes a connection that does not log in again
LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "CONTROLLER")
_SECURITY = "org.apache.kafka.common.security"
_LOGIN = f"{_SECURITY}.plain.PlainLoginModule required"


def secured_broker(authority: Authority, ports: Mapping[str, int]) -> EmbeddedBroker:
    """Return a broker that is not started yet. It has a certificate of `authority`.

    The listener SSL accepts only certificates of `authority`. The listener SASL_SSL accepts passwords, with SCRAM after
    add_scram_user(), and tokens without a signature.
    """
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
        "listener.name.sasl_ssl.ssl.client.auth": "none",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{_LOGIN} user_{USER}="{PASSWORD}";',
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            f'{_SECURITY}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
        "connections.max.reauth.ms": str(MAX_LOGIN_S * 1000),
    }
    return EmbeddedBroker(ports["PLAINTEXT"], settings=_listeners(ports) | settings)


def add_scram_user(broker: EmbeddedBroker) -> None:
    """Create the password of USER for SCRAM. Kafka stores it in the cluster's metadata."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            [error] = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, mechanism, PASSWORD)]
            ).values()
            assert error is None, error


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
