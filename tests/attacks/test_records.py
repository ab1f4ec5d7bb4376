"""Hostile records have the outcome in README.md in every format: producers cannot forge our events."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from selenium.webdriver.common.by import By

from kafkasse.records.position import parse
from tests.attacks.conftest import Unharmed
from tests.attacks.records import FORGED_LINE, FORMATS, RECORDS, SCRIPT
from tests.history.payloads import StoredRecord, expected_event
from tests.support.client import READ_TIMEOUT_S, Client
from tests.support.examples import first_of
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.sse import Block, read_blocks

OURS = [("",), ("retry",)]  # blocks of a stream that are not events
OUTCOMES = {"message": "event"}
END = {"end": True}  # the value of the last record
TIMESTAMP_MS = 1_790_000_000_000
COMPARED_CHARS = 1000  # of each event, in addition to its length
READ = f"""
const [path, done] = arguments, seen = [], source = new EventSource(path);
source.onerror = () => done("disconnected");
for (const type of ["position", "message", "base64", "delete", "error", "gap", "x"])
  source.addEventListener(type, (e) => {{
    if (e.data === undefined) return;
    seen.push([e.type, e.lastEventId, [...e.data].length, [...e.data].slice(0, {COMPARED_CHARS}).join("")]);
    if (e.data.slice(-1000).includes('"end"')) {{ source.close(); done(seen); }}
  }});
"""
LOAD = """
const [address, done] = arguments, script = document.createElement("script");
script.src = address;
script.onload = script.onerror = (e) => done(e.type);
document.head.append(script);
"""


@pytest.fixture(scope="module")
def attacked(cluster: Cluster) -> str:
    return cluster.create("beside-records")


@pytest.fixture(scope="module")
def written(cluster: Cluster) -> str:
    """A topic with one hostile record at each offset, and a harmless last one."""
    topic = cluster.create("hostile-records", max_message_bytes="2000000")
    for record in RECORDS:
        cluster.send(topic, record.value, key=record.key, headers=record.headers, timestamp_ms=TIMESTAMP_MS)
    cluster.send(topic, json.dumps(END).encode())
    return topic


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], written: str, attacked: str) -> Server:
    routes = {
        name: {"path": f"/as/{name}", "topics": [written], "format": name, "start": "earliest"} for name in FORMATS
    }
    return serve(routes=routes, allowed_topics=[attacked, written], heartbeat_s=300)


@pytest.fixture(scope="module")
def streams(server: Server, unharmed: Unharmed) -> dict[str, list[Block]]:
    """For each format, everything that a client received."""
    return {name: read_blocks(_read(server, name, b"\n\n", "text/event-stream")) for name in FORMATS}


@pytest.fixture(scope="module")
def lines(server: Server, unharmed: Unharmed) -> dict[str, list[bytes]]:
    """For each format, the JSON lines that a client received, without empty ones."""
    read = {name: _read(server, name, b"\n", "application/x-ndjson") for name in FORMATS}
    return {name: [line for line in stream.split(b"\n") if line] for name, stream in read.items()}


def _read(server: Server, name: str, end: bytes, accept: str) -> bytes:
    with Client(server.port, f"/as/{name}", Accept=accept) as client:
        client.read_until(lambda: b'"end"' in client.body[-1000:] and client.body.endswith(end))
        return bytes(client.body)


@pytest.mark.parametrize("name", FORMATS)
def test_streams_contain_only_our_blocks(streams, name):
    """Each block is one of ours, offsets increase, and each event ID contains the offset of its record."""
    before = 0
    for block in streams[name]:
        is_event = (block.names[0], set(block.names[1:-1]), block.names[-1]) == ("event", {"data"}, "id")
        assert is_event or block.names in OURS
        if block.last_id:
            offset = _next_offset(block)
            assert before <= offset <= len(RECORDS) + 1
            before = offset
    assert len(RECORDS) + 1 == before


@pytest.mark.parametrize("name", first_of("value", "kafkasse", "envelope", "cloudevents"))
def test_chromium_dispatches_the_same_events(browser, server, streams, name):
    """Chromium's EventSource dispatches exactly the events of the standard, and no script runs."""
    browser.get(f"http://127.0.0.1:{server.port}/")
    browser.set_script_timeout(READ_TIMEOUT_S)

    seen = browser.execute_async_script(READ, f"as/{name}")

    expected = [
        (block.event, block.last_id, len(block.data), block.data[:COMPARED_CHARS])
        for block in streams[name]
        if block.event
    ]
    assert expected == [tuple(event) for event in seen]
    assert "caught" not in browser.title


def test_responses_run_no_script(browser, server):
    """Other pages cannot load our responses as a script, and markup in a response stays text."""
    address = f"http://127.0.0.1:{server.port}/" + quote(SCRIPT.replace("/", ""))
    browser.get("about:blank")

    assert "error" == browser.execute_async_script(LOAD, address)
    browser.get(address)
    assert "caught" not in browser.title
    assert [] == browser.find_elements(By.TAG_NAME, "img")


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_records(streams, written, name):
    """Each record has the outcome of the table, and an event contains what was written."""
    events: dict[int, list[Block]] = {}
    for block in streams[name]:
        if block.event:
            events.setdefault(_next_offset(block) - 1, []).append(block)

    for at, record in enumerate(RECORDS):
        outcome, received = getattr(record.outcome, name), events.get(at, [])
        kinds = [OUTCOMES.get(event.event, event.event) for event in received]
        stored = StoredRecord(written, 0, at, TIMESTAMP_MS, record.key, record.value, record.headers)
        expected = expected_event(stored, name)

        assert [outcome] * (outcome != "skipped") == kinds, record.name
        assert all(expected and expected.matches(event.data) for event in received), record.name


@pytest.mark.parametrize("name", FORMATS)
def test_lines_contain_only_our_lines(lines, name):
    """In newline-delimited JSON, each record that is not skipped is one line of JSON that names its kind."""
    sent = [record for record in RECORDS if getattr(record.outcome, name) != "skipped"]

    assert len(sent) + 1 == len(lines[name])
    for record, line in zip(sent, lines[name], strict=False):
        assert b"\r" not in line
        if (outcome := getattr(record.outcome, name)) != "event":
            assert outcome == json.loads(line)["event"]
    assert json.loads(lines[name][sent.index(FORGED_LINE)]).get("event") != "delete"


class NotUtf8(str):
    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def test_a_record_cannot_end_its_stream(server, cluster, written):
    """Records after an unusual but valid record arrive."""
    with Client(server.port, "/as/value", Last_Event_ID=_end(server, written)) as client:
        client.ready()
        cluster.send(written, b"odd", headers=[(NotUtf8("x"), b"y")])
        cluster.send(written, b"after")

        assert "after" in [event.data for event in client.events(2)]


def _end(server: Server, topic: str) -> str:
    with Client(server.port, f"/{topic}") as client:
        return client.ready().last_id


def _next_offset(block: Block) -> int:
    (start,) = parse(block.last_id).starts.values()
    assert start.offset is not None
    return start.offset
