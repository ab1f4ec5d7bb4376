"""`kafkasse config`: the effective settings and their sources, without secrets. `kafkasse key create`: a new API key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkasse import schemas
from kafkasse.access.api_keys import ApiKeys
from tests.commands.run import Run

SETTINGS = schemas.read("config")["properties"]
TEXT = "retry_ms: 1\nkafka: {sasl_plain_password: hunter2}\nroutes:\n  a: {path: /a, topics: [t]}\n"


@pytest.fixture
def printed(run: Run, tmp_path: Path) -> Callable[..., str]:
    file = tmp_path / "kafkasse.yaml"
    file.write_text(TEXT)

    variables = {"KAFKASSE_MAX_STREAMS": "5", "KAFKASSE_KAFKA_SSL_PASSWORD": "hunter2"}

    def printed(*options: str) -> str:
        done = run("config", str(file), *options, **variables)
        assert 0 == done.code
        return done.out

    return printed


def test_prints_each_setting_with_its_source(printed: Callable[..., str]) -> None:
    """The output has aligned columns: the name, the value as JSON, and the source."""
    lines = printed().splitlines()

    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert ["5", "KAFKASSE_MAX_STREAMS"] == rows["max_streams"]
    assert ["4", "default"] == rows["heartbeat_s"]
    assert ["false", "default"] == rows["cors_credentials"]
    assert ['"localhost:9092"', "default"] == rows["kafka.bootstrap_servers"]
    assert rows["retry_ms"][1].endswith("kafkasse.yaml, line 1")
    assert rows["routes.a.path"][1].endswith("kafkasse.yaml, line 4")
    assert set(SETTINGS) - {"kafka", "routes"} <= set(rows)
    assert 1 == len({line.index(rows[line.split()[0]][0], len(line.split()[0])) for line in lines})


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_masks_secrets(printed: Callable[..., str], options: tuple[str, ...]) -> None:
    out = printed(*options)

    assert "hunter2" not in out
    assert 2 == out.count('"********"')


def test_prints_json(printed: Callable[..., str]) -> None:
    """For scripts, --json prints one object that maps each name to its value and source."""
    settings = json.loads(printed("--json"))

    assert {"value": 5, "source": "KAFKASSE_MAX_STREAMS"} == settings["max_streams"]


def test_rejects_a_configuration_that_is_not_valid(run: Run) -> None:
    """Each problem is one line."""
    code, _, err = run("config", KAFKASSE_MAX_STREAM="5", KAFKASSE_PAGES="maybe")

    assert (1, 2) == (code, err.count("\n"))


def test_the_help_of_serve_mentions_check_and_config(run: Run) -> None:
    help_text = run("serve", "--help").out

    assert "kafkasse check" in help_text
    assert "kafkasse config" in help_text


def test_prints_a_key_and_its_line(run: Run, tmp_path: Path) -> None:
    """A guard with the line in its file accepts the key."""
    _, key, _, _, line = run("key", "create", "partner-1").out.splitlines()

    (tmp_path / "keys").write_text(line)
    visitor = ApiKeys("partners", str(tmp_path / "keys"), logging.getLogger()).identify(key)

    assert ("partner-1", {"sub": "partner-1"}) == (visitor.name, visitor.claims)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "#a", "a" * 101])
def test_rejects_a_name_that_does_not_fit_into_a_line(run: Run, name: str) -> None:
    code, _, err = run("key", "create", name)

    assert (1, True) == (code, "A name has 1 to 100 characters" in err)
