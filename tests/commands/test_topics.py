"""`kafkasse topics` lists the topics of a real broker and the paths at which they are streamed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kafkasse.broker import EmbeddedBroker
from tests.support.kafka import Cluster

pytestmark = pytest.mark.processes

TIMEOUT_S = 60
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def topics(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafkasse", "topics", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_lists_the_topics_and_their_paths(
    broker: EmbeddedBroker, cluster: Cluster, fresh_name: str, tmp_path: Path
) -> None:
    """A topic without a path is not served. A topic that a route names but that does not exist is missing."""
    for suffix, partitions in ((".a", 1), (".b", 3), (".c", 1)):
        cluster.create(f"{fresh_name}{suffix}", partitions)
    file = tmp_path / "kafkasse.yaml"
    settings = {
        "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        "topic_prefix": f"{fresh_name}.",
        "public": True,
        "allowed_topics": ["a", "b"],
        "routes": {"prices": {"path": "/prices", "topics": ["b", "gone"]}},
    }
    file.write_text(yaml.safe_dump(settings))

    table = topics(str(file))
    objects = topics(str(file), "--json")

    assert (0, "") == (table.returncode, table.stderr)
    assert table.stdout.splitlines() == [
        "TOPIC  PARTITIONS  STREAMED AT",
        "a      1           /a",
        "b      3           /prices, /b",
        "c      1           -",
        "gone   missing     /prices",
    ]
    assert {"topic": "b", "cluster": "", "partitions": 3, "paths": ["/prices", "/b"]} == json.loads(
        objects.stdout.splitlines()[1]
    )


def test_lists_topics_without_a_configuration(broker: EmbeddedBroker, cluster: Cluster, fresh_name: str) -> None:
    """Only the address is needed. Internal topics are listed on request."""
    cluster.create(fresh_name)
    cluster.create(f"__{fresh_name}")

    short = topics("--bootstrap-servers", broker.bootstrap_servers)
    complete = topics("--bootstrap-servers", broker.bootstrap_servers, "--internal")

    assert [fresh_name, "1", "-"] in [line.split() for line in short.stdout.splitlines()]
    assert f"__{fresh_name}" not in short.stdout
    assert f"__{fresh_name}" in complete.stdout


def test_a_kafka_that_does_not_answer_is_one_sentence() -> None:
    """The exit code is 1."""
    done = topics("--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.splitlines()[-1].startswith("kafkasse topics: Kafka is unavailable.")
