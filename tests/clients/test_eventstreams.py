"""Clients of Wikimedia's EventStreams read from kafkasse. The tests replace only the host in their URLs.

docs/migrating.md lists the features of EventStreams that they use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import gevent
import pytest
import yaml

from tests.clients.programs import NODE, SOURCES, build, environment, missing
from tests.support.client import Client, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import TIMEOUT_S, wait_until

GROUPS = {name: [f"{site}.mediawiki.{name}" for site in ("eqiad", "codfw")] for name in ("recentchange", "page-create")}
FIRST_MS = 1_790_000_000_000  # the timestamp of the first change; each of the following is one second later
CHANGES = 6  # of each stream, before the canary events
PROGRAMS = "with_requests_sse", "with_sseclient_py", "with_pywikibot", "eventsource"


def change(n: int, stream: str, **meta: str) -> bytes:
    value = {
        "$schema": "/mediawiki/recentchange/1.0.0",
        "meta": {"domain": "en.wikipedia.org", "stream": f"mediawiki.{stream}", "id": f"{stream}-{n}"} | meta,
        "type": "edit",
        "title": f"Zürich {n}",
        "n": n,
    }
    return json.dumps(value, ensure_ascii=False).encode()


@pytest.fixture(scope="module")
def write(cluster: Cluster, prefix: str) -> Callable[..., None]:
    def write(topic: str, *numbers: int, **meta: str) -> None:
        stream = topic.split(".")[-1]
        for n in numbers:
            cluster.send(prefix + topic, change(n, stream, **meta), timestamp_ms=FIRST_MS + 1000 * n)

    return write


@pytest.fixture(scope="module")
def prefix() -> str:
    """The prefix of the topics in Kafka, which clients do not see."""
    return "hidden-prefix."


@pytest.fixture(scope="module")
def server(broker, cluster, prefix, write, tmp_path_factory) -> Iterator[Server]:
    """A server whose streams consist of a topic of each data center, and end after a second, so that clients reconnect."""
    for topic in (topic for topics in GROUPS.values() for topic in topics):
        cluster.create(prefix + topic)
    for name in GROUPS:
        write(f"eqiad.mediawiki.{name}", *range(CHANGES))
        write(f"eqiad.mediawiki.{name}", CHANGES, domain="canary")
    write("codfw.mediawiki.page-create", 0)
    by_line = {"path": "/by-line/recentchange", "topics": GROUPS["recentchange"], "position_events": False}
    by_line["max_stream_age_s"] = 0  # its client does not reconnect
    settings = {
        "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        "topic_prefix": prefix,
        "allowed_topics": ["*.mediawiki.*"],
        "topic_groups": GROUPS,
        "routes": {"by_line": by_line},
        "cors_origins": ["*"],
        "catalog": True,
        "id_type": "both",
        "max_stream_age_s": 1,
        "retry_ms": 50,
        "max_rejections_per_s": 0,
    }
    config = tmp_path_factory.mktemp("eventstreams") / "kafkasse.yaml"
    config.write_text(yaml.safe_dump(settings))
    with Server("tests.support.apps:event_streams()", KAFKASSE_CONFIG=str(config)) as running:
        yield running


def printed(words: list[str], count: int, before_last: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    """Run a program until it has printed this number of changes. Call `before_last` when only the last change is missing."""
    changes: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:  # pywikibot writes files to the working directory
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment(), cwd=folder)
        assert process.stdout is not None
        timer = gevent.spawn_later(TIMEOUT_S, process.kill)
        try:
            for line in process.stdout:
                changes.append(json.loads(line))
                if len(changes) == count - 1:
                    before_last()
                if len(changes) == count:
                    break
        finally:
            timer.kill()
            process.kill()
            process.wait()
    return changes


def iso(n: int) -> str:
    return datetime.fromtimestamp(FIRST_MS / 1000 + n, UTC).isoformat().replace("+00:00", "Z")


def python(program: str) -> list[str]:
    return [sys.executable, str(SOURCES / "eventstreams" / f"{program}.py")]


def node() -> list[str]:
    if reason := missing(NODE):
        pytest.skip(reason)
    return ["node", str(build(NODE) / "eventstreams.mjs")]


# The programs.


@pytest.mark.timeout(900)  # npm installs the library
@pytest.mark.parametrize(("program", "first"), [(program, 100 * n) for n, program in enumerate(PROGRAMS, start=1)])
def test_a_client_receives_each_change_of_two_streams_once(server, write, program, first):
    """The client reads two streams of two topics each from a given time on. It reconnects before the last change."""
    command = node() if program == "eventsource" else python(program)
    for name in GROUPS:
        write(f"eqiad.mediawiki.{name}", first, first + 1)
        write(f"codfw.mediawiki.{name}", first + 2)
        write(f"eqiad.mediawiki.{name}", first + 3, domain="canary")

    def write_last() -> None:
        ended = server.log.count("reason=max_age")
        wait_until(lambda: server.log.count("reason=max_age") > ended)
        write("codfw.mediawiki.recentchange", first + 4)

    url = f"http://127.0.0.1:{server.port}/v2/stream/recentchange,page-create?since={iso(first)}"
    changes = printed([*command, url], 7, write_last)

    assert [0, 0, 1, 1, 2, 2, 4] == sorted(update["n"] - first for update in changes)


@pytest.mark.parametrize("path", ["/v2/stream/recentchange", "/v2/stream/by-line/recentchange"])
def test_a_client_without_a_library(server, path):
    """The client reads JSON lines, or all lines that start with `data:`. The latter needs `position_events: false`."""
    command = python("by_line" if "by-line" in path else "as_json")

    changes = printed([*command, f"http://127.0.0.1:{server.port}{path}?since={FIRST_MS}"], 3)

    assert [0, 1, 2] == [update["n"] for update in changes]


# The features of the protocol.


@pytest.mark.parametrize("since", [str(FIRST_MS + 2000), iso(2), iso(2).replace("Z", ".000Z"), iso(2).replace("Z", "")])
def test_since_is_a_time_or_milliseconds(server, since):
    """All of these forms occur in clients: pywikibot's, JavaScript's toISOString(), Python's isoformat(), and a number."""
    with Client(server.port, f"/v2/stream/recentchange?since={since}") as client:
        assert 2 == json.loads(client.events(1)[0].data)["n"]


def test_an_event_id_of_eventstreams_resumes(server):
    """The ID has the timestamp of the next record in one data center, and the offset -1 in the other."""
    active, passive = GROUPS["page-create"]
    last_id = json.dumps([
        {"topic": active, "partition": 0, "timestamp": FIRST_MS + 1 + 1000 * 3},
        {"topic": passive, "partition": 0, "offset": -1},
    ])  # fmt: skip

    with Client(server.port, "/v2/stream/page-create", Last_Event_ID=last_id) as client:
        [event] = client.events(1)

    assert (4, "message") == (json.loads(event.data)["n"], event.type)
    (resumes_at, at_end) = json.loads(event.id)
    assert (active, 5, FIRST_MS + 4000) == (resumes_at["topic"], resumes_at["offset"], resumes_at["timestamp"])
    assert (passive, True) == (at_end["topic"], at_end["offset"] > 0)


def test_an_event_has_the_members_that_clients_read(server):
    """These are the producer's `meta`, including that of canary events, and the record's place in Kafka."""
    with Client(server.port, f"/v2/stream/page-create?since={FIRST_MS + 1000 * CHANGES}") as client:
        meta = json.loads(client.events(1)[0].data)["meta"]

    assert {
        "domain": "canary",
        "stream": "mediawiki.page-create",
        "id": f"page-create-{CHANGES}",
        "topic": "eqiad.mediawiki.page-create",
        "partition": 0,
        "offset": CHANGES,
    } == meta


def test_an_unknown_stream_is_rejected(server):
    """EventStreams responds with 400; kafkasse responds with 404. Both name the stream."""
    rejected = fetch(server.port, "/v2/stream/recentchange,unknown")

    assert (404, ["unknown"]) == (rejected.status, rejected.json["topics"])


def test_pages_of_all_origins_may_read(server):
    """EventStreams allows all origins, too."""
    with Client(server.port, "/v2/stream/recentchange", Origin="https://example.org") as client:
        assert "*" == client.headers["access-control-allow-origin"]


def test_the_openapi_document_lists_the_streams(server):
    """The URL and the paths of the document differ from those of EventStreams."""
    document = fetch(server.port, "/v2/stream/-/openapi.json").json
    (parameter, *_) = document["paths"]["/{topics}"]["get"]["parameters"]

    assert [{"url": "/v2/stream"}] == document["servers"]
    assert {*GROUPS} == {*parameter["schema"]["items"]["anyOf"][0]["enum"]}
