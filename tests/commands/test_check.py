"""`kafkasse check` lists what a server would serve from a real broker, and prints one sentence for each problem."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.broker import EmbeddedBroker
from tests.support.kafka import Cluster

TIMEOUT_S = 60
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
ENVIRONMENT["KAFKASSE_PUBLIC"] = "true"
Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(broker: EmbeddedBroker, tmp_path: Path) -> Check:
    """Run `kafkasse check` with a file of these settings."""

    def check(**settings: Any) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "kafkasse.yaml"
        file.write_text(yaml.safe_dump({"kafka": {"bootstrap_servers": broker.bootstrap_servers}, **settings}))
        command = [sys.executable, "-m", "kafkasse", "check", str(file)]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S)

    return check


def test_lists_the_topics_of_each_route(check: Check, cluster: Cluster, fresh_name: str) -> None:
    """The output has each route with its topics and their partitions, including the topics that allowed_topics matches."""
    for suffix, partitions in ((".a", 1), (".b", 3)):
        cluster.create(f"{fresh_name}{suffix}", partitions)

    done = check(
        topic_prefix=f"{fresh_name}.", allowed_topics=["*"], routes={"prices": {"path": "/prices", "topics": ["b"]}}
    )

    assert (0, "") == (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    assert ["/prices", "  b  3 partitions", "/{topics}", "  a  1 partition", "  b  3 partitions"] == lines[1:-1]


def test_warns_about_a_personal_route_whose_topic_everyone_can_read(
    check: Check, cluster: Cluster, fresh_name: str
) -> None:
    """The warning is on stderr. The configuration is valid nevertheless."""
    cluster.create(fresh_name)
    keys = {"jwt": {"jwks_url": "https://id.example/", "issuer": "i", "audience": "a", "algorithms": ["RS256"]}}
    mine = {"path": "/mine", "topics": [fresh_name], "access": ["keys"], "where": {"key": "{claims.sub}"}}

    done = check(allowed_topics=["*"], guards={"keys": keys}, routes={"mine": mine})

    assert 0 == done.returncode
    assert (
        f"their own records of the topic {fresh_name}, but the same visitors can read the whole topic at /{{topics}}"
        in (done.stderr)
    )


def test_checks_each_cluster(check: Check, broker: EmbeddedBroker, cluster: Cluster, fresh_name: str) -> None:
    """A cluster that does not answer is a problem. The topics of the other clusters are listed anyway."""
    cluster.create(fresh_name)
    servers = broker.bootstrap_servers

    done = check(
        kafka_timeout_s=1,
        public=True,
        clusters={"eu": {"bootstrap_servers": "127.0.0.1:1"}, "us": {"bootstrap_servers": servers}},
        routes={
            "eu": {"path": "/eu", "topics": [fresh_name], "cluster": "eu"},
            "us": {"path": "/us", "topics": [fresh_name], "cluster": "us"},
        },
    )

    assert 1 == done.returncode
    assert [f"Kafka at {servers}", "/us", f"  {fresh_name}  1 partition"] == done.stdout.splitlines()
    assert done.stderr.startswith("kafkasse check: clusters.eu: Kafka is unavailable.")


def test_reports_what_keeps_the_server_from_starting(check: Check, tmp_path: Path) -> None:
    """The command creates the same objects as the server, so it reports a missing file or package."""
    (tmp_path / "keys").write_text("")

    done = check(
        tickets=True,
        ticket_secret_file=str(tmp_path / "missing"),
        guards={"customers": {"api_keys": {"file": str(tmp_path / "keys")}}},
        routes={"prices": {"path": "/prices", "topics": ["prices"], "access": ["customers"]}},
    )

    assert (1, "") == (done.returncode, done.stdout)
    assert "ticket_secret_file" in done.stderr


def test_names_each_topic_that_does_not_exist(check: Check, cluster: Cluster, fresh_name: str) -> None:
    """A missing topic is a problem, with the line of the file. A pattern without a match is not: topics may come later."""
    cluster.create(fresh_name)

    done = check(
        allowed_topics=[fresh_name, f"{fresh_name}-typo", f"{fresh_name}.*"],
        topic_groups={"both": [fresh_name, f"{fresh_name}.later"]},
        routes={"prices": {"path": "/prices", "topics": [f"{fresh_name}-missing", f"{fresh_name[:-1]}*", "none.*"]}},
    )

    assert 1 == done.returncode
    missing, mistyped, later = done.stderr.splitlines()
    assert f"topic_groups.both needs the topic {fresh_name}.later, which does not exist" in later
    assert f"routes.prices needs the topic {fresh_name}-missing, which does not exist" in missing
    assert f"(did you mean {fresh_name}?)" in missing
    assert f"(did you mean {fresh_name}?)" in mistyped
    assert (
        f"kafkasse.yaml, line 3: allowed_topics contains {fresh_name}-typo, but the server can read no topic"
        in mistyped
    )
    assert f"{fresh_name}.*  matches no topic yet" in done.stdout
    assert done.stdout.splitlines().count(f"  {fresh_name}  1 partition") == 2


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "There is nothing to serve"),
        ({"alowed_topics": ["a"]}, "line 1: alowed_topics is not a setting: did you mean allowed_topics?"),
        (
            {"allowed_topics": ["a"], "kafka_timeout_s": 0.5, "kafka": {"bootstrap_servers": "127.0.0.1:1"}},
            "check kafka.bootstrap_servers",
        ),
        (
            {
                "allowed_topics": ["a"],
                "kafka_timeout_s": 2,
                "kafka": {
                    "bootstrap_servers": "127.0.0.1:1",
                    "security_protocol": "SASL_SSL",
                    "sasl_mechanism": "PLAIN",
                    "sasl_plain_username": "me",
                    "sasl_plain_password": "hunter2",
                },
            },
            "Kafka is unavailable.",
        ),
    ],
)
def test_a_problem_is_one_sentence(check: Check, settings: dict[str, Any], problem: str) -> None:
    """The exit code is 1, and there is neither a traceback nor a secret."""
    done = check(**settings)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert problem in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
