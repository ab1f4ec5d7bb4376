"""Secrets never appear: not in repr(), not in an error, not among the effective settings. The tests use a canary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError

CANARY = "hunter2"
LOGIN = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}


class Provider:
    def token(self) -> str:
        return CANARY

    def __repr__(self) -> str:
        return CANARY


def everything_shown(load: Callable[[], Config]) -> str:
    """The errors of a configuration, or its repr() and its effective settings."""
    try:
        config = load()
    except ConfigurationError as error:
        return f"{error!r} {error} {error.problem()}"
    return f"{config!r} {config} {list(config.effective())}"


@pytest.mark.parametrize(
    "load",
    [
        lambda: Config(kafka={**LOGIN, "sasl_plain_password": CANARY}),
        lambda: Config(kafka={**LOGIN, "sasl_plain_password": CANARY, "group_id": "x"}),
        lambda: Config(kafka={**LOGIN, "sasl_plain_password": [CANARY]}),
        lambda: Config(kafka={"sasl_oauth_token_provider": Provider()}),
        lambda: Config(
            kafka={
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": Provider(),
            }
        ),
        lambda: Config(filterer=lambda message, secret=CANARY: message == secret),
        lambda: Config(kafka={"ssl_password": CANARY}),
        lambda: Config(kafka={"ssl_passwrod": CANARY}),
        lambda: Config(kafka={"bootstrap_servers": f"me:{CANARY}@a:9092"}),
        lambda: Config(kafka={"bootstrap_servers": [f"kafka://me:{CANARY}@a:9092"]}),
        lambda: Config(kafka={"proxy_url": f"socks5://me:{CANARY}@a:1080"}),
        lambda: Config(kafka=CANARY),
        lambda: Config(clusters=CANARY),
        lambda: Config(clusters=[CANARY]),
        lambda: Config(clusters={"eu": CANARY}),
        lambda: Config(clusters={"eu": {"bootstrap_servers": "a:1", **LOGIN, "sasl_plain_password": CANARY}}),
        lambda: Config(clusters={"eu": {**LOGIN, "sasl_plain_password": CANARY}}),
        lambda: Config(clusters={"eu": {"sasl_plain_password": {"a": CANARY}}}),
        lambda: Config.load({"KAFKASSE_CLUSTERS": CANARY}),
        lambda: Config.load({"KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWORD": CANARY}),
        lambda: Config.load({"KAFKASSE_CLUSTERS_EU_SASL_PLAIN_PASSWROD": CANARY}),
        lambda: Config(sasl_plain_password=CANARY),
        lambda: Config.load({"KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": CANARY}),
        lambda: Config.load({"KAFKASSE_KAFKA_SASL_PLAIN_PASWORD": CANARY}),
        lambda: Config.load({"KAFKASSE_SASL_PLAIN_PASSWORD": CANARY}),
        lambda: Config.load({"KAFKASSE_BOOTSTRAP_SERVERS": f"me:{CANARY}@a:9092"}),
        lambda: Config.load({"KAFKASSE_KAFKA_SASL_OAUTH_TOKEN_PROVIDER": CANARY}),
        lambda: Config.load({"KAFKA_URL": f"kafka://me:{CANARY}@a:9092"}),
        lambda: Config.load({"KAFKA_URL": "kafka+ssl://a:1", "KAFKA_TRUSTED_CERT": CANARY}),
        lambda: Config.load(
            {"KAFKA_URL": "kafka+ssl://a:1", "KAFKA_TRUSTED_CERT": "x", "KAFKA_CLIENT_CERT_KEY": CANARY}
        ),
    ],
)
def test_secrets_in_code_and_variables(load):
    assert CANARY not in everything_shown(load)


@pytest.mark.parametrize(
    "text",
    [
        "kafka: hunter2",
        "kafka:\n  sasl_plain_password: hunter2",
        "kafka:\n  sasl_plain_password:hunter2",
        "kafka: {sasl_plain_password:hunter2}",
        "kafka: {sasl_plain_password:hunter2, sasl_plain_password:hunter2}",
        "kafka:\n  sasl_plain_password: hunter2: x",
        "kafka:\n  sasl_plain_password: *hunter2",
        "kafka:\n  sasl_plain_password: &hunter2 x\n  client_id: &hunter2 x",
        "kafka:\n  sasl_plain_password: !hunter2 x",
        "kafka:\n  sasl_plain_password: !!int hunter2",
        "kafka:\n  sasl_plain_password: !h!hunter2 x",
        "kafka:\n  sasl_plain_password: %hunter2",
        "kafka:\n  sasl_plain_password: @hunter2",
        "kafka:\n  sasl_plain_password: 'hunter2",
        'kafka:\n  sasl_plain_password: "hunter2\\q"',
        "kafka:\n  sasl_plain_password: [hunter2",
        "kafka:\n  sasl_plain_password: {hunter2: 1}",
        "kafka:\n\tsasl_plain_password: hunter2",
        "kafka:\n  - sasl_plain_password: hunter2",
        "routes:\n  sasl_plain_password: hunter2",
        "clusters: hunter2",
        "clusters:\n  eu: hunter2",
        "clusters:\n  eu:\n    sasl_plain_password: hunter2",
        "clusters:\n  eu:\n    sasl_plain_passwrod: hunter2",
        "%hunter2",
        "hunter2",
    ],
    ids=str.__len__,  # pytest puts the ID into the path of the file
)  # fmt: skip
def test_secrets_in_a_file(write, text):
    """Unlike PyYAML's errors, our errors quote neither the line nor the value."""
    file = write(text)

    shown = everything_shown(lambda: Config.load({}, file))

    assert CANARY not in shown


def test_only_secrets_are_masked():
    """The settings of a route are not secrets, even if the route is called `tokens`. The client gets the secret."""
    routes = {"tokens": {"path": "/tokens", "topics": ["t"]}}
    config = Config(kafka={**LOGIN, "sasl_plain_password": CANARY}, routes=routes)

    effective = {setting.name: setting.value for setting in config.effective()}

    assert ("********", "/tokens") == (effective["kafka.sasl_plain_password"], effective["routes.tokens.path"])
    assert CANARY == config.kafka_settings()["sasl_plain_password"]


PLACES = st.sampled_from(
    ["{}", "a: {}", "kafka: {}", "kafka:\n  ssl_password: {}", "kafka: {{ssl_password: {}", "- {}"]
)
FRAMES = st.sampled_from(
    ["{}", "'{}", '"{}', "*{}", "&{}", "!{}", "%{}", "@{}", "{}:", "- {}", "!!int {}", "? {}", "|{}"]
)


@given(PLACES, FRAMES, st.text(max_size=4), st.text(max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_makes_an_error_quote_a_secret(tmp_path, place, frame, before, after):
    """No error quotes a secret value, whatever text surrounds it. A secret in place of a name may be shown."""
    file = tmp_path / "kafkasse.yaml"
    with contextlib.suppress(UnicodeEncodeError):
        file.write_text(place.format(frame.format(f"{before}{CANARY}!{after}")))

    shown = everything_shown(lambda: Config.load({}, file))

    assert f"{CANARY}!" not in shown
