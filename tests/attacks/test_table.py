"""docs/attacks.md and docs/security.md promise what is tested, and nothing else."""

from __future__ import annotations

import json
import re

import pytest
from flask import Flask

from kafkasse.memory_log import MemoryLog
from kafkasse.schemas import read
from tests.attacks.records import RECORDS
from tests.attacks.requests import TABLES
from tests.attacks.table import PAGE, render

SECURITY = PAGE.with_name("security.md")
CASES_MIN = 100


def test_the_page_is_the_table() -> None:
    """docs/attacks.md is what `python -m tests.attacks.table` writes."""
    assert render() == PAGE.read_text()


def test_there_are_enough() -> None:
    """At least a hundred, no two of one name."""
    names = [(where, case.name) for where, cases in TABLES.items() for case in cases]
    names += [("records", record.name) for record in RECORDS]

    assert CASES_MIN <= len(names) == len(set(names))


def test_every_setting_that_is_named_exists() -> None:
    """What docs/security.md says of a default is so."""
    settings = read("config")["properties"]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", SECURITY.read_text(), re.MULTILINE)

    assert len(rows) > 5
    for name, default in rows:
        assert json.dumps(settings[name]["default"]) == default


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Flask:
    """The app of docs/security.md, reading a log in memory that has both of its topics."""
    (example,) = re.findall(r"^```python\n(.*?)^```", SECURITY.read_text(), re.MULTILINE | re.DOTALL)
    log = MemoryLog()
    for topic in ("orders", "audit"):
        log.create(topic)
    monkeypatch.setenv("STREAM_TOKENS", json.dumps({"t-orders": "orders", "t-audit": "audit"}))
    monkeypatch.setattr("kafkasse.app.open_kafka_log", lambda config: log)
    names: dict[str, Flask] = {}
    exec(compile(example, "security.md", "exec"), names)  # noqa: S102 - the example is the test
    return names["app"]


@pytest.mark.parametrize(
    ("path", "token", "last_id", "status"),
    [
        ("/streams/orders/orders", "t-orders", None, 200),
        ("/streams/audit/audit", "t-audit", None, 200),
        ("/streams/orders/orders", None, None, 401),
        ("/streams/orders/orders", "garbage", None, 401),
        ("/streams/orders/unknown", None, None, 401),
        ("/streams/audit/audit", "t-orders", None, 401),
        ("/streams/orders/audit", "t-orders", None, 404),
        ("/streams/orders/orders", "t-orders", '["audit"]', 404),
    ],
)
def test_the_guard(guarded: Flask, path: str, token: str | None, last_id: str | None, status: int) -> None:
    """It lets in who has a token for these streams, and no id leads to others."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Last-Event-ID": last_id} if last_id else {}

    answer = guarded.test_client().head(path, headers=headers)

    assert status == answer.status_code
