"""`kafkasse config` and `kafkasse init`: settings and their sources, without secrets. `kafkasse key create`: an API key."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kafkasse import schemas
from kafkasse.access.api_keys import ApiKeys
from kafkasse.config import Config
from tests.commands.run import Run

SETTINGS = schemas.read("config")["properties"]
LOGIN = "security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_plain_username: me, sasl_plain_password: hunter2"
TEXT = f"retry_ms: 1\nkafka: {{{LOGIN}}}\nroutes:\n  a: {{path: /a, topics: [t]}}\n"


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


def test_prints_each_setting_with_its_source(printed):
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


def test_masks_secrets_and_prints_json(printed):
    """For scripts, --json prints one object that maps each name to its value and source."""
    outputs = printed(), printed("--json")

    assert {"value": 5, "source": "KAFKASSE_MAX_STREAMS"} == json.loads(outputs[1])["max_streams"]
    assert [(0, 2), (0, 2)] == [(out.count("hunter2"), out.count('"********"')) for out in outputs]


def test_rejects_a_configuration_that_is_not_valid(run):
    """Each problem is one line."""
    code, _, err = run("config", KAFKASSE_MAX_STREAM="5", KAFKASSE_PAGES="maybe")

    assert (1, 2) == (code, err.count("\n"))


def test_the_help_of_serve_mentions_check_and_config(run):
    help_text = run("serve", "--help").out

    assert "kafkasse check" in help_text
    assert "kafkasse config" in help_text


def test_prints_a_key_and_its_line(run, tmp_path):
    """A guard with the line in its file accepts the key."""
    _, key, _, _, line = run("key", "create", "partner-1").out.splitlines()

    (tmp_path / "keys").write_text(line)
    visitor = ApiKeys("partners", str(tmp_path / "keys"), logging.getLogger()).identify(key)

    assert ("partner-1", {"sub": "partner-1"}) == (visitor.name, visitor.claims)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "#a", "a" * 101])
def test_rejects_a_name_that_does_not_fit_into_a_line(run, name):
    code, _, err = run("key", "create", name)

    assert (1, True) == (code, "A name has 1 to 100 characters" in err)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kafkasse.yaml"


def test_writes_a_configuration_that_works(run, cluster, fresh_name, file):
    """With topics and --public, `kafkasse check` accepts the file without a change."""
    cluster.create(fresh_name)

    topics = f"{fresh_name}, {fresh_name}.*"
    options = ["--bootstrap-servers", cluster.bootstrap_servers, "--topics", topics, "--public"]
    done = run("init", str(file), *options)
    checked = run("check", str(file))

    assert (0, 0, "") == (done.code, checked.code, checked.err)
    assert f"{fresh_name}  1 partition" in checked.out
    assert done.out.endswith(f"Then run: kafkasse check {file}\n")


def test_serves_nothing_until_topics_are_allowed(run, cluster, fresh_name, file):
    """The file is valid and lists the existing topics in comments. The next steps are in the output."""
    topic = f"0{fresh_name}"  # sorts before other topics; init lists only the first 100
    cluster.create(topic, 3)

    done = run("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers)
    config = Config.load({}, file)

    assert f"#   {topic}  (3 partitions)" in file.read_text().splitlines()
    assert ((), {}) == (tuple(config.route.allowed_topics), dict(config.route.routes))
    assert "Edit the file: allow topics and say who may read them.\n" in done.out


def test_the_comments_are_valid_settings(run, cluster, file):
    run("init", str(file), "--bootstrap-servers", cluster.bootstrap_servers)
    lines = file.read_text().splitlines()
    names = (*schemas.read("config")["properties"], "  live", "    ")
    active = [
        line[2:] if line.startswith(tuple(f"# {name}" for name in names)) and ":" in line else line for line in lines
    ]
    file.write_text("\n".join(active))
    (file.parent / "partner-keys").write_text("partner-1:" + 64 * "0")

    config = Config.load({}, file)

    assert ["/live", "/{topics}"] == [route.path for route in config.routes]
    assert len(yaml.safe_load(file.read_text())) > 8


def test_keeps_passwords_out_of_the_file(run, cluster, file):
    """Settings of the connection come from the environment into the file, except secrets."""
    variables = {"KAFKASSE_KAFKA_CLIENT_ID": "shop", "KAFKASSE_KAFKA_SSL_PASSWORD": "s3cret"}
    done = run("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers, **variables)

    assert 0 == done.code, done.err
    kafka = yaml.safe_load(file.read_text())["kafka"]
    assert {"bootstrap_servers": cluster.bootstrap_servers, "client_id": "shop"} == kafka
    assert "s3cret" not in file.read_text() + done.out + done.err


def test_does_not_replace_a_file(run, file):
    """--force is needed, so that no work is lost."""
    file.write_text("heartbeat_s: 9")

    done = run("init", str(file))

    assert (1, "heartbeat_s: 9") == (done.code, file.read_text())
    assert f"kafkasse init: {file} exists; choose another file, or replace it with --force\n" == done.err


@pytest.mark.parametrize("old", [None, "heartbeat_s: 9"])
@pytest.mark.processes
def test_a_full_disk_does_not_change_the_file(cluster, file, old):
    """The old file stays. If there was none, no part of the new file is left."""
    if old:
        file.write_text(old)
    command = f"{sys.executable} -m kafkasse init --force --bootstrap-servers {cluster.bootstrap_servers} {file}"

    # The limit of the size of a file has the same effect as a full disk.
    done = subprocess.run(["sh", "-c", f"ulimit -f 1; {command}"], stderr=subprocess.PIPE, timeout=60, check=False)

    assert (1, f"kafkasse init: {file} cannot be written: File too large\n".encode()) == (done.returncode, done.stderr)
    assert ([file] if old else []) == [*file.parent.iterdir()]
    assert old is None or old == file.read_text()


def test_writes_nothing_if_kafka_does_not_answer(run, file):
    done = run("init", str(file), "--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, False) == (done.code, file.exists())
    assert done.err.startswith("kafkasse init: Kafka is unavailable.")
