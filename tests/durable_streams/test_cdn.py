"""nginx and Varnish as a CDN: clients share chunks, and never receive those of another visitor."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from tests.durable_streams.cdn_app import PARTITIONS, RECORDS, VISITORS
from tests.proxies.proxies import CDNS, Program, Proxy
from tests.support.client import Client, fetch
from tests.support.server import Server
from tests.support.waiting import wait_until

CLIENTS = 20


class Site:
    """A server behind the CDN."""

    def __init__(self, server: Server, port: int, log: Path) -> None:
        self.server = server
        self.port = port
        self._log = log

    def get(self, path: str, **headers: str) -> Any:
        return fetch(self.port, f"/streams{path}", **headers)

    def read_to_end(self, path: str = "/t", offset: str = "-1", **headers: str) -> tuple[list[int], str]:
        """Return the numbers of all records, and the last offset."""
        numbers = []
        while True:
            response = self.get(f"{path}?offset={offset}", **headers)
            assert 200 == response.status
            numbers += [message["n"] for message in response.json]
            offset = response.headers["stream-next-offset"]
            if response.headers.get("stream-up-to-date"):
                return numbers, offset

    def open_reads(self) -> int:
        """How many finite reads and streams the server has."""
        metrics = fetch(self.server.port, "/-/metrics").body.decode()
        return sum(map(int, re.findall(r"^kafkasse_streams_open\{.*\} (\d+)", metrics, re.MULTILINE)))

    def requests(self) -> Counter[str]:
        """How often the server received each request target."""
        return Counter(re.findall(r'"GET (\S+) HTTP', self._log.read_text()))


@pytest.fixture(params=CDNS, ids=lambda program: program.name)
def site(processes: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    program: Program = request.param
    if not Path(program.binary).exists():
        pytest.skip(f"{program.name} is not installed: apt-get install {program.name}")
    log = tmp_path / "access.log"
    with (
        Server("tests.durable_streams.cdn_app:app()", KAFKASSE_ACCESS_LOG=str(log)) as server,
        Proxy(program, server.port, tmp_path) as proxy,
    ):
        yield Site(server, proxy.ports["http"], log)


def in_parallel(call: Callable[..., Any], *arguments: Any) -> list[Any]:
    tasks = [gevent.spawn(call, *arguments) for _ in range(CLIENTS)]
    return [task.get() for task in tasks]


def test_the_server_sends_each_full_chunk_once(site):
    """Many clients read all records at the same time, and later one reads them again."""
    results = in_parallel(site.read_to_end)
    results.append(site.read_to_end())

    assert all(list(range(PARTITIONS * RECORDS)) == sorted(numbers) for numbers, _ in results)
    full = {target: count for target, count in site.requests().items() if "offset=-1" not in target}
    full.pop(next(iter(reversed(full))))  # the last chunk
    assert {1} == set(full.values())
    assert PARTITIONS * 2 - 1 == len(full)


def test_long_polls_of_many_clients_are_one_request(site):
    """One request waits at the server, and its response goes to all clients."""
    _, offset = site.read_to_end()
    path = f"/t?offset={offset}&live=long-poll"
    polls = [gevent.spawn(site.get, path) for _ in range(CLIENTS)]
    fetch(site.server.port, "/-/append", "POST")

    responses = [poll.get() for poll in polls]

    assert [[-1]] * CLIENTS == [[message["n"] for message in response.json] for response in responses]
    wait_until(lambda: site.requests()[path])  # the server writes the line after the response
    assert 1 == site.requests()[path]


def test_one_request_replaces_an_outdated_response_to_a_long_poll(site):
    """Those that arrive meanwhile do not reach the server, which would otherwise get one from each client that is late."""
    _, offset = site.read_to_end()
    path = f"/t?offset={offset}&live=long-poll"
    assert 204 == site.get(path).status
    polls = []

    def is_outdated() -> bool:
        polls.append(gevent.spawn(site.get, path))
        return bool(site.open_reads())

    wait_until(is_outdated)
    late = [gevent.spawn(site.get, path) for _ in range(CLIENTS)]
    assert {204} == {poll.get().status for poll in late}
    fetch(site.server.port, "/-/append", "POST")

    assert {200, 204} >= {poll.get().status for poll in polls}
    wait_until(lambda: site.requests()[path] > 1)
    assert 2 == site.requests()[path]


@pytest.mark.parametrize("login", [{}, {"Cookie": "__Host-token=x"}], ids=["from now on", "with a login"])
def test_requests_with_responses_of_their_own_do_not_wait_for_each_other(site, login):
    """A request from now on that waited would begin at a later end of the log, and miss the record of the first one."""
    offset = site.read_to_end()[1] if login else "now"
    polls = [gevent.spawn(site.get, f"/t?offset={offset}&live=long-poll", **login) for _ in range(CLIENTS)]

    wait_until(lambda: site.open_reads() == CLIENTS)
    fetch(site.server.port, "/-/append", "POST")
    assert [(200, 1)] * CLIENTS == [(poll.get().status, len(poll.get().json)) for poll in polls]


def test_no_visitor_receives_the_records_of_another(site):
    """Although they request the same URLs through the same cache, at the same time and one after the other."""
    expected = {name: list(range(at, PARTITIONS * RECORDS, 2)) for at, name in enumerate(VISITORS)}

    def read(name: str) -> list[int]:
        return sorted(site.read_to_end("/me", **{"X-Visitor": name})[0])

    for _ in range(2):
        assert expected == {name: read(name) for name in VISITORS}
    tasks = [(name, gevent.spawn(read, name)) for name in VISITORS * 2]
    assert all(expected[name] == task.get() for name, task in tasks)
    assert 401 == site.get("/me?offset=-1").status


def test_streams_of_browsers_pass_through(site):
    """A long event ID reaches the server. While no server runs, a browser gets an empty stream, and reconnects."""
    long_id = json.dumps([{"topic": "t", "partition": n, "offset": 10**12} for n in range(1_000)])
    assert "application/problem+json" == site.get("/t", Last_Event_ID=long_id).headers["content-type"]

    site.server.stop()

    response = site.get("/t", Accept="text/event-stream", Origin="https://shop.example")
    assert (200, b"retry: 3000\n\n") == (response.status, response.body)
    assert "https://shop.example" == response.headers["access-control-allow-origin"]
    assert 503 == site.get("/t?offset=-1").status


def test_streams_pass_through(site):
    """A stream has no end, so other clients must not wait for it. The server rejects OFFSET as misspelled."""
    for path in (
        "/streams/t",
        "/streams/t?my.offset=-1",
        "/streams/t?offset=now&live=sse",
        "/streams/t?offset=now&l%69ve=sse",
    ):
        with Client(site.port, path) as first, Client(site.port, path) as second:
            for client in (first, second):
                client.read_until_text(b"data:")
                assert 200 == client.status
    assert 400 == fetch(site.port, "/streams/t?OFFSET=-1").status
