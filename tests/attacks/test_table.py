"""README.md, docs/security.md and docs/capacity.md state exactly what is tested."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from flask import Flask

from kafkasse.log.memory import MemoryLog
from kafkasse.schemas import read
from tests.attacks import memory
from tests.attacks.records import RECORDS
from tests.attacks.requests import TABLES
from tests.attacks.table import PAGE, updated
from tests.attacks.tokens import TOKENS

DOCS = PAGE.parents[2] / "docs"
SECURITY = DOCS / "security.md"
CAPACITY = DOCS / "capacity.md"
MIN_CASES = 100


def test_the_page_is_up_to_date():
    """Run `python -m tests.attacks.table`."""
    assert PAGE.read_text() == updated(PAGE.read_text())


def test_there_are_at_least_a_hundred_attacks():
    names = [(where, case.name) for where, cases in TABLES.items() for case in cases]
    names += [("records", record.name) for record in RECORDS]

    assert MIN_CASES <= len(names) == len(set(names))


@pytest.mark.parametrize("module", ["test_stalls", "test_isolation"])
def test_every_load_is_listed(module):
    tests = re.findall(r"^def (test_\w+)", Path(__file__).with_name(f"{module}.py").read_text(), re.MULTILINE)

    assert tests == re.findall(rf"^\|.*\| `attacks/{module}\.py::(\w+)` \|$", PAGE.read_text(), re.MULTILINE)


def test_capacity_md_states_the_bound_on_memory():
    """docs/capacity.md has the sizes that the attacks check, and computes its example from them."""
    text = " ".join(CAPACITY.read_text().split())
    usual, large = (
        memory.IDLE_WORKER_BYTES
        + memory.growth(memory.Load(1_000, stalled=50, catching_up=50, large_batches=large_batches), {})
        for large_batches in (0, 51)
    )

    assert f"use at most {usual / memory.MIB:.0f} MiB, or {large / memory.MIB / 1024:.1f} GiB if" in text
    mib, cursor, tail = memory.MIB, memory.MIN_CURSOR_BYTES // memory.MIB, memory.MIN_TAIL_BYTES // memory.MIB
    for term, size in (
        ("idle worker", f"{memory.IDLE_WORKER_BYTES // mib} MiB"),
        ("reserve for requests and garbage", f"{memory.RESERVE_BYTES // mib} MiB"),
        ("stream", f"{memory.STREAM_BYTES // memory.KIB} KiB"),
        ("slow client", f"{memory.CHUNKS_PER_STALLED_CLIENT * memory.CHUNK_BYTES // memory.KIB} KiB"),
        ("cursor", f"{memory.FETCHES_PER_CURSOR} \u00d7 `max_fetch_bytes`, but at least {cursor} MiB"),
        ("tail", f"{memory.FETCHES_OF_TAIL} \u00d7 `max_fetch_bytes`, but at least {tail} MiB"),
        ("partition", f"{memory.PARTITION_BYTES // memory.KIB} KiB"),
        ("partition of a cursor", f"{memory.CURSOR_PARTITION_BYTES // memory.KIB} KiB"),
    ):
        assert f"| {term} | {size} |" in text


def test_every_answer_is_explained():
    """The page gives the reason for each answer, and for no others."""
    answers = {answer.partition(" for ")[0] for cases in TABLES.values() for case in cases for answer in case.answers}
    answers |= {case.answer for cases in TOKENS.values() for case in cases}

    explained = re.findall(r"^\| (.+?) \|", PAGE.read_text().split("\n## ")[1], re.MULTILINE)
    assert sorted([*answers, "answer", "---"]) == sorted(explained)


def test_the_defaults_in_security_md_are_correct():
    settings = read("config")["properties"]
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", SECURITY.read_text(), re.MULTILINE)

    assert len(rows) > 5
    for name, default in rows:
        assert json.dumps(settings[name]["default"]) == default


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Flask:
    """The example app of docs/security.md, with a log in memory that has both of its topics."""
    (example,) = re.findall(r"^```python\n(.*?)^```", SECURITY.read_text(), re.MULTILINE | re.DOTALL)
    log = MemoryLog()
    for topic in ("orders", "audit"):
        log.create(topic)
    monkeypatch.setenv("STREAM_TOKENS", json.dumps({"t-orders": "orders", "t-audit": "audit"}))
    monkeypatch.setattr("kafkasse.app.open_kafka_log", lambda config, cluster: log)
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
        ("/streams/audit/audit", "t-orders", None, 403),
        ("/streams/orders/audit", "t-orders", None, 404),
        ("/streams/orders/orders", "t-orders", '["audit"]', 404),
    ],
)
def test_the_guard_of_the_example(guarded, path, token, last_id, status):
    """It accepts a token only for its own streams, and no event ID gives access to others."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Last-Event-ID": last_id} if last_id else {}

    answer = guarded.test_client().head(path, headers=headers)

    assert status == answer.status_code
