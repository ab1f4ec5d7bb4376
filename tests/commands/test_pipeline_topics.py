"""The topics of a pipeline are checked before Spark starts. The broker is replaced by its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from kafkasse.commands import pipeline_topics
from kafkasse.errors import CommandError
from kafkasse.pipelines.catalog import TOPN

ALL = ["READ", "WRITE", "DESCRIBE"]


def answer(name: str, operations: list[str], error_code: int = 0) -> dict[str, Any]:
    """The description of a topic, as kafka-python returns it."""
    return {"name": name, "error_code": error_code, "authorized_operations": operations}


Check = Callable[[dict[str, Any], dict[str, Any]], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Checks the topics of topn with these descriptions."""

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
