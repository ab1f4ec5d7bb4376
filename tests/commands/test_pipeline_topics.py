"""The topics of a pipeline are checked before Spark starts. The broker is replaced by its answer."""

from __future__ import annotations

from typing import Any

import pytest

from kafkasse.commands import pipeline_topics
from kafkasse.errors import CommandError
from kafkasse.pipelines.catalog import TOPN

ALL = ["READ", "WRITE", "DESCRIBE"]


def answer(name: str, operations: list[str], error_code: int = 0) -> dict[str, Any]:
    """The description of a topic, as kafka-python returns it."""
    return {"name": name, "error_code": error_code, "authorized_operations": operations}


def check(monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], sink: dict[str, Any]) -> None:
    """Check the topics of topn with these descriptions."""
    monkeypatch.setattr(pipeline_topics, "_described", lambda *_: {"countries": source, "topn": sink})
    pipeline_topics.check(TOPN, "", "127.0.0.1:1")


def test_accepts_topics_that_the_user_may_read_and_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old broker does not list the operations, so they are not checked."""
    check(monkeypatch, answer("countries", ["READ", "DESCRIBE"]), answer("topn", ["WRITE", "DESCRIBE"]))
    check(monkeypatch, answer("countries", []), answer("topn", []))


def test_a_missing_permission_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the topic and the operation."""
    with pytest.raises(CommandError, match="no WRITE permission for the topic topn; add an ACL"):
        check(monkeypatch, answer("countries", ALL), answer("topn", ["READ", "DESCRIBE"]))
    with pytest.raises(CommandError, match="no READ permission for the topic countries; add an ACL"):
        check(monkeypatch, answer("countries", [], error_code=29), answer("topn", ALL))


def test_other_problems_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, kafka-python cannot read a truststore in Java's format, but Spark's client can."""

    def fail(*_: object) -> None:
        raise CommandError("only Java can read the truststore")

    monkeypatch.setattr(pipeline_topics, "_described", fail)

    pipeline_topics.check(TOPN, "", "127.0.0.1:1")
