"""Settings that brokers reject: the server's log names the setting to check, and the error for clients is permanent."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import pytest

from kafkasse.errors import ConfigurationError, KafkaUnavailable
from tests.kafka.logs import open_log
from tests.support.ports import HOST
from tests.support.secured_broker import PASSWORD, USER
from tests.support.waiting import TIMEOUT_S

Client = dict[str, Any]

pytestmark = pytest.mark.usefixtures("broker", "files")

TLS: Client = {
    "security_protocol": "SSL",
    "ssl_check_hostname": False,
    "ssl_cafile": "trusted.ca",
    "ssl_certfile": "trusted.pem",
    "ssl_keyfile": "trusted.key",
}
SASL: Client = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": USER,
    "sasl_plain_password": PASSWORD,
}
WRONG: Client = {"sasl_plain_password": "s3cret"}


@pytest.mark.parametrize(("listener", "client"), [("SSL", TLS), ("SASL_PLAINTEXT", SASL)])
def test_accepts_correct_settings(ports, listener, client):
    with closing(open_log(f"{HOST}:{ports[listener]}", client)) as log:
        assert {} == log.describe(["no-such-topic"])


@pytest.mark.parametrize(
    ("listener", "client", "named"),
    [
        pytest.param("SASL_PLAINTEXT", SASL | WRONG, ["kafka.sasl_plain_password"], id="wrong password"),
        pytest.param("SASL_PLAINTEXT", SASL | {"sasl_mechanism": "SCRAM-SHA-256"}, ["kafka.sasl_mechanism"], id="mechanism"),
        # kafka-python fails with a TypeError when it logs in.
        pytest.param("SASL_PLAINTEXT", SASL | WRONG | {"sasl_plain_username": None}, ["kafka.sasl_"], id="no user name"),
        pytest.param("PLAINTEXT", SASL, ["kafka.security_protocol", "kafka.bootstrap_servers"], id="listener without SASL"),
        pytest.param("SSL", TLS | {"ssl_cafile": "unknown.ca"}, ["kafka.ssl_cafile"], id="untrusted broker"),
        pytest.param("SSL", TLS | {"ssl_check_hostname": True}, ["kafka.ssl_check_hostname"], id="another host"),
        # In TLS 1.3 the broker rejects a certificate after the handshake.
        pytest.param("SSL", TLS | {"ssl_certfile": "unknown.pem", "ssl_keyfile": "unknown.key"}, ["kafka.ssl_certfile"],
                     id="rejected client certificate"),
        pytest.param("SSL", TLS | {"ssl_certfile": None, "ssl_keyfile": None}, ["kafka.ssl_certfile"], id="no certificate"),
        pytest.param("SSL", TLS | {"ssl_cafile": "/no/such/file"}, ["kafka.ssl_cafile"], id="no file"),
        pytest.param("SSL", TLS | {"ssl_cafile": "trusted.key"}, ["kafka.ssl_cafile"], id="a file without a certificate"),
        # The broker answers with a TLS alert, which kafka-python would read as the length of a response.
        pytest.param("SSL", {}, ["expects TLS"], id="no TLS"),
    ],
)  # fmt: skip
def test_the_log_names_the_setting(ports, caplog, listener, client, named):
    """The error is permanent. The log has a server's default level, and neither the log nor the error shows the password."""
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

    assert (500, False) == (error.value.status, "Retry-After" in error.value.headers)
    assert "log" in error.value.detail
    assert HOST not in str(error.value.problem())
    assert [] == [setting for setting in named if setting not in caplog.text]
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("listener", "client"), [("PLAINTEXT", TLS), ("SASL_PLAINTEXT", {})])
def test_closed_connection_may_be_temporary(ports, listener, client, caplog):
    """A listener that closes a TLS handshake may be one without TLS, or a broker that is restarting. Clients retry."""
    with (
        closing(open_log(f"{HOST}:{ports[listener]}", client, kafka_timeout_s=0.5)) as log,
        pytest.raises(KafkaUnavailable) as error,
    ):
        log.describe(["t"])

    assert "Retry-After" in error.value.headers
    assert "kafka.security_protocol" in caplog.text
