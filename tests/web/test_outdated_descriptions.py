"""A client reconnects to a server whose cached descriptions of the topics are older than their last change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import gevent
import pytest
from flask.testing import FlaskClient

from kafkasse.log.memory import MemoryLog
from tests.support.sse import read_events, read_until, without_positions
from tests.web.clients import client_of

ROUTES = {"whole": {"path": "/whole", "topics": ["t*"]}}
PATHS = ["/streams/t", "/streams/whole"]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t")
    log.append("t", b'{"n":0}')
    return log


@pytest.fixture
def current(log: MemoryLog) -> FlaskClient:
    return client_of(log, routes=ROUTES)


@pytest.fixture(params=["described", "live"])
def outdated(log: MemoryLog, request: pytest.FixtureRequest) -> Iterator[FlaskClient]:
    """A server that described the topics, or opened streams of them, before the test changes them."""
    server = client_of(log, routes=ROUTES, metadata_refresh_s=60)
    with ExitStack() as streams:
        for path in PATHS:
            if request.param == "live":
                read_until(streams.enter_context(server.get(path, buffered=False)).response, b"\nid: ")
            else:
                assert 200 == server.head(path).status_code
        yield server


def received(server: FlaskClient, path: str, until: int, last_event_id: str = "") -> tuple[list[object], str]:
    """Read until the record whose `n` is `until`. Return each `n`, the type of each other event, and the last ID."""
    start = {"headers": {"Last-Event-ID": last_event_id}} if last_event_id else {"query_string": {"timestamp": 0}}
    with server.get(path, buffered=False, **start) as response:
        assert 200 == response.status_code, response.get_data(as_text=True)
        found = read_events(read_until(response.response, b'{"n":%d' % until))
    events = [
        json.loads(event.data)["n"] if event.type == "message" else event.type for event in without_positions(found)
    ]
    return events, found[-1].id


@pytest.mark.parametrize("path", PATHS)
def test_resumes_in_a_partition_that_was_added(log, current, outdated, path):
    """Without a new description, the answer would be a 400, and a browser would not try again."""
    log.create("t", 2)
    log.append("t", b'{"n":1}', partition=1)
    before, last_event_id = received(current, path, 1)
    log.append("t", b'{"n":2}', partition=1)

    assert 200 == outdated.head(path, headers={"Last-Event-ID": last_event_id}).status_code
    assert [0, 1] == sorted(before)
    assert [2] == received(outdated, path, 2, last_event_id)[0]


@pytest.mark.parametrize("path", PATHS)
def test_resumes_in_a_topic_that_was_recreated(log, current, outdated, path):
    """Without a new description, the client would receive records again."""
    log.delete("t")
    log.create("t")
    log.append("t", b'{"n":1}')
    _, last_event_id = received(current, path, 1)
    log.append("t", b'{"n":2}')

    assert [2] == received(outdated, path, 2, last_event_id)[0]


def test_resumes_in_a_topic_that_was_created(log, current, outdated):
    """Without a new list of topics, the client would receive the records of the topic again."""
    log.create("t2")
    log.append("t2", b'{"n":1}')
    before, last_event_id = received(current, "/streams/whole", 1)
    log.append("t2", b'{"n":2}')

    assert [0, 1] == sorted(before)
    assert [2] == received(outdated, "/streams/whole", 2, last_event_id)[0]


def test_reads_the_first_topic_of_a_pattern_as_soon_as_it_exists():
    """The server lists the topics when it starts, so its list may be a second old."""
    log = MemoryLog()
    server = client_of(log, routes=ROUTES)
    assert 404 == server.head("/streams/whole").status_code
    log.create("t1")

    assert 200 == server.head("/streams/whole").status_code


@pytest.mark.parametrize("path", PATHS)
def test_rejects_a_partition_that_does_not_exist(current, path):
    last_event_id = '[{"topic":"t","partition":1,"offset":0}]'

    for answer in (current.get, current.head):
        assert 400 == answer(path, headers={"Last-Event-ID": last_event_id}).status_code


def test_invented_event_ids_do_not_cause_more_requests_to_kafka(log, current, monkeypatch):
    """Ten clients with other topic IDs and an invented topic cause one list and one description, like other clients."""
    calls = Counter[str]()
    for name in ("describe", "topic_names"):
        original = getattr(log, name)
        monkeypatch.setattr(
            log, name, lambda *args, name=name, original=original: calls.update([name]) or original(*args)
        )
    topics = [{"topic": name, "partition": 0, "offset": 0, "topic_id": "invented"} for name in ("t", "t9")]
    headers = {"Last-Event-ID": json.dumps(topics)}
    assert 200 == current.head("/streams/whole").status_code
    clients = [gevent.spawn(current.head, "/streams/whole", headers=headers) for _ in range(10)]

    assert {200} == {client.get().status_code for client in clients}
    assert {"topic_names": 2, "describe": 2} == calls
