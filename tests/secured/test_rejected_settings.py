"""Settings that brokers reject: the server's log names the setting to check, and the error for clients is permanent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafkasse.errors import ConfigurationError, KafkaUnavailable
from tests.kafka.logs import open_log
from tests.support.certificates import Authority
from tests.support.secured_broker import HOST, PASSWORD, USER

WRONG_PASSWORD = "s3cret"  # noqa: S105 - a test's own
TIMEOUT_S = 5.0

pytestmark = pytest.mark.usefixtures("broker")

Client = dict[str, Any]


@pytest.fixture(scope="module")
def files(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a trusted and of an unknown client, and the certificates of their authorities."""
    directory = tmp_path_factory.mktemp("certificates")
    for name, issuer in {"trusted": authority, "unknown": Authority()}.items():
        certificate, key = issuer.issue(name)
        (directory / f"{name}.ca").write_text(issuer.certificate)
        (directory / f"{name}.pem").write_text(certificate)
        (directory / f"{name}.key").write_text(key)
    return directory


@pytest.fixture
def tls(files: Path) -> Client:
    """The client settings that the broker's TLS listener accepts."""
    return {
        "security_protocol": "SSL",
        "ssl_check_hostname": False,
        "ssl_cafile": str(files / "trusted.ca"),
        "ssl_certfile": str(files / "trusted.pem"),
        "ssl_keyfile": str(files / "trusted.key"),
    }


@pytest.fixture
def sasl() -> Client:
    """The client settings that the broker's SASL listener accepts."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }


@pytest.fixture
def rejected(caplog: pytest.LogCaptureFixture, ports: dict[str, int]) -> Callable[[str, Client], str]:
    """Connects to a listener, which must fail with a permanent error. Returns the log at a server's default level."""

    def connect(listener: str, client: Client) -> str:
        caplog.set_level(logging.WARNING)
        logging.getLogger("kafka").propagate = False  # as in gunicorn.conf.py
        try:
            with (
                closing(open_log(f"{HOST}:{ports[listener]}", client, kafka_timeout_s=TIMEOUT_S)) as log,
                pytest.raises(ConfigurationError) as error,
            ):
                log.describe(["t"])
        finally:
            logging.getLogger("kafka").propagate = True
        assert 500 == error.value.status
        assert "Retry-After" not in error.value.headers
        assert "log" in error.value.detail
        assert HOST not in str(error.value.problem())
        return caplog.text

    return connect


def test_accepts_correct_settings(ports: dict[str, int], tls: Client, sasl: Client) -> None:
    """The settings that the other tests change work unchanged."""
    for listener, client in (("SSL", tls), ("SASL_PLAINTEXT", sasl)):
        with closing(open_log(f"{HOST}:{ports[listener]}", client)) as log:
            assert {} == log.describe(["no-such-topic"])


def test_wrong_password(rejected: Callable[[str, Client], str], sasl: Client) -> None:
    """The log names the user and password settings, and shows no password."""
    logged = rejected("SASL_PLAINTEXT", {**sasl, "sasl_plain_password": WRONG_PASSWORD})

    assert "kafka.sasl_plain_password" in logged
    assert WRONG_PASSWORD not in logged


def test_unsupported_sasl_mechanism(rejected: Callable[[str, Client], str], sasl: Client) -> None:
    """The log names the setting of the mechanism."""
    assert "kafka.sasl_mechanism" in rejected("SASL_PLAINTEXT", {**sasl, "sasl_mechanism": "SCRAM-SHA-256"})


def test_missing_user_name(rejected: Callable[[str, Client], str], sasl: Client) -> None:
    """kafka-python fails with a TypeError when it logs in. The log shows no password."""
    logged = rejected("SASL_PLAINTEXT", {**sasl, "sasl_plain_username": None, "sasl_plain_password": WRONG_PASSWORD})

    assert "kafka.sasl_" in logged
    assert WRONG_PASSWORD not in logged


def test_sasl_at_a_listener_without_sasl(rejected: Callable[[str, Client], str], sasl: Client) -> None:
    """The log names the security protocol and the servers."""
    logged = rejected("PLAINTEXT", sasl)

    assert "kafka.security_protocol" in logged
    assert "kafka.bootstrap_servers" in logged


def test_untrusted_broker_certificate(rejected: Callable[[str, Client], str], tls: Client, files: Path) -> None:
    """The client does not trust the authority that signed the broker's certificate."""
    assert "kafka.ssl_cafile" in rejected("SSL", {**tls, "ssl_cafile": str(files / "unknown.ca")})


def test_broker_certificate_for_another_host(rejected: Callable[[str, Client], str], tls: Client) -> None:
    """The broker's certificate does not contain the address in bootstrap_servers."""
    assert "kafka.ssl_check_hostname" in rejected("SSL", {**tls, "ssl_check_hostname": True})


def test_rejected_client_certificate(rejected: Callable[[str, Client], str], tls: Client, files: Path) -> None:
    """In TLS 1.3 the broker rejects a certificate after the handshake."""
    unknown = {"ssl_certfile": str(files / "unknown.pem"), "ssl_keyfile": str(files / "unknown.key")}

    assert "kafka.ssl_certfile" in rejected("SSL", {**tls, **unknown})


def test_missing_client_certificate(rejected: Callable[[str, Client], str], tls: Client) -> None:
    """The broker requires a client certificate, but the settings contain none."""
    assert "kafka.ssl_certfile" in rejected("SSL", {**tls, "ssl_certfile": None, "ssl_keyfile": None})


@pytest.mark.parametrize("file", ["/no/such/file", "trusted.key"])
def test_unusable_certificate_file(rejected: Callable[[str, Client], str], tls: Client, files: Path, file: str) -> None:
    """The file does not exist, or contains no certificate."""
    assert "kafka.ssl_cafile" in rejected("SSL", {**tls, "ssl_cafile": str(files / file)})


def test_plaintext_at_a_tls_listener(rejected: Callable[[str, Client], str]) -> None:
    """The broker answers with a TLS alert, which kafka-python would read as the length of a response."""
    assert "expects TLS" in rejected("SSL", {})


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_closed_connection_may_be_temporary(
    ports: dict[str, int], tls: Client, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that closes a TLS handshake may be one without TLS, or a broker that is restarting. Clients retry."""
    client = tls if listener == "PLAINTEXT" else {}
    with (
        closing(open_log(f"{HOST}:{ports[listener]}", client, kafka_timeout_s=0.5)) as log,
        pytest.raises(KafkaUnavailable) as error,
    ):
        log.describe(["t"])

    assert "Retry-After" in error.value.headers
    assert "kafka.security_protocol" in caplog.text
