"""`kafkasse init` writes a configuration that is valid and works with the Kafka that it found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kafkasse import schemas
from kafkasse.broker import EmbeddedBroker
from kafkasse.config import Config
from tests.support.kafka import Cluster

pytestmark = pytest.mark.processes

TIMEOUT_S = 60
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def kafkasse(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafkasse", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kafkasse.yaml"


def test_writes_a_configuration_that_works(
    broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, file: Path
) -> None:
    """With topics and --public, `kafkasse check` accepts the file without a change."""
    cluster.create(fresh_name)

    options = ["--bootstrap-servers", broker.bootstrap_servers, "--topics", f"{fresh_name},{fresh_name}.*", "--public"]
    done = kafkasse("init", str(file), *options)
    checked = kafkasse("check", str(file))

    assert (0, 0, "") == (done.returncode, checked.returncode, checked.stderr)
    assert f"{fresh_name}  1 partition" in checked.stdout
    assert done.stdout.endswith(f"Then run: kafkasse check {file}\n")


def test_serves_nothing_until_topics_are_allowed(
    broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, file: Path
) -> None:
    """The file is valid and lists the existing topics in comments. The next steps are in the output."""
    topic = f"0{fresh_name}"  # sorts before other topics; init lists only the first 100
    cluster.create(topic, 3)

    done = kafkasse("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers)
    config = Config.load({}, file)

    assert f"#   {topic}  (3 partitions)" in file.read_text().splitlines()
    assert ((), {}) == (tuple(config.route.allowed_topics), dict(config.route.routes))
    assert "Edit the file: allow topics and say who may read them.\n" in done.stdout


def test_the_comments_are_valid_settings(broker: EmbeddedBroker, file: Path) -> None:
    """Each setting in a comment is valid if it is uncommented."""
    kafkasse("init", str(file), "--bootstrap-servers", broker.bootstrap_servers)
    lines = file.read_text().splitlines()
    names = (*schemas.read("config")["properties"], "  live", "    ")
    active = [
        line[2:] if line.startswith(tuple(f"# {name}" for name in names)) and ":" in line else line for line in lines
    ]
    file.write_text("\n".join(active))

    config = Config.load({}, file)

    assert ["/live", "/{topics}"] == [route.path for route in config.routes]
    assert len(yaml.safe_load(file.read_text())) > 8


def test_keeps_passwords_out_of_the_file(broker: EmbeddedBroker, file: Path) -> None:
    """Settings of the connection come from the environment into the file, except secrets."""
    variables = {"KAFKASSE_KAFKA_CLIENT_ID": "shop", "KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "s3cret"}
    done = kafkasse("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=broker.bootstrap_servers, **variables)

    assert 0 == done.returncode, done.stderr
    assert {"bootstrap_servers": broker.bootstrap_servers, "client_id": "shop"} == yaml.safe_load(file.read_text())[
        "kafka"
    ]
    assert "s3cret" not in file.read_text() + done.stdout + done.stderr


def test_does_not_replace_a_file(file: Path) -> None:
    """--force is needed, so that no work is lost."""
    file.write_text("heartbeat_s: 9")

    done = kafkasse("init", str(file))

    assert (1, "heartbeat_s: 9") == (done.returncode, file.read_text())
    assert f"kafkasse init: {file} exists; choose another file, or replace it with --force\n" == done.stderr


def test_writes_nothing_if_kafka_does_not_answer(file: Path) -> None:
    """The reason is one sentence."""
    done = kafkasse("init", str(file), "--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, False) == (done.returncode, file.exists())
    assert done.stderr.startswith("kafkasse init: Kafka is unavailable.")
