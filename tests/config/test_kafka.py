"""The settings of kafka-python's client: the list, settings that depend on each other, files, and Heroku's variables."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient
from kafka.net.sasl import SASL_MECHANISMS

from kafkasse import schemas
from kafkasse.config import Config
from kafkasse.config.kafka import RESERVED
from kafkasse.errors import ConfigurationError
from tests.support.certificates import Authority, heroku_variables

CLIENT_SETTINGS = schemas.read("config")["$defs"]["kafka"]["properties"]
Problems = Callable[..., list[str]]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_the_schema_lists_the_settings_of_kafka_python():
    """They are those of KafkaAdminClient, except the reserved ones, a deprecated one, and those of its own metrics.

    Each example has the type of the default.
    """
    left_out = RESERVED | {"socks5_proxy", "metric_reporters", "metrics_num_samples", "metrics_sample_window_ms"}
    assert set(CLIENT_SETTINGS) == set(KafkaAdminClient.DEFAULT_CONFIG) - left_out
    assert set(SASL_MECHANISMS) == set(CLIENT_SETTINGS["sasl_mechanism"]["enum"])
    for name, default in KafkaAdminClient.DEFAULT_CONFIG.items():
        example = CLIENT_SETTINGS.get(name, {}).get("examples", [default])[0]
        assert default is None or isinstance(example, type(default)), name


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_reserved_settings_are_rejected(problems, name):
    """kafkasse sets these settings itself, because its guarantees depend on them."""
    assert [f"The argument kafka.{name} is set by kafkasse itself: remove it."] == problems(kafka={name: "x"})


@pytest.mark.parametrize(
    "servers", ["a:1", "a:1,b:65535", "a:1, b:2", "[::1]:9092", "kafka-1.example.:9092", ["a:1", "b:2"], ("a:1",)]
)
def test_addresses_of_brokers(servers):
    """Servers are one HOST:PORT, or several in a list or in one text."""
    assert servers == Config(kafka={"bootstrap_servers": servers}).kafka_settings()["bootstrap_servers"]


@pytest.mark.parametrize(
    "servers",
    ["", "a", "a:", ":1", "a:0", "a:65536", "a:http", "a:1,", "::1:9092", "kafka://a:1", "a:1/", [], [""], "a b:1"],
)
def test_addresses_that_are_not_valid(problems, servers):
    (message,) = problems(kafka={"bootstrap_servers": servers})

    assert "kafka.bootstrap_servers must be HOST:PORT" in message
    assert "Example: " in message


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ({"security_protocol": "SASL_SSL"}, "kafka.security_protocol is SASL_SSL, which needs sasl_mechanism."),
        ({"sasl_mechanism": "GSSAPI"}, "kafka.sasl_mechanism has no effect while security_protocol is PLAINTEXT."),
        ({"sasl_plain_username": "me"}, "kafka.sasl_plain_username has no effect while security_protocol is PLAINTEXT."),
        ({"security_protocol": "SSL", "sasl_plain_username": "me", "sasl_plain_password": "hunter2"},
         "kafka.sasl_plain_username has no effect while security_protocol is SSL. "
         "Example: security_protocol: SASL_SSL, sasl_mechanism: SCRAM-SHA-512"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"},
         "kafka.sasl_mechanism is PLAIN, which needs sasl_plain_password."),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
         "kafka.sasl_mechanism is OAUTHBEARER, which needs sasl_oauth_token_provider"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"},
         "kafka.ssl_cafile names the file '/nowhere/ca.pem', which cannot be read: No such file or directory."),
        ({"security_protocol": "SSL", "ssl_keyfile": "/"},
         "kafka.ssl_keyfile names the file '/', which cannot be read"),
        ({"security_protocol": "SSL", "ssl_cafile": __file__},
         f"kafka.ssl_cafile names the file '{__file__}', which contains no certificate in PEM form."),
        ({"security_protocol": "SSL", "ssl_certfile": __file__},
         f"kafka.ssl_certfile names the file '{__file__}', which does not contain a certificate in PEM form"),
        ({"ssl_context": 5}, "kafka.ssl_context must be an ssl.SSLContext, not a value of type int."),
        ({"sasl_oauth_token_provider": 5}, "kafka.sasl_oauth_token_provider must be a function that returns a token"),
        ({"ssl_cafile": __file__}, "kafka.ssl_cafile has no effect while security_protocol is PLAINTEXT."),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_together(problems, kafka, problem):
    """kafka-python would ignore some of these mistakes, and would report others only when it connects."""
    (message,) = problems(kafka=kafka)

    assert message.startswith(f"The argument {problem}")


def test_an_empty_login_needs_no_sasl():
    """Compose sets an empty variable if the variable that its file names is not set."""
    assert "" == Config(kafka={"sasl_plain_username": ""}).kafka_settings()["sasl_plain_username"]


def test_certificates_in_files(authority, tmp_path):
    certificate, key = authority.issue("kafkasse")
    files = {"ssl_cafile": authority.certificate, "ssl_certfile": certificate, "ssl_keyfile": key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    kafka = {"security_protocol": "SSL", **{name: str(tmp_path / name) for name in files}}

    assert kafka.items() <= Config(kafka=kafka).kafka_settings().items()


def test_lists_become_the_tuples_that_kafka_python_needs():
    """YAML has no tuples, but kafka-python requires a tuple for api_version."""
    assert (3, 9) == Config(kafka={"api_version": [3, 9]}).kafka_settings()["api_version"]


# Heroku's Kafka add-on. tests/secured/test_server.py tests that the certificates open a connection.


def heroku(authority: Authority) -> dict[str, str]:
    return heroku_variables(authority, "wabash-58799.", *(f"ec2-{number}.example:9096" for number in (1, 2, 3)))


def test_the_variables_of_heroku(authority, monkeypatch, tmp_path):
    """OpenSSL reads the private key from a file, which is deleted when the context has been created."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = Config.load(heroku(authority))

    kafka = config.kafka_settings()

    assert [f"ec2-{number}.example:9096" for number in (1, 2, 3)] == kafka["bootstrap_servers"]
    assert "SSL" == kafka["security_protocol"]
    assert "wabash-58799." == config.kafka.topic_prefix
    context = kafka["ssl_context"]
    assert (ssl.CERT_REQUIRED, False) == (context.verify_mode, context.check_hostname)
    assert 1 == len(context.get_ca_certs())
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["KAFKA_TRUSTED_CERT", "KAFKA_CLIENT_CERT", "KAFKA_CLIENT_CERT_KEY"])
@pytest.mark.parametrize("text", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_certificates_that_are_not_pem(authority, name, text):
    """The server does not start. The error names the variables and does not show their values."""
    with pytest.raises(ConfigurationError, match=name) as rejected:
        Config.load({**heroku(authority), name: text})

    assert "PRIVATE KEY" not in rejected.value.detail
    assert "AAAA" not in rejected.value.detail


@pytest.mark.parametrize(
    "url", ["localhost:9092", "kafka+ssl://a:1,kafka://b:1", "kafka+ssl://", ",", "kafka://me:pw@a:1", "kafka://a"]
)
def test_a_kafka_url_that_is_not_valid(problems, url):
    (message,) = problems({"KAFKA_URL": url})

    assert message.startswith("KAFKA_URL must be kafka+ssl://HOST:PORT or kafka://HOST:PORT without a user name")


def test_kafka_without_tls_from_a_url():
    """kafka:// means Kafka without TLS. kafkasse's own variable overrides the variable of the add-on."""
    kafka = Config.load({"KAFKA_URL": "kafka://a:9092, kafka://b:9092/"}).kafka_settings()

    assert {"bootstrap_servers": ["a:9092", "b:9092"], "security_protocol": "PLAINTEXT"} == kafka
    both = {"KAFKA_URL": "kafka://a:9092", "KAFKASSE_BOOTSTRAP_SERVERS": "c:9092"}
    assert "c:9092" == Config.load(both).kafka_settings()["bootstrap_servers"]
