"""`kafkasse init` writes a configuration that is valid and works with the Kafka that it found."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kafkasse import schemas
from kafkasse.config import Config
from tests.commands.run import Run
from tests.support.kafka import Cluster


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kafkasse.yaml"


def test_writes_a_configuration_that_works(run: Run, cluster: Cluster, fresh_name: str, file: Path) -> None:
    """With topics and --public, `kafkasse check` accepts the file without a change."""
    cluster.create(fresh_name)

    options = ["--bootstrap-servers", cluster.bootstrap_servers, "--topics", f"{fresh_name},{fresh_name}.*", "--public"]
    done = run("init", str(file), *options)
    checked = run("check", str(file))

    assert (0, 0, "") == (done.code, checked.code, checked.err)
    assert f"{fresh_name}  1 partition" in checked.out
    assert done.out.endswith(f"Then run: kafkasse check {file}\n")


def test_serves_nothing_until_topics_are_allowed(run: Run, cluster: Cluster, fresh_name: str, file: Path) -> None:
    """The file is valid and lists the existing topics in comments. The next steps are in the output."""
    topic = f"0{fresh_name}"  # sorts before other topics; init lists only the first 100
    cluster.create(topic, 3)

    done = run("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers)
    config = Config.load({}, file)

    assert f"#   {topic}  (3 partitions)" in file.read_text().splitlines()
    assert ((), {}) == (tuple(config.route.allowed_topics), dict(config.route.routes))
    assert "Edit the file: allow topics and say who may read them.\n" in done.out


def test_the_comments_are_valid_settings(run: Run, cluster: Cluster, file: Path) -> None:
    run("init", str(file), "--bootstrap-servers", cluster.bootstrap_servers)
    lines = file.read_text().splitlines()
    names = (*schemas.read("config")["properties"], "  live", "    ")
    active = [
        line[2:] if line.startswith(tuple(f"# {name}" for name in names)) and ":" in line else line for line in lines
    ]
    file.write_text("\n".join(active))

    config = Config.load({}, file)

    assert ["/live", "/{topics}"] == [route.path for route in config.routes]
    assert len(yaml.safe_load(file.read_text())) > 8


def test_keeps_passwords_out_of_the_file(run: Run, cluster: Cluster, file: Path) -> None:
    """Settings of the connection come from the environment into the file, except secrets."""
    variables = {"KAFKASSE_KAFKA_CLIENT_ID": "shop", "KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "s3cret"}
    done = run("init", str(file), KAFKASSE_BOOTSTRAP_SERVERS=cluster.bootstrap_servers, **variables)

    assert 0 == done.code, done.err
    kafka = yaml.safe_load(file.read_text())["kafka"]
    assert {"bootstrap_servers": cluster.bootstrap_servers, "client_id": "shop"} == kafka
    assert "s3cret" not in file.read_text() + done.out + done.err


def test_does_not_replace_a_file(run: Run, file: Path) -> None:
    """--force is needed, so that no work is lost."""
    file.write_text("heartbeat_s: 9")

    done = run("init", str(file))

    assert (1, "heartbeat_s: 9") == (done.code, file.read_text())
    assert f"kafkasse init: {file} exists; choose another file, or replace it with --force\n" == done.err


def test_writes_nothing_if_kafka_does_not_answer(run: Run, file: Path) -> None:
    done = run("init", str(file), "--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, False) == (done.code, file.exists())
    assert done.err.startswith("kafkasse init: Kafka is unavailable.")
