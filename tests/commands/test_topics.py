"""`kafkasse topics` lists the topics of a real broker and the paths at which they are streamed."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.commands.run import Run
from tests.support.kafka import Cluster


def test_lists_the_topics_and_their_paths(run: Run, cluster: Cluster, fresh_name: str, tmp_path: Path) -> None:
    """A topic without a path is not served. A topic that a route names but that does not exist is missing."""
    for suffix, partitions in ((".a", 1), (".b", 3), (".c", 1)):
        cluster.create(f"{fresh_name}{suffix}", partitions)
    file = tmp_path / "kafkasse.yaml"
    settings = {
        "kafka": {"bootstrap_servers": cluster.bootstrap_servers},
        "topic_prefix": f"{fresh_name}.",
        "public": True,
        "allowed_topics": ["a", "b"],
        "routes": {"prices": {"path": "/prices", "topics": ["b", "gone"]}},
    }
    file.write_text(yaml.safe_dump(settings))

    table = run("topics", str(file))
    objects = run("topics", str(file), "--json")

    assert (0, "") == (table.code, table.err)
    assert table.out.splitlines() == [
        "TOPIC  PARTITIONS  STREAMED AT",
        "a      1           /a",
        "b      3           /prices, /b",
        "c      1           -",
        "gone   missing     /prices",
    ]
    assert {"topic": "b", "cluster": "", "partitions": 3, "paths": ["/prices", "/b"]} == json.loads(
        objects.out.splitlines()[1]
    )


def test_lists_topics_without_a_configuration(run: Run, cluster: Cluster, fresh_name: str) -> None:
    """Only the address is needed. Internal topics are listed on request."""
    cluster.create(fresh_name)
    cluster.create(f"__{fresh_name}")

    short = run("topics", "--bootstrap-servers", cluster.bootstrap_servers)
    complete = run("topics", "--bootstrap-servers", cluster.bootstrap_servers, "--internal")

    assert [fresh_name, "1", "-"] in [line.split() for line in short.out.splitlines()]
    assert f"__{fresh_name}" not in short.out
    assert f"__{fresh_name}" in complete.out


def test_a_kafka_that_does_not_answer_is_one_sentence(run: Run) -> None:
    done = run("topics", "--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, "") == (done.code, done.out)
    assert done.err.startswith("kafkasse topics: Kafka is unavailable.")
