"""`kafkasse pipeline status`; and how the topics of a pipeline are checked before Spark starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from kafkasse.commands import pipeline_topics
from kafkasse.errors import CommandError
from kafkasse.pipelines.catalog import TOPN
from kafkasse.pipelines.status import Status
from kafkasse.pipelines.supervisor import State
from tests.commands.run import Done, Run
from tests.support.kafka import Cluster

Show = Callable[..., Done]


@pytest.fixture
def show(run: Run, cluster: Cluster, fresh_name: str) -> Show:
    cluster.create(fresh_name)
    words = ["--bootstrap-servers", cluster.bootstrap_servers, "--topic", fresh_name]
    return lambda *more: run("pipeline", "status", *words, *more)


def status(name: str, state: State, age: timedelta = timedelta(0), **more: Any) -> bytes:
    of = Status(name, 1, "realtime", ["countries"], ["topn"])
    of.enter(state, "")
    updated = {"updated": (datetime.now(UTC) - age).isoformat()}
    return json.dumps(of.record() | updated | more).encode()


def test_prints_the_latest_status_of_each_pipeline(cluster: Cluster, show: Show, fresh_name: str) -> None:
    """A pipeline that no longer writes its status is silent, unless it has ended. A tombstone removes a pipeline."""
    letters = cluster.create(f"{fresh_name}.dead-letters")
    cluster.send(letters, b"{", b"}")
    now = timedelta(hours=-1)  # in the future, so that the speed of the machine does not matter
    for name, value in (
        ("a", status("a", State.STARTING, now)),
        ("a", status("a", State.RUNNING, now, lag_records=12, lag_s=3.4, restarts=1, dead_letters=7)),
        ("b", status("b", State.RUNNING, timedelta(seconds=31))),
        ("c", status("c", State.FAILED, timedelta(minutes=2), reason="no such topic")),
        ("d", status("d", State.RUNNING)),
        ("d", None),
        ("e", status("e", State.STARTING, timedelta(minutes=2))),
        ("f", status("f", State.RUNNING, now, dead_letters=1, dead_letter_topic=letters)),
    ):
        cluster.send(fresh_name, value, key=name.encode())

    table, lines = show(), show("--json").out.splitlines()

    rows = [re.split(r"\s{2,}", line) for line in table.out.splitlines()]
    assert ["PIPELINE", "STATE", "UPDATED", "LAG", "RESTARTS", "DEAD LETTERS", "REASON"] == rows[0]
    states = {"a": "running", "b": "silent (was running)", "c": "failed", "e": "silent (was starting)", "f": "running"}
    assert states == {row[0]: row[1] for row in rows[1:]}
    assert ["12 records, 3 s", "1", "7"] == rows[1][3:]
    assert "no such topic" == rows[3][-1]
    assert "2" == rows[5][5], "the dead letters of all runs"
    assert [("a", 12, None), ("b", 0, None), ("c", 0, None), ("e", 0, None), ("f", 0, 2)] == [
        (each["pipeline"], each["lag_records"], each["dead_letters_in_topic"]) for each in map(json.loads, lines)
    ]


@pytest.mark.parametrize("value", [b'{"id": 5}', b"[]", b"5", b"\xff"])
def test_a_topic_with_other_records_is_an_error(cluster: Cluster, show: Show, fresh_name: str, value: bytes) -> None:
    cluster.send(fresh_name, value, key=b"k")

    err = show().err

    reason = f"a record in the topic {fresh_name} is not the status of a pipeline; choose the status topic with --topic"
    assert reason in err


def test_a_missing_topic_is_an_error(show: Show) -> None:
    """The message names the option that writes the topic."""
    reason = "the topic nix does not exist; a pipeline with --status-topic nix creates it"
    assert reason in show("--topic", "nix").err


ALL = ["READ", "WRITE", "DESCRIBE"]


def answer(name: str, operations: list[str], error_code: int = 0) -> dict[str, Any]:
    """The description of a topic, as kafka-python returns it."""
    return {"name": name, "error_code": error_code, "authorized_operations": operations}


Check = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def check(source: dict[str, Any], sink: dict[str, Any]) -> None:
        monkeypatch.setattr(pipeline_topics, "_described", lambda *_: {"countries": source, "topn": sink})
        pipeline_topics.check(TOPN, "", "127.0.0.1:1")

    return check


def test_accepts_topics_that_the_user_may_read_and_write(check: Check) -> None:
    """An old broker does not list the operations, so they are not checked."""
    check(answer("countries", ["READ", "DESCRIBE"]), answer("topn", ["WRITE", "DESCRIBE"]))
    check(answer("countries", []), answer("topn", []))


def test_a_missing_permission_is_an_error(check: Check) -> None:
    with pytest.raises(CommandError, match="no WRITE permission for the topic topn; add an ACL"):
        check(answer("countries", ALL), answer("topn", ["READ", "DESCRIBE"]))
    with pytest.raises(CommandError, match="no READ permission for the topic countries; add an ACL"):
        check(answer("countries", [], error_code=29), answer("topn", ALL))


def test_other_problems_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, kafka-python cannot read a truststore in Java's format, but Spark's client can."""
    reads_truststore = mock.Mock(side_effect=CommandError("only Java can read the truststore"))
    monkeypatch.setattr(pipeline_topics, "_described", reads_truststore)

    pipeline_topics.check(TOPN, "", "127.0.0.1:1")
