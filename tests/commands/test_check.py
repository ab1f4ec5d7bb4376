"""`kafkasse check` and `kafkasse topics` list what a server would serve from a real broker; each problem is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kafkasse.tools.broker import EmbeddedBroker
from tests.commands.run import ENVIRONMENT, TIMEOUT_S, Done, Run, process

Check = Callable[..., Done]


@pytest.fixture
def write(broker: EmbeddedBroker, tmp_path: Path) -> Callable[..., str]:
    def write(**settings: Any) -> str:
        file = tmp_path / "kafkasse.yaml"
        file.write_text(yaml.safe_dump({"kafka": {"bootstrap_servers": broker.bootstrap_servers}, **settings}))
        return str(file)

    return write


@pytest.fixture
def check(run: Run, write: Callable[..., str]) -> Check:
    return lambda **settings: run("check", write(**settings), KAFKASSE_PUBLIC="true")


def test_lists_the_topics_of_each_route(check, cluster, fresh_name, caplog):
    """The output has each route with its topics and their partitions, including the topics that allowed_topics matches."""
    for suffix, partitions in ((".a", 1), (".b", 3)):
        cluster.create(f"{fresh_name}{suffix}", partitions)

    done = check(
        topic_prefix=f"{fresh_name}.",
        allowed_topics=["*"],
        routes={"prices": {"path": "/prices", "topics": ["b"]}},
        operations_access=["public"],  # only a blueprint logs a warning: it is for standalone servers
    )

    assert (0, "", []) == (done.code, done.err, caplog.messages)
    lines = done.out.splitlines()
    assert ["/prices", "  b  3 partitions", "/{topics}", "  a  1 partition", "  b  3 partitions"] == lines[1:-1]


def test_names_the_topics_whose_snapshots_read_all_records(check, cluster, fresh_name):
    """Those that Kafka does not compact. Other routes may read them."""
    cluster.create(f"{fresh_name}.log", 1)
    cluster.create(f"{fresh_name}.table", 1, cleanup_policy="compact")
    topics = {"topics": ["log", "table"]}

    done = check(
        topic_prefix=f"{fresh_name}.",
        routes={"all": {"path": "/all", **topics}, "tables": {"path": "/tables", "start": "snapshot", **topics}},
    )

    hint = ", not compacted: a snapshot reads all records. Consider cleanup.policy=compact"
    listed = ["/all", "  log    1 partition", "  table  1 partition"]
    listed += ["/tables", f"  log    1 partition{hint}", "  table  1 partition"]
    assert (0, "", listed) == (done.code, done.err, done.out.splitlines()[1:-1])


def test_the_file_is_an_argument_or_an_option(run, write, cluster, fresh_name):
    """The option is that of kafkasse serve."""
    cluster.create(fresh_name)
    file = write(allowed_topics=[fresh_name])

    done = [
        run("check", *words, KAFKASSE_PUBLIC="true") for words in ([file], ["--config", file], [file, "--config", file])
    ]

    assert [(0, ""), (0, "")] == [(each.code, each.err) for each in done[:2]]
    assert done[0].out == done[1].out
    assert (2, True) == (done[2].code, "Use either FILE or --config FILE." in done[2].err)


def test_warns_about_a_personal_route_whose_topic_everyone_can_read(write, cluster, fresh_name):
    """The warning is on stderr. The configuration is valid nevertheless."""
    cluster.create(fresh_name)
    keys = {"jwt": {"jwks_url": "https://id.example/", "issuer": "i", "audience": "a", "algorithms": ["RS256"]}}
    mine = {"path": "/mine", "topics": [fresh_name], "access": ["keys"], "where": {"key": "{claims.sub}"}}
    file = write(allowed_topics=["*"], guards={"keys": keys}, routes={"mine": mine})

    with process("check", file, env=ENVIRONMENT | {"KAFKASSE_PUBLIC": "true"}) as checking:
        log = checking.communicate(timeout=TIMEOUT_S)[1]

    warning = f"own records of the topic {fresh_name}, but the same visitors can read the whole topic at /{{topics}}"
    assert (0, True) == (checking.returncode, warning in log)


def test_checks_each_cluster(check, broker, cluster, fresh_name):
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

    assert 1 == done.code
    assert [f"Kafka at {servers}", "/us", f"  {fresh_name}  1 partition"] == done.out.splitlines()
    assert done.err.startswith("kafkasse check: clusters.eu: Kafka is unavailable.")


def test_reports_what_keeps_the_server_from_starting(check, tmp_path):
    """The command creates the same objects as the server, so it reports a missing file or package."""
    (tmp_path / "keys").write_text("")

    done = check(
        tickets=True,
        ticket_secret_file=str(tmp_path / "missing"),
        guards={"customers": {"api_keys": {"file": str(tmp_path / "keys")}}},
        routes={"prices": {"path": "/prices", "topics": ["prices"], "access": ["customers"]}},
    )

    assert (1, "") == (done.code, done.out)
    assert "ticket_secret_file" in done.err


def test_names_each_topic_that_does_not_exist(check, cluster, fresh_name):
    """A missing topic is a problem, with the line of the file. A pattern without a match is not: topics may come later."""
    cluster.create(fresh_name)

    done = check(
        allowed_topics=[fresh_name, f"{fresh_name}-typo", f"{fresh_name}.*"],
        topic_groups={"both": [fresh_name, f"{fresh_name}.later"]},
        routes={"prices": {"path": "/prices", "topics": [f"{fresh_name}-missing", f"{fresh_name[:-1]}*", "none.*"]}},
    )

    assert 1 == done.code
    missing, mistyped, later = done.err.splitlines()
    assert f"topic_groups.both needs the topic {fresh_name}.later, which does not exist" in later
    assert f"routes.prices needs the topic {fresh_name}-missing, which does not exist" in missing
    assert f"(did you mean {fresh_name}?)" in missing
    assert f"(did you mean {fresh_name}?)" in mistyped
    assert f"yaml, line 3: allowed_topics contains {fresh_name}-typo, but the server can read no topic" in mistyped
    assert f"{fresh_name}.*  matches no topic yet" in done.out
    assert done.out.splitlines().count(f"  {fresh_name}  1 partition") == 2


NO_KAFKA = {"bootstrap_servers": "127.0.0.1:1"}
LOGIN = {
    "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": "hunter2"
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "There is nothing to serve"),
        ({"alowed_topics": ["a"]}, "line 1: alowed_topics is not a setting: did you mean allowed_topics?"),
        ({"allowed_topics": ["a"], "kafka_timeout_s": 0.5, "kafka": NO_KAFKA}, "check kafka.bootstrap_servers"),
        ({"allowed_topics": ["a"], "kafka_timeout_s": 0.5, "kafka": NO_KAFKA | LOGIN}, "Kafka is unavailable."),
    ],
)
def test_a_problem_is_one_sentence(check, caplog, settings, problem):
    """The exit code is 1, and there is neither a line of a log nor a traceback nor a secret."""
    done = check(**settings)

    assert (1, 1, []) == (done.code, done.err.count("\n"), caplog.records)
    assert problem in done.err
    assert "hunter2" not in done.err + done.out


def test_lists_the_topics_and_their_paths(run, cluster, fresh_name, tmp_path):
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


def test_creates_topics(run, cluster, fresh_name):
    """A topic that exists stays as it is. The settings of a topic are Kafka's."""
    names = [f"{fresh_name}-a", f"{fresh_name}-b"]
    servers = "--bootstrap-servers", cluster.bootstrap_servers
    options = "--partitions", "2", "--config", "cleanup.policy=compact"

    first = run("topics", "create", names[0], *servers)
    second = run("topics", "create", *names, *options, *servers)
    bad_setting = run("topics", "create", f"{fresh_name}-c", "--config", "cleanup.policy=x", *servers)

    assert (0, f"{names[0]}: created\n", "") == first
    assert (0, f"{names[0]}: exists already\n{names[1]}: created\n", "") == second
    listed = run("topics", *servers).out
    assert [["1", "-"], ["2", "-"]] == [line.split()[1:] for line in listed.splitlines() if fresh_name in line]
    assert (1, "") == bad_setting[:2]
    reason = "Invalid value x for configuration cleanup.policy: String must be one of: compact, delete"
    assert f"kafkasse topics: cannot create topic {fresh_name}-c: {reason}\n" == bad_setting.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["create"], "Missing argument 'NAME...'"),
        (["create", "a", "--config", "compact"], "compact is not NAME=VALUE, such as cleanup.policy=compact."),
        (["create", "a", "--partitions", "0"], "0 is not in the range x>=1."),
    ],
)
def test_rejects_topics_that_cannot_be_created(run, words, problem):
    done = run("topics", *words)

    assert (2, "") == done[:2]
    assert problem in done.err


def test_lists_topics_without_a_configuration(run, cluster, fresh_name):
    """Only the address is needed. Internal topics are listed on request."""
    cluster.create(fresh_name)
    cluster.create(f"__{fresh_name}")

    short = run("topics", "--bootstrap-servers", cluster.bootstrap_servers)
    complete = run("topics", "--bootstrap-servers", cluster.bootstrap_servers, "--internal")

    assert [fresh_name, "1", "-"] in [line.split() for line in short.out.splitlines()]
    assert f"__{fresh_name}" not in short.out
    assert f"__{fresh_name}" in complete.out


def test_a_kafka_that_does_not_answer_is_one_sentence(run):
    done = run("topics", "--bootstrap-servers", "127.0.0.1:1", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert (1, "") == (done.code, done.out)
    assert done.err.startswith("kafkasse topics: Kafka is unavailable.")
    assert "kafkasse broker" not in done.err


def test_at_the_level_debug_the_lines_of_kafka_python_follow_without_the_password(processes):
    variables = {
        "KAFKASSE_BOOTSTRAP_SERVERS": "127.0.0.1:2",
        "KAFKASSE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKASSE_KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKASSE_KAFKA_SASL_PLAIN_USERNAME": "me",
        "KAFKASSE_KAFKA_SASL_PLAIN_PASSWORD": "hunter2",
        "KAFKASSE_ALLOWED_TOPICS": "t",
        "KAFKASSE_PUBLIC": "true",
        "KAFKASSE_LOG_LEVEL": "debug",
    }
    with process("check", env=ENVIRONMENT | variables) as checking:
        output = "".join(checking.communicate(timeout=TIMEOUT_S))

    assert "kafka.net" in output
    assert "hunter2" not in output


def test_without_an_address_the_failure_names_the_broker_for_development(run, monkeypatch):
    monkeypatch.setattr("kafkasse.kafka.client.BOOTSTRAP_DEFAULT", "127.0.0.1:2")

    done = run("topics", KAFKASSE_KAFKA_TIMEOUT_S="0.5")

    assert done.err.endswith("`kafkasse broker` starts a Kafka for development\n")
