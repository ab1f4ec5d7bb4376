"""Each way to log in, on a real broker: records arrive, also while logins expire and certificates are replaced."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from gevent.event import Event
from kafka.net.sasl.plain import SaslMechanismPlain

from kafkasse.errors import ConfigurationError, KafkaUnavailable
from kafkasse.log import Partition
from kafkasse.tools.broker import EmbeddedBroker
from tests.kafka.logs import open_log, take, values
from tests.support.kafka import Cluster, retry
from tests.support.ports import HOST
from tests.support.secured_broker import MAX_LOGIN_S, PASSWORD, USER, add_scram_user
from tests.support.waiting import wait_until

TOKEN_S = 3600

Client = dict[str, Any]


@pytest.fixture(scope="module")
def writer(broker: EmbeddedBroker) -> Any:
    add_scram_user(broker)
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster


TLS: Client = {"security_protocol": "SASL_SSL", "ssl_check_hostname": False, "ssl_cafile": "trusted.ca"}


def token() -> str:
    """Return a token without a signature, which the broker accepts as long as it is not configured otherwise."""
    now = int(time.time())
    parts = {"alg": "none"}, {"sub": USER, "iat": now, "exp": now + TOKEN_S}
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


class TokenProvider:
    def token(self) -> str:
        return token()


PASSWORDS = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}


@pytest.mark.parametrize(
    "login",
    [
        {"sasl_mechanism": "PLAIN", **PASSWORDS},
        {"sasl_mechanism": "SCRAM-SHA-256", **PASSWORDS},
        {"sasl_mechanism": "SCRAM-SHA-512", **PASSWORDS},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": token},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": TokenProvider()},
    ],
    ids=["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER, function", "OAUTHBEARER, object"],
)
def test_reads_after_a_login_over_tls(writer, ports, files, fresh_name, login):
    """A token provider is a function, or an object with a method token(). A new SCRAM user exists a little later."""
    writer.send(writer.create(fresh_name), b"a")
    with (
        closing(open_log(f"{HOST}:{ports['SASL_SSL']}", TLS | login)) as log,
        closing(retry(lambda: log.cursor({Partition(fresh_name, 0): 0}), ConfigurationError)) as cursor,
    ):
        assert [b"a"] == values(take(cursor, 1))


def test_no_record_is_lost_when_logins_expire(writer, ports, files, fresh_name):
    """The broker closes connections whose login is too old (connections.max.reauth.ms). The cursor opens new ones."""
    tokens = 0

    def counted() -> str:
        nonlocal tokens
        tokens += 1
        return token()

    login = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": counted}
    partition = Partition(writer.create(fresh_name), 0)
    with (
        closing(open_log(f"{HOST}:{ports['SASL_SSL']}", TLS | login)) as log,
        closing(log.cursor({partition: 0}, tail=True)) as cursor,
    ):
        sent, received = [], []
        until_s = time.monotonic() + 2 * MAX_LOGIN_S
        while time.monotonic() < until_s:
            sent.append(b"%d" % len(sent))
            writer.send(fresh_name, sent[-1])
            received += values(take(cursor, 1))
            assert {fresh_name} == set(log.describe([fresh_name]))

    assert sent == received
    assert tokens > 2  # the metadata and the fetches have a connection each


@pytest.mark.parametrize("is_connected", [False, True], ids=["at the first login", "later"])
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "PLAIN"])
def test_a_login_failure_on_the_client_side_is_temporary(
    broker, ports, files, monkeypatch, caplog, mechanism, is_connected
):
    """For example, an identity provider or AWS's service for credentials does not answer for a minute.

    Any exception may then escape from a token provider, and from kafka-python's other mechanisms. Clients get a 503.
    """
    failing = not is_connected
    auth_bytes = SaslMechanismPlain.auth_bytes

    def fail_or(call: Callable[..., str | bytes], *args: Any) -> str | bytes:
        if failing:
            raise (KeyError if mechanism == "OAUTHBEARER" else AttributeError)("access_token")
        return call(*args)

    monkeypatch.setattr(SaslMechanismPlain, "auth_bytes", lambda self: fail_or(auth_bytes, self))
    provider = {"sasl_oauth_token_provider": lambda: fail_or(token)} if mechanism == "OAUTHBEARER" else PASSWORDS
    login = {"sasl_mechanism": mechanism, **provider}
    with closing(open_log(f"{HOST}:{ports['SASL_SSL']}", TLS | login, kafka_timeout_s=0.5)) as log:

        def is_reached() -> bool:
            try:
                return log.describe(["no-such-topic"]) == {}
            except KafkaUnavailable:
                return False

        assert is_connected == is_reached()
        failing = True
        wait_until(lambda: not is_reached())
        failing = False
        wait_until(is_reached)

    assert "access_token" in caplog.text


def test_a_token_provider_that_hangs_delays_requests_only_briefly(broker, ports, files):
    calls = 0

    def hangs_once() -> str:
        nonlocal calls
        calls += 1
        return token() if calls > 1 else Event().wait()

    login = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": hangs_once}
    with closing(open_log(f"{HOST}:{ports['SASL_SSL']}", TLS | login, kafka_timeout_s=0.5)) as log:
        assert {} == retry(lambda: log.describe(["no-such-topic"]), KafkaUnavailable)


def test_replaced_certificate_files_are_used_without_a_restart(writer, ports, files):
    """The files are read for each connection, so a certificate can be renewed."""
    client = TLS | {"security_protocol": "SSL", "ssl_certfile": "client.pem", "ssl_keyfile": "client.key"}

    def install(name: str) -> None:
        for suffix in ("pem", "key"):
            shutil.copy(files / f"{name}.{suffix}", files / f"client.{suffix}")

    with closing(open_log(f"{HOST}:{ports['SSL']}", client)) as log:
        install("unknown")
        with pytest.raises(ConfigurationError):
            log.describe(["t"])
        install("trusted")

        wait_until(lambda: log.describe(["no-such-topic"]) == {})
