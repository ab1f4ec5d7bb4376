"""The sources of settings: how files and variables are read, and which mistakes are found while reading them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkasse.config import Config, names
from kafkasse.errors import ConfigurationError
from tests.config.conftest import settings_of

ROOT = Path(__file__).parents[2]
Problems = Callable[..., list[str]]
Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KAFKASSE_CORS_ORIGINS", "*", "cors_origins", ["*"]),
        ("KAFKASSE_HEARTBEAT_S", "2.5", "heartbeat_s", 2.5),
        ("KAFKASSE_HEARTBEAT_S", "1e1", "heartbeat_s", 10.0),
        ("KAFKASSE_RETRY_MS", "0100", "retry_ms", 100),
        ("KAFKASSE_POSITION_EVENTS", "false", "position_events", False),
        ("KAFKASSE_POSITION_EVENTS", "True", "position_events", True),
        ("KAFKASSE_POSITION_EVENTS", "0", "position_events", False),
        ("KAFKASSE_CATALOG", "null", "catalog", None),
        ("KAFKASSE_TOPIC_PREFIX", "123", "topic_prefix", "123"),
        ("KAFKASSE_KAFKA_TIMEOUT_S", "7", "kafka_timeout_s", 7),
        ("KAFKA_PREFIX", "wabash-58799.", "topic_prefix", "wabash-58799."),
    ],
)
def test_a_variable_is_read_as_the_type_of_its_setting(variable, text, name, value):
    settings = settings_of(Config.load({variable: text}))

    assert value == settings[name]
    assert isinstance(settings[name], type(value))


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("KAFKASSE_KAFKA_REQUEST_TIMEOUT_MS", "3000", 3000),
        ("KAFKASSE_KAFKA_SSL_CHECK_HOSTNAME", "false", False),
        ("KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD", "123456", "123456"),
        ("KAFKASSE_KAFKA_SASL_PLAIN_USERNAME", "true", "true"),
        ("KAFKASSE_KAFKA_SSL_PASSWORD", "007", "007"),
        ("KAFKASSE_KAFKA_CLIENT_ID", "12", "12"),
        ("KAFKASSE_KAFKA_API_VERSION", "3, 9", [3, 9]),
    ],
)
def test_a_variable_of_kafka_is_read_as_the_type_of_its_setting(variable, text, value):
    """A password that consists of digits stays text."""
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    login |= {"sasl_plain_username": "me", "sasl_plain_password": "x"}
    variables = {f"KAFKASSE_KAFKA_{name.upper()}": given for name, given in login.items()}

    kafka = Config.load({**variables, variable: text}).kafka.kafka

    assert {**login, variable.removeprefix("KAFKASSE_KAFKA_").lower(): value} == kafka


# Unknown names. test_check.py has those of variables and arguments.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alowed_topics: [a]", "line 1: alowed_topics is not a setting: did you mean allowed_topics?"),
        ("\nfilterer: x", "line 2: filterer can be set only in code, because it is a function."),
        ("ssl_cafile: x", "line 1: ssl_cafile is not a setting: did you mean kafka.ssl_cafile?"),
        ("kafka:\n  ssl_cafiel: x",
         "line 2: kafka.ssl_cafiel is not a client setting of kafka-python: did you mean ssl_cafile?"),
        ("kafka:\n  group_id: x", "line 2: kafka.group_id is set by kafkasse itself: remove it."),
        ("kafka: {ssl_context: x}",
         "line 1: kafka.ssl_context can be set only in code, because it is a Python object."),
        ("routes:\n  a: {path: /a, topics: [t],\n   fromat: value}",
         "line 3: routes.a.fromat is not a setting of a route: did you mean format?"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_an_error(problems, write, text, problem):
    file = write(text)

    assert [f"{file}, {problem}"] == problems(file=file)


@pytest.mark.parametrize(
    "folder",
    ["kafkasse", "tests/history", "tests/support", "bench", "docs", "examples", ".ci", "Makefile", "README.md"],
)
def test_every_variable_in_the_repository_is_known(folder):
    files = [ROOT / folder] if (ROOT / folder).is_file() else (ROOT / folder).rglob("*")
    own = ("names.py", "sources.py", "__pycache__")
    text = "".join(
        file.read_text(errors="replace")
        for file in files
        if file.is_file() and not any(part in str(file) for part in own)
    )

    used = set(re.findall(r"\bKAFKASSE_[A-Z][A-Z_]*[A-Z]\b", text)) - {"KAFKASSE_KAFKA", "KAFKASSE_ALOWED_TOPICS"}

    assert set() == set(filter(_is_unknown, used))


def _is_unknown(name: str) -> bool:
    try:
        Config.load({name: "1"})
    except ConfigurationError as error:
        return "is not a" in str(error)
    return False


def test_variables_that_are_no_settings_are_accepted():
    """Other parts of kafkasse read variables such as KAFKASSE_BIND. Kubernetes creates some for a service `kafkasse`."""
    kubernetes = {
        "KAFKASSE_PORT": "tcp://10.0.0.1:6917",
        "KAFKASSE_SERVICE_HOST": "10.0.0.1",
        "KAFKASSE_SERVICE_PORT": "6917",
        "KAFKASSE_SERVICE_PORT_HTTP": "6917",
        "KAFKASSE_PORT_6917_TCP": "tcp://10.0.0.1:6917",
        "KAFKASSE_PORT_6917_TCP_PORT": "6917",
        "KAFKASSE_PORT_6917_TCP_ADDR": "10.0.0.1",
        "KAFKASSE_SHOP_SERVICE_HOST": "10.0.0.1",
        "KAFKASSE_KAFKA_PORT": "tcp://10.0.0.2:9092",
        "KAFKASSE_KAFKA_SERVICE_PORT": "9092",
    }

    Config.load({name: "a:1" if "SERVERS" in name else "" for name in names.OTHER_VARIABLES} | kubernetes)


# Files.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_streams: 1\nmax_streams: 2", ", line 2: max_streams is set twice, first in line 1. Remove one."),
        ("{max_streams: 1, max_streams: 2}", ", line 1: max_streams is set twice, first in line 1. Remove one."),
        ("- a", ": the file must be a mapping of settings."),
        ("5", ": the file must be a mapping of settings."),
        ("a: [", ", line 1: this is not valid YAML: "),
        ("kafka:\n\tsasl_plain_password: s3cret",
         ", line 2: this is not valid YAML: a line is indented with a tab: use spaces."),
        ("a: s3cret: b", ", line 1: this is not valid YAML: a value contains a colon, or a line is indented too far"),
        ("a: 's3cret", ", line 1: this is not valid YAML: a quote or a bracket is not closed."),
        ("retry_ms: 0b_", ", line 1: this is not valid YAML: this value cannot be read; put text in quotes."),
        ("a: 1\n---\nb: 1", ", line 2: this is not valid YAML: "),
        ("a: " + "[" * 3000, ": the lists and mappings are nested too deeply."),
        ("topic_prefix: \0", ": this is not a text file in UTF-8."),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(problems, write, text, problem):
    file = write(text)

    assert problems(file=file)[0].startswith(f"{file}{problem}")


@pytest.mark.parametrize("path", ["/nowhere/kafkasse.yaml", "/"])
def test_a_file_that_does_not_exist(problems, path):
    (message,) = problems({"KAFKASSE_CONFIG": path})

    assert message.startswith(f"The configuration file {path} cannot be read: ")


def test_aliases_of_a_file_are_read(write):
    file = write("routes:\n  a: {path: /a, topics: &topics [t]}\n  b: {path: /b, topics: *topics}\n")

    assert ("t",) == Config.load({}, file).routes[1].topics


def test_all_problems_are_reported_at_once(problems, write):
    """Problems of the file, the environment and the arguments are reported together, up to a maximum number."""
    file = write("retry_ms: x\nalowed_topics: [a]\n")

    assert 4 == len(problems({"KAFKASSE_FOO": "1"}, file, max_streams=0))
    messages = problems({f"KAFKASSE_FOO{n}": "1" for n in range(50)})
    assert (21, "There are 30 more problems.") == (len(messages), messages[-1])


def test_a_variable_does_not_hide_a_mistake_in_the_file(problems, write):
    """`kafka` must be a mapping even if a variable sets one of its settings."""
    (message,) = problems({"KAFKASSE_BOOTSTRAP_SERVERS": "a:1"}, write("kafka: 5"))

    assert "line 1: kafka must be a mapping of client settings, not 5." in message


def test_a_problem_never_has_two_lines(problems):
    values: dict[str, Any] = {"topic_prefix": "a\nb", "id_type": "x\r\ny", "cors_origins": [""]}

    assert 3 == len(problems(**values))
