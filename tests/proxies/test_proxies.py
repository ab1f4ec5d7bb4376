"""Streams through real proxies with the configuration files that docs/proxies.md shows.

`make test` runs these tests with nginx and HTTP/2. The others are long.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import gevent
import pytest
import yaml

from kafkasse.tools.broker import EmbeddedBroker
from kafkasse_client import Stream, fallback
from tests.proxies.curl import Curl
from tests.proxies.proxies import PROGRAMS, Program, Proxy
from tests.support.client import Client, fetch, numbers
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until

RECORDS = 20
MAX_LATENCY_S = 0.1  # median; Nagle's algorithm with delayed acknowledgments takes 0.2 s
STREAMS = 1_000  # more than Debian's nginx and apache accept with their default configuration
LONG_ID_ENTRIES = 1_000  # 58 kB; kafkasse accepts 64 KiB
CLIENT = "127.0.0.2"  # another address than the proxy's
RETRY = b"retry: 3000\n\n"
ORIGIN = "https://shop.example"  # not in cors_origins


def proxy(program: Program, *kind: str, again: bool = False) -> Any:
    """Return the parameters of a test, with the reason if it cannot run. `again`: also if `make test` runs it."""
    is_long = again or program.name != "nginx" or kind not in [(), program.clients[-1:]]
    missing = [name for name in (program.binary, "curl") if not shutil.which(name)]
    reason = f"{missing[0]} is not installed (apt-get install {program.name} curl)" if missing else ""
    return pytest.param(
        program,
        *kind,
        marks=[pytest.mark.skipif(bool(reason), reason=reason), *([pytest.mark.long] if is_long else [])],
        id="-".join([program.name, *kind, *(["again"] if again else [])]),
    )


each_proxy = pytest.mark.parametrize("site", [proxy(program) for program in PROGRAMS], indirect=True)
each_client = pytest.mark.parametrize(
    ("site", "kind"),
    [
        *[proxy(program, kind) for program in PROGRAMS for kind in program.clients],
        # `make test-long` measures the seconds of this one, too: see is_alone.
        *[proxy(program, program.clients[-1], again=True) for program in PROGRAMS if program.name == "nginx"],
    ],
    indirect=["site"],
)


class Site:
    def __init__(self, program: Program, environment: dict[str, str], home: Path, exits: ExitStack) -> None:
        self.program = program
        self.environment = environment
        self.exits = exits
        self.server = exits.enter_context(Server("tests.proxies.app:app()", **environment))
        self.proxy = exits.enter_context(Proxy(program, self.server.port, home))

    def start_again(self) -> None:
        """Start another server on the port of the one that was stopped."""
        port = f"127.0.0.1:{self.server.port}"
        self.server = self.exits.enter_context(
            Server("tests.proxies.app:app()", **self.environment, KAFKASSE_BIND=port)
        )

    def streams(self) -> list[Any]:
        streams: list[Any] = fetch(self.server.port, "/-/streams").json["streams"]
        return streams


@pytest.fixture(scope="module")
def sites(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Program], Site]]:
    """Returns the site of a proxy. Its server trusts only 127.0.0.1 as a proxy."""
    settings = {
        "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        "allowed_topics": ["*"],
        "compression": ["gzip"],
        "trusted_proxies": ["127.0.0.1"],
    }
    with ExitStack() as exits:

        @cache
        def start(program: Program) -> Site:
            home = tmp_path_factory.mktemp(program.name)
            (home / "kafkasse.yaml").write_text(yaml.safe_dump(settings))
            return Site(program, {"KAFKASSE_CONFIG": str(home / "kafkasse.yaml")}, home, exits)

        yield start


@pytest.fixture
def site(request: pytest.FixtureRequest, sites: Callable[[Program], Site]) -> Site:
    """The site of the test's proxy, without open streams."""
    site = sites(request.param)
    wait_until(lambda: not site.streams())
    return site


@pytest.fixture
def topic(cluster: Cluster, fresh_name: str) -> str:
    return cluster.create(fresh_name)


@pytest.fixture
def is_alone(request: pytest.FixtureRequest) -> bool:
    """Whether the test may measure seconds: `make test-long` runs one test at a time."""
    return request.node.get_closest_marker("long") is not None


@pytest.fixture
def connect(site: Site, kind: str) -> Iterator[Callable[..., Curl]]:
    """Sends a request through the proxy: connect(path, header="value", …). The client is closed after the test."""
    port = site.proxy.ports[kind[:-1]]
    with ExitStack() as clients:

        def connect(path: str, *options: str, **headers: str) -> Curl:
            return clients.enter_context(closing(Curl(kind, f"127.0.0.1:{port}{path}", *options, **headers)))

        yield connect


def latencies(client: Client, cluster: Cluster, topic: str) -> list[float]:
    """Write records one by one. Return for each the seconds until the client has received it."""
    seconds = []
    for n in range(RECORDS):
        written_at = time.monotonic()
        cluster.send(topic, b'{"n":%d}' % n)
        assert [n] == numbers(client.events(1))
        seconds.append(time.monotonic() - written_at)
    return seconds


@each_client
@pytest.mark.parametrize(("options", "coding"), [((), None), (("--compressed",), "gzip")], ids=["plain", "compressed"])
def test_each_event_arrives_at_once(connect, cluster, topic, is_alone, options, coding):
    stream = connect(f"/streams/{topic}", *options).ready()

    assert statistics.median(latencies(stream, cluster, topic)) < MAX_LATENCY_S or not is_alone
    assert (200, "text/event-stream") == (stream.status, stream.headers["content-type"].partition(";")[0])
    assert coding == stream.headers.get("content-encoding")


@each_client
def test_heartbeats_arrive(connect, topic):
    stream = connect(f"/streams/{topic}").ready()
    before = stream.body.count(b"\n:")

    stream.read_until(lambda: stream.body.count(b"\n:") > before)


@each_client
def test_the_request_arrives_unchanged(connect):
    """The proxy removes the prefix of the path, and forwards the query and a Last-Event-ID of 58 kB as they are."""
    query = "?lastEventId=%5B%7B%22topic%22%3A%22a%2Cb%22%7D%5D&timestamp=0&x=a+b%2B&x=//"
    last_event_id = json.dumps(
        [{"topic": "orders", "partition": n, "offset": 10**12 + n} for n in range(LONG_ID_ENTRIES)],
        separators=(",", ":"),
    )

    echo = connect("/streams/-/echo" + query, Last_Event_ID=last_event_id)
    echo.rest()

    arrived = json.loads(echo.body)
    assert "/-/echo" + query == arrived["target"]
    assert last_event_id == arrived["headers"]["Last-Event-Id"]


@each_client
@pytest.mark.parametrize("path", ["/-/echo", "/x/streams/-/echo"])
def test_only_the_prefix_is_published(connect, path):
    """Requests for other paths do not reach the server."""
    response = connect(path)
    response.rest()

    assert b"target" not in response.body


@each_client
def test_the_server_notices_a_client_that_left(site, connect, topic, is_alone):
    """The server closes the stream. If the proxy notices it without sending data, the server does so at once."""
    connect(f"/streams/{topic}").ready().close()
    closed_at = time.monotonic()

    wait_until(lambda: not site.streams())

    assert time.monotonic() - closed_at < site.program.max_notice_s or not is_alone


@each_client
def test_the_server_knows_the_address_of_the_client(site, connect, topic):
    """A forged X-Forwarded-For has no effect."""
    connect(f"/streams/{topic}", "--interface", CLIENT, X_Forwarded_For="192.0.2.1").ready()

    assert [CLIENT] == [stream["client"] for stream in site.streams()]


@each_client
def test_the_server_knows_its_public_url(site, connect, kind):
    """The catalog, the documents and the errors name the URLs that a client uses, whatever headers it sends."""
    scheme = kind[:-1]
    other = "http" if scheme == "https" else "https"
    forged = {"X_Forwarded_Host": "evil.example", "X_Forwarded_Prefix": "/evil", "X_Forwarded_Proto": other}

    def get(path: str) -> Any:
        response = connect(f"/streams/{path}", **forged)
        response.rest()
        return json.loads(response.body)

    catalog, openapi, asyncapi, error = map(get, ("-/catalog", "-/openapi.json", "-/asyncapi.json", "a//b"))

    address = f"127.0.0.1:{site.proxy.ports[scheme]}"
    url = f"{scheme}://{address}/streams"
    (stream,) = catalog["streams"]
    assert f"{url}/{{topics}}" == stream["url"]
    assert all(f"{url}/" in example for example in stream["examples"].values())
    assert {"openapi": "/streams/-/openapi.json", "asyncapi": "/streams/-/asyncapi.json"} == catalog["documents"]
    assert [{"url": "/streams"}] == openapi["servers"]
    assert {"host": address, "protocol": scheme, "pathname": "/streams"} == asyncapi["servers"]["http"]
    assert "/streams/-/problems/not-found" == error["type"]


@each_client
def test_a_browser_resumes_after_a_restart_of_the_server(site, connect, cluster, topic):
    """The stream ends with an ID. While no server runs, a browser gets an empty stream, and then resumes.

    A browser stops reconnecting if a page of another origin may not read the empty stream, with or without credentials.
    """
    stream = connect(f"/streams/{topic}").ready()
    site.server.stop()
    end = stream.rest()
    cluster.send(topic, b'{"n":1}')

    headers = {"Accept": "text/event-stream", "Last_Event_ID": stream.last_id, "Origin": ORIGIN}
    waiting = connect(f"/streams/{topic}", **headers)
    waiting.rest()
    health = connect("/streams/-/health")
    health.rest()
    site.start_again()
    resumed = connect(f"/streams/{topic}", **headers)

    assert [1] == numbers(resumed.events(1))
    assert ([], 0, True) == (end, stream.exit_code, stream.body.rpartition(b"retry: ")[2].strip().isdigit())
    assert (200, "text/event-stream", RETRY) == (waiting.status, waiting.headers["content-type"], bytes(waiting.body))
    assert (ORIGIN, "true") == tuple(
        waiting.headers[f"access-control-allow-{name}"] for name in ("origin", "credentials")
    )
    assert "access-control-allow-origin" not in resumed.headers
    assert 503 == health.status


@pytest.mark.parametrize(
    ("site", "kind"), [proxy(program, "https2") for program in PROGRAMS if program.name == "caddy"], indirect=["site"]
)
def test_caddy_reloads_its_file_while_streams_are_open(site, connect, cluster, topic):
    """The unit of Debian's package runs this command, which needs Caddy's admin address."""
    stream = connect(f"/streams/{topic}").ready()

    reload = [site.program.binary, "reload", "--force", "--adapter", "caddyfile", "--config", site.proxy.config]
    subprocess.run(reload, check=True)
    cluster.send(topic, b'{"n":1}')

    assert [1] == numbers(stream.events(1))


@pytest.mark.parametrize("program", [proxy(program) for program in PROGRAMS if program.name == "nginx"])
def test_a_rolling_restart_loses_no_event(program, broker, cluster, topic, tmp_path):
    """nginx.conf names two servers, which restart one after the other. Clients reconnect, and no request gets an error."""
    variables = {"KAFKASSE_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "KAFKASSE_RETRY_MS": "50"}
    is_finished = Event()

    def follow() -> list[int]:
        events = (event for event in Stream(f"{site}/{topic}?timestamp=0") if event.type == "message")
        return [json.loads(event.data)["n"] for event in islice(events, RECORDS)]

    def check() -> set[int]:
        statuses = set()
        while not is_finished.is_set():
            statuses.add(fetch(nginx.ports["http"], "/streams/-/health").status)
            gevent.sleep(0.02)
        return statuses

    with ExitStack() as exits:
        servers = [exits.enter_context(Server("tests.proxies.app:app()", **variables)) for _ in range(2)]
        second = (r"# server 10\.0\.0\.2:6917", f"server 127.0.0.1:{servers[1].port}")
        edited = replace(program, edits=(*program.edits, second))
        nginx = exits.enter_context(Proxy(edited, servers[0].port, tmp_path))
        site = f"http://127.0.0.1:{nginx.ports['http']}/streams"
        clients, checks = [gevent.spawn(follow) for _ in range(6)], gevent.spawn(check)
        wait_until(lambda: all(fetch(server.port, "/-/streams").json["streams"] for server in servers))
        for n in range(RECORDS):
            cluster.send(topic, b'{"n":%d}' % n)
            if n in (5, 10):  # while the server that is down is replaced, its clients are at the other one
                server = servers[n // 10]
                server.stop()
                servers[n // 10] = exits.enter_context(
                    Server("tests.proxies.app:app()", **variables, KAFKASSE_BIND=f"127.0.0.1:{server.port}")
                )
        received = gevent.joinall(clients, timeout=60)
        is_finished.set()

        assert [list(range(RECORDS))] * 6 == [client.value for client in received]
        assert {200} == checks.get()


@pytest.mark.parametrize("program", [proxy(program) for program in PROGRAMS if program.name == "nginx"])
def test_a_client_reads_with_long_polls_behind_a_proxy_that_holds_events_back(
    program, sites, cluster, topic, monkeypatch
):
    """nginx does so if it speaks HTTP/1.0 to the server, and ignores the header with which a stream asks it not to."""
    monkeypatch.setattr(fallback, "FIRST_EVENT_S", 1.0)
    buffers = (r"proxy_http_version 1.1", "proxy_http_version 1.0; proxy_ignore_headers X-Accel-Buffering")
    site = sites(replace(program, edits=(*program.edits, buffers)))
    reasons: list[str] = []
    url = f"http://127.0.0.1:{site.proxy.ports['http']}/streams/{topic}?timestamp=0"
    stream = Stream(url, on_state=lambda state: reasons.append(state.reason))
    events = (event for event in stream if event.type == "message")
    received = []

    for n in range(RECORDS):
        cluster.send(topic, b'{"n":%d}' % n)
        received.append(json.loads(next(events).data)["n"])
    stream.close()

    assert list(range(RECORDS)) == received
    assert any("continuing with long polls" in reason for reason in reasons)


@each_proxy
def test_a_thousand_streams_are_open_at_once(site, cluster, topic):
    with ExitStack() as exits:

        def open() -> Client:
            return exits.enter_context(Client(site.proxy.ports["http"], f"/streams/{topic}")).ready()

        opening = [gevent.spawn(open) for _ in range(STREAMS)]
        clients = [greenlet.get() for greenlet in opening]
        cluster.send(topic, b'{"n":1}')

        assert [[1]] * STREAMS == [numbers(client.events(1)) for client in clients]
