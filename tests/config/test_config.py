"""Settings from a file, the environment and code: what wins, what is refused, and that none is idle or undocumented."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import kafkasse
from kafkasse import schemas
from kafkasse.config import KAFKA_NOT_YOURS, Config, Hooks
from kafkasse.errors import ConfigurationError
from kafkasse.position import IdType
from kafkasse.route import StartAt
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[2]
SCHEMA = schemas.read("config")
SETTINGS = SCHEMA["properties"]
ROUTE_SETTINGS = SCHEMA["$defs"]["route"]["properties"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "kafkasse.yaml"
        file.write_text(text)
        return file

    return write


def settings_of(config: Config) -> dict[str, Any]:
    """All settings that a configuration holds as they are, by name."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for part in (config.kafka, config.feed, config.web)
        for name, value in asdict(part).items()
    }


def refusal(**arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Config.load(**{"environ": {}, **arguments})
    return refused.value.detail


# Every setting is there for a reason.


@pytest.mark.parametrize("name", [*SETTINGS, *ROUTE_SETTINGS])
def test_no_setting_is_idle(name: str) -> None:
    """Each setting of the schema is read somewhere in the code."""
    code = "".join(file.read_text() for file in Path(kafkasse.__file__).parent.rglob("*.py"))

    assert re.search(rf'(?:config|settings|web|feed)\.{name}\b|\[\s*"{name}"\s*\]|\bget\("{name}"', code)


@pytest.mark.parametrize("name", [*SETTINGS, *ROUTE_SETTINGS])
def test_every_setting_is_documented(name: str) -> None:
    """docs/configuration.md tells of each, and the schema says why one would change it."""
    assert f"`{name}`" in (ROOT / "docs" / "configuration.md").read_text()
    assert len(SETTINGS.get(name, ROUTE_SETTINGS.get(name))["description"]) > 20


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_are_valid(name: str) -> None:
    """Each setting has a default that the schema itself takes."""
    assert SETTINGS[name]["default"] == settings_of(Config()).get(name, SETTINGS[name]["default"])


def test_hooks_are_no_settings() -> None:
    """Hooks and settings share one call, so no name can be both."""
    assert set(SETTINGS).isdisjoint(Hooks.__dataclass_fields__)


# Who wins.


def test_code_wins_over_environment_over_file(write: Callable[[str], Path]) -> None:
    """Defaults, file, environment, code: the later wins, setting by setting."""
    file = write("max_topics_per_stream: 1\nretry_ms: 1\nheartbeat_s: 1\n")
    environ = {"KAFKASSE_CONFIG": str(file), "KAFKASSE_RETRY_MS": "2", "KAFKASSE_HEARTBEAT_S": "2"}

    config = Config.load(environ, heartbeat_s=3, max_topics_per_stream=None)

    assert (1, 2, 3) == (config.web.max_topics_per_stream, config.web.retry_ms, config.feed.heartbeat_s)


def test_kafka_settings_are_merged(write: Callable[[str], Path]) -> None:
    """The same holds for each of Kafka's own settings."""
    file = write("kafka: {bootstrap_servers: 'file:1', client_id: file, client_rack: file}")
    environ = {"KAFKASSE_BOOTSTRAP_SERVERS": "environ:1", "KAFKASSE_KAFKA_CLIENT_ID": "environ"}

    kafka = Config.load(environ, file, kafka={"client_id": "code"}).kafka_settings()

    assert {"bootstrap_servers": "environ:1", "client_id": "code", "client_rack": "file"} == kafka


def test_without_anything() -> None:
    """Without settings, Kafka is expected on this machine, and there is nothing to serve."""
    config = Config.load({})

    assert "localhost:9092" == config.kafka_settings()["bootstrap_servers"]
    assert ["/<topics>"] == [route.path for route in config.routes]
    with pytest.raises(ConfigurationError, match="KAFKASSE_ALLOWED_TOPICS="):
        config.require_topics()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KAFKASSE_CORS_ORIGINS", "*", "cors_origins", ["*"]),
        ("KAFKASSE_HEARTBEAT_S", "2.5", "heartbeat_s", 2.5),
        ("KAFKASSE_HEARTBEAT_S", "1e1", "heartbeat_s", 10.0),
        ("KAFKASSE_RETRY_MS", "0100", "retry_ms", 100),
        ("KAFKASSE_PAGES", "false", "pages", False),
        ("KAFKASSE_PAGES", "True", "pages", True),
        ("KAFKASSE_PAGES", "0", "pages", False),
        ("KAFKASSE_TOPIC_PREFIX", "123", "topic_prefix", "123"),
        ("KAFKASSE_KAFKA_TIMEOUT_S", "7", "kafka_timeout_s", 7),
        ("KAFKA_PREFIX", "wabash-58799.", "topic_prefix", "wabash-58799."),
    ],
)
def test_settings_from_the_environment(variable: str, text: str, name: str, value: object) -> None:
    """A variable is read as what its setting is: a list, a number, a yes or no, or text."""
    config = Config.load({variable: text})

    assert value == settings_of(config)[name]
    assert isinstance(settings_of(config)[name], type(value))


def test_settings_of_routes_from_the_environment() -> None:
    """The open route has what the variables say."""
    variables = {"ALLOWED_TOPICS": "a, events.* ,", "COMPACT_IDS": "1", "ID_TYPE": "both"}

    route = Config.load({f"KAFKASSE_{name}": text for name, text in variables.items()}).routes[-1]

    assert (("a", "events.*"), True, IdType.BOTH) == (route.allowed, route.compact_ids, route.id_type)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("KAFKASSE_KAFKA_REQUEST_TIMEOUT_MS", "3000", 3000),
        ("KAFKASSE_KAFKA_SSL_CHECK_HOSTNAME", "false", False),
        ("KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD", "123456", "123456"),
        ("KAFKASSE_KAFKA_SASL_PLAIN_USERNAME", "true", "true"),
        ("KAFKASSE_KAFKA_SSL_PASSWORD", "007", "007"),
        ("KAFKASSE_KAFKA_SASL_MECHANISM", "SCRAM-SHA-512", "SCRAM-SHA-512"),
    ],
)
def test_kafka_settings_from_the_environment(variable: str, text: str, value: object) -> None:
    """Numbers and yes or no are such, and a password of digits is still a password."""
    kafka = Config.load({variable: text}).kafka.kafka

    assert {variable.removeprefix("KAFKASSE_KAFKA_").lower(): value} == kafka


# What cannot work is refused, by name, before anything starts.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("heartbeat: 1", "heartbeat"),
        ("heartbeat_s: 0", "heartbeat_s"),
        ("heartbeat_s: .nan", "heartbeat_s"),
        ("heartbeat_s: .inf", "heartbeat_s"),
        ("max_topics_per_stream: many", "max_topics_per_stream"),
        ("pages: 'no'", "pages"),
        ("id_type: time", "id_type"),
        ("allowed_topics: t", "allowed_topics"),
        ("allowed_topics: [5]", "allowed_topics[0]"),
        ("kafka: 5", "kafka"),
        ("kafka: [a]", "kafka"),
        ("kafka: {security_protocol: ssl}", "kafka.security_protocol"),
        ("kafka: {security_protocol: [SSL]}", "kafka.security_protocol"),
        ("routes:", "routes"),
        ("routes: {a: {path: /a}}", "routes.a"),
        ("routes: {a: {path: a, topics: [t]}}", "routes.a.path"),
        ("routes: {a: {path: /a, topics: []}}", "routes.a.topics"),
        ("routes: {a: {path: /a, topics: [t], start: now}}", "routes.a.start"),
        ("routes: {topics: {path: /a, topics: [t]}}", "routes.topics"),
        ("routes: {a: {path: /a, topics: [t]}, b: {path: /a, topics: [u]}}", "routes.b.path"),
        *[(f"kafka: {{{name}: x}}", f"kafka.{name}") for name in sorted(KAFKA_NOT_YOURS)],
        ("- a", "mapping"),
        ("5", "mapping"),
        ("{", "YAML"),
    ],
)
def test_a_bad_file_names_the_setting(write: Callable[[str], Path], text: str, named: str) -> None:
    """Each mistake is one sentence that names the setting."""
    assert named in refusal(file=write(text))


@pytest.mark.parametrize(
    ("variable", "text", "named"),
    [
        ("KAFKASSE_HEARTBEAT_S", "soon", "KAFKASSE_HEARTBEAT_S"),
        ("KAFKASSE_HEARTBEAT_S", "", "KAFKASSE_HEARTBEAT_S"),
        ("KAFKASSE_HEARTBEAT_S", "nan", "heartbeat_s"),
        ("KAFKASSE_MAX_TOPICS_PER_STREAM", "2.5", "max_topics_per_stream"),
        ("KAFKASSE_PAGES", "maybe", "pages"),
        ("KAFKASSE_ID_TYPE", "time", "id_type"),
        ("KAFKASSE_KAFKA_SECURITY_PROTOCOL", "SASL-SSL", "kafka.security_protocol"),
        ("KAFKASSE_KAFKA_GROUP_ID", "mine", "kafka.group_id"),
        ("KAFKASSE_CONFIG", "/nowhere/kafkasse.yaml", "/nowhere/kafkasse.yaml"),
        ("KAFKASSE_CONFIG", "/", "/"),
        ("KAFKA_URL", "localhost:9092", "KAFKA_URL"),
        ("KAFKA_URL", "kafka+ssl://a:1,kafka://b:1", "KAFKA_URL"),
        ("KAFKA_URL", "kafka+ssl://", "KAFKA_URL"),
        ("KAFKA_URL", ",", "KAFKA_URL"),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str, named: str) -> None:
    """The same from the environment."""
    assert named in refusal(environ={variable: text})


def test_an_empty_file_sets_nothing(write: Callable[[str], Path]) -> None:
    """A file without settings, or with a heading and nothing below it, is no mistake."""
    assert settings_of(Config.load({})) == settings_of(Config.load({}, write("")))
    assert settings_of(Config.load({})) == settings_of(Config.load({}, write("kafka:\n")))


def test_a_password_is_never_shown() -> None:
    """What is wrong with Kafka's settings is said without the settings."""
    assert "secret" not in refusal(kafka={"sasl_plain_password": "secret", "group_id": "g"})


def test_an_unknown_setting_in_code() -> None:
    """A setting that does not exist is refused in code as well."""
    assert "heartbeat" in refusal(heartbeat=1)


# Routes.


def test_routes(write: Callable[[str], Path]) -> None:
    """A route has its own settings, and those of the whole where it has none."""
    file = write(
        "id_type: both\nroutes:\n  a: {path: /a, topics: [t, u], format: value, start: snapshot}\n"
        "  b: {path: /b/c, topics: [t], id_type: offset, compact_ids: true}\n"
    )

    a, b, open_route = Config.load({}, file).routes

    assert ("/a", ("t", "u"), "value", StartAt.SNAPSHOT, IdType.BOTH) == (
        a.path,
        a.topics,
        a.format,
        a.start,
        a.id_type,
    )
    assert ("kafkasse", StartAt.LATEST, IdType.OFFSET, True) == (b.format, b.start, b.id_type, b.compact_ids)
    assert (None, (), IdType.BOTH) == (open_route.topics, open_route.allowed, open_route.id_type)


# Heroku's Kafka add-on. That the certificates open a connection is tested in tests/server/test_secured.py.


def heroku(authority: Authority) -> dict[str, str]:
    certificate, key = authority.issue("kafkasse")
    return {
        "KAFKA_URL": "kafka+ssl://ec2-1.example:9096,kafka+ssl://ec2-2.example:9096,kafka+ssl://ec2-3.example:9096",
        "KAFKA_TRUSTED_CERT": authority.certificate,
        "KAFKA_CLIENT_CERT": certificate,
        "KAFKA_CLIENT_CERT_KEY": key,
        "KAFKA_PREFIX": "wabash-58799.",
    }


def test_herokus_variables(authority: Authority) -> None:
    """Several kafka+ssl brokers, a CA that alone is trusted, certificates that name no host, and the topic prefix."""
    config = Config.load(heroku(authority))

    kafka = config.kafka_settings()

    assert [f"ec2-{number}.example:9096" for number in (1, 2, 3)] == kafka["bootstrap_servers"]
    assert "SSL" == kafka["security_protocol"]
    assert "wabash-58799." == config.kafka.topic_prefix
    context = kafka["ssl_context"]
    assert (ssl.CERT_REQUIRED, False) == (context.verify_mode, context.check_hostname)
    assert 1 == len(context.get_ca_certs())
    assert "ssl_pem" not in kafka


@pytest.fixture
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_private_key_does_not_stay_on_the_disk(authority: Authority, temporary_files: Path) -> None:
    """OpenSSL reads certificates from files: theirs is gone when the context is made."""
    Config.load(heroku(authority)).kafka_settings()

    assert [] == list(temporary_files.iterdir())


@pytest.mark.parametrize("name", ["KAFKA_TRUSTED_CERT", "KAFKA_CLIENT_CERT", "KAFKA_CLIENT_CERT_KEY"])
@pytest.mark.parametrize("text", ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_certificates_that_are_none(authority: Authority, name: str, text: str) -> None:
    """A certificate that is none is a sentence that names the variables, and shows none of what they hold."""
    config = Config.load({**heroku(authority), name: text})

    with pytest.raises(ConfigurationError, match="KAFKA_TRUSTED_CERT") as refused:
        config.kafka_settings()

    assert "PRIVATE KEY" not in refused.value.detail


def test_plain_kafka_from_a_url() -> None:
    """kafka:// is Kafka without TLS, and the project's own variable wins over the add-on's."""
    kafka = Config.load({"KAFKA_URL": "kafka://a:9092, kafka://b:9092/"}).kafka_settings()

    assert {"bootstrap_servers": ["a:9092", "b:9092"], "security_protocol": "PLAINTEXT"} == kafka
    both = {"KAFKA_URL": "kafka://a:9092", "KAFKASSE_BOOTSTRAP_SERVERS": "c:9092"}
    assert "c:9092" == Config.load(both).kafka_settings()["bootstrap_servers"]
