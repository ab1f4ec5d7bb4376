"""Long polls that wait, over real sockets. Under our worker, they have no greenlet, and their connections continue."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from kafkasse.web.finite_reads import LONG_POLL_S
from tests.server.conftest import metric
from tests.support.client import READ_TIMEOUT_S, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until

APP = "tests.support.apps:polled()"
POLLS = 200
PLATFORM_LIMIT_S = 10


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    will_close: bool

    @property
    def values(self) -> list[Any]:
        values: list[Any] = json.loads(self.body)
        return values


class Connection:
    """A client that sends requests on one connection.

    Args:
        path: of the stream, with the parameters of all requests.
    """

    def __init__(self, port: int, path: str = "/t?", receive_buffer: int = 0, **headers: str) -> None:
        self.path, self.headers = path, {name.replace("_", "-"): text for name, text in headers.items()}
        self.offset = "now"
        self.connection = HTTPConnection("127.0.0.1", port, timeout=READ_TIMEOUT_S)
        self.connection.connect()
        self.socket = self.connection.sock
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.connection.request("GET", f"{path}&offset=now", headers=self.headers)
        self.receive()

    def poll(self, **headers: str) -> Connection:
        url = f"{self.path}&offset={self.offset}&live=long-poll"
        self.connection.request("GET", url, headers={**self.headers, **headers})
        return self

    def begin(self) -> HTTPResponse:
        return self.connection.response_class(self.socket, method="GET")

    def receive(self) -> Response:
        response = self.begin()
        response.begin()
        body = response.read()
        headers = {name.lower(): text for name, text in response.getheaders()}
        self.offset = headers.get("stream-next-offset", self.offset)
        self.connection._HTTPConnection__state = "Idle"  # type: ignore[attr-defined]
        return Response(response.status, headers, body, bool(response.will_close))

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "access.log"


@pytest.fixture(scope="module")
def server(processes: None, access_log: Path) -> Iterator[Server]:
    with Server(APP, KAFKASSE_ACCESS_LOG=str(access_log)) as server:
        yield server


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., Connection]]:
    with ExitStack() as clients:

        def connect(path: str = "/t?", port: int = 0, **options: Any) -> Connection:
            client = Connection(port or server.port, path, **options)
            clients.callback(client.close)
            return client

        yield connect


def counts(server: Server) -> dict[str, int]:
    numbers: dict[str, int] = fetch(server.port, "/counts").json
    return numbers


def wait_for_polls(server: Server, number: int, max_greenlets: int = 1_000) -> dict[str, int]:
    """Wait until this many polls wait, with at most so many greenlets. Return the counts of the app."""
    numbers: dict[str, int] = {}

    def has_polls() -> bool:
        numbers.update(counts(server))
        return numbers["waiting"] == number and numbers["greenlets"] <= max_greenlets

    wait_until(has_polls)
    return numbers


def append(server: Server, value: str, key: str = "", times: int = 1) -> None:
    fetch(server.port, f"/append?value={quote(value)}&key={key}&times={times}")


# The costs of a poll.


@pytest.mark.parametrize("query", ["", "hook=status", "hook=close", "middleware=start", "middleware=body"])
def test_a_poll_that_was_answered_leaves_no_object(server, connect, query):
    """The worker collects objects that live long only every few minutes, so none may refer to itself."""
    clients = [connect(f"/t?{query}") for _ in range(20)]
    before = counts(server)["objects"]
    for _ in range(3):
        for client in clients:
            client.poll()
        wait_for_polls(server, len(clients))
        append(server, "x")
        assert all(client.receive().values for client in clients)

    wait_until(lambda: counts(server)["objects"] <= before + 1)


def test_polls_that_wait_have_no_greenlets_and_cause_one_wake_up(serve, cluster: Cluster, topic, connect):
    """Two hundred polls at one offset are answered by one read and one encoding, twice on the same connections."""
    keeps_idle = {"GUNICORN_CMD_ARGS": "--keep-alive 600"}  # until the last client has connected
    server = serve(APP, keeps_idle, max_streams_per_client=1_000, public=True)
    clients = [connect(f"/{topic}?", port=server.port) for _ in range(POLLS)]
    for n in range(2):
        for client in clients:
            client.poll()
        before = wait_for_polls(server, POLLS, max_greenlets=20)
        cluster.send(topic, b'{"n":%d}' % n)

        responses = [client.receive() for client in clients]

        after = wait_for_polls(server, 0)
        assert {(200, responses[0].body)} == {(response.status, response.body) for response in responses}
        assert [n] == [message["n"] for message in json.loads(responses[0].body)]
        assert 1 == after["encoded"] - before.get("encoded", 0)
        assert n + 1 == after["reads"]
        assert POLLS == len({response.headers["x-request-id"] for response in responses})
        assert not any(response.will_close for response in responses)


def test_a_connection_that_waits_for_its_next_request_has_no_greenlet(server, connect):
    clients = [connect() for _ in range(20)]
    for client in clients:
        client.poll()
    wait_for_polls(server, 20, max_greenlets=10)
    append(server, "a")
    for client in clients:
        client.receive()

    assert counts(server)["greenlets"] <= 10


def test_a_connection_without_a_next_request_is_closed(processes):
    with Server(APP, GUNICORN_CMD_ARGS="--keep-alive 1") as server:
        client = Connection(server.port).poll()
        wait_for_polls(server, 1)
        append(server, "a")
        assert not client.receive().will_close

        assert b"" == client.socket.recv(1)
        client.close()


# The response.


def test_a_response_is_that_of_a_poll_with_a_greenlet(server, connect):
    """Middleware that wraps the body needs a greenlet. The headers are the same, except those of the time."""
    parked, waiting = connect().poll(), connect("/t?middleware=body").poll()
    wait_for_polls(server, 2)
    append(server, "a")

    first, second = parked.receive(), waiting.receive()

    for response in first, second:
        for name in "date", "x-request-id", "stream-cursor":
            del response.headers[name]
    assert first == second
    assert ["a"] == first.values


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("hook=header", "header"),
        ("hook=status", "200"),
        ("hook=body", None),
        ("middleware=start", "200 OK"),
        ("middleware=body&hook=header", "header"),
    ],
)
def test_hooks_and_middleware_see_the_response(server, connect, query, seen):
    client = connect(f"/t?{query}").poll()
    wait_for_polls(server, 1)
    append(server, "a")

    response = client.receive()

    assert (200, ["a"]) == (response.status, response.values)
    assert (seen or str(len(response.body))) == response.headers["x-seen"]
    assert ("hook=header" in query) == ("set-cookie" in response.headers)
    assert "content-length" in response.headers


def test_a_hook_can_replace_the_response(server, connect):
    client = connect("/t?hook=replace").poll()
    wait_for_polls(server, 1)
    append(server, "a")

    assert b"replaced" == client.receive().body
    wait_for_polls(server, 0)


def test_a_function_that_a_hook_adds_is_called_when_the_response_was_sent(server, connect):
    server.expect("The hook was called.")
    client = connect()
    client.path = "/t?hook=close"
    before = server.log.count("The hook was called.")
    client.poll()
    wait_for_polls(server, 1)
    assert before == server.log.count("The hook was called.")
    append(server, "a")
    assert ["a"] == client.receive().values

    wait_until(lambda: server.log.count("The hook was called.") == before + 1)


def test_a_function_of_a_hook_that_does_not_return_delays_no_other_client(server, connect):
    stuck = connect()
    stuck.path = "/t?hook=stuck"
    stuck.poll()
    wait_for_polls(server, 1)
    other = connect().poll()
    wait_for_polls(server, 2)

    append(server, "a")

    assert ["a"] == stuck.receive().values == other.receive().values


def test_the_access_log_contains_the_status_and_the_size(server, connect, access_log):
    client = connect("/t?logged").poll()
    wait_for_polls(server, 1)
    append(server, "a")
    client.receive()

    wait_until(lambda: re.search(r'/t\?logged\S*live=long-poll HTTP/1.1" 200 5 ', access_log.read_text()))


def test_a_poll_without_records_ends_with_204(processes):
    with Server(APP, LONG_POLL_S="0.1") as server:
        client = Connection(server.port).poll()

        response = client.receive()

        assert (204, b"", False) == (response.status, response.body, response.will_close)
        assert {"content-type", "content-length", "transfer-encoding"}.isdisjoint(response.headers)
        client.close()


def test_a_poll_without_records_ends_before_a_platform_cuts_it(processes):
    """Several platforms end each response after 10 s."""
    with Server(APP, LONG_POLL_S=str(LONG_POLL_S)) as server:
        client = Connection(server.port).poll()
        client.socket.settimeout(PLATFORM_LIMIT_S)

        assert 204 == client.receive().status
        client.close()


def test_a_visitor_receives_only_its_own_records(server, connect):
    """Polls of visitors at the same offset do not share an answer."""
    ada, bob = connect("/me?", x_user="ada").poll(), connect("/me?", x_user="bob").poll()
    wait_for_polls(server, 2)

    append(server, "for ada", key="ada")
    assert ["for ada"] == ada.receive().values
    wait_for_polls(server, 1)
    append(server, "for bob", key="bob")
    assert ["for bob"] == bob.receive().values


# Errors.


@pytest.mark.parametrize("query", ["", "&middleware=body", "&hook=status"])
def test_a_poll_ends_when_access_expires(server, connect, query):
    client, other = connect("/me?", x_user="ada"), connect("/me?", x_user="ada")
    client.path = f"/me?expires=1{query}"
    other.poll()

    response = client.poll().receive()

    assert (401, "no-store") == (response.status, response.headers["cache-control"])
    assert "application/problem+json" == response.headers["content-type"]
    assert response.headers["x-request-id"] == json.loads(response.body)["request_id"]
    assert "cross-origin-resource-policy" not in response.headers
    client.path = "/me?"
    client.poll()
    wait_for_polls(server, 2)
    append(server, "a", key="ada")  # the other client waits for the same read
    assert ["a"] == client.receive().values == other.receive().values


def test_an_operator_ends_a_poll(server, connect):
    client = connect().poll()
    wait_for_polls(server, 1)
    (stream,) = fetch(server.port, "/-/streams").json["streams"]
    fetch(server.port, f"/-/streams/{stream['id']}", "DELETE")

    response = client.receive()

    assert (503, True) == (response.status, response.will_close)
    assert 0 == metric(server, "streams_open")


def test_a_client_that_leaves_is_not_counted(server, connect):
    """At once, while another one waits for the same read."""
    leaving, staying = connect().poll(), connect().poll()
    wait_for_polls(server, 2)

    leaving.close()

    wait_for_polls(server, 1)
    assert 1 == metric(server, "streams_open")
    append(server, "a")
    assert ["a"] == staying.receive().values


@pytest.mark.parametrize("same_packet", [True, False])
def test_requests_that_a_client_sends_early_are_answered_in_order(server, connect, same_packet):
    """One in the same packet, or while the server waits."""
    client = connect()
    poll = f"GET /t?offset={client.offset}&live=long-poll HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    early = b"GET /t?offset=now HTTP/1.1\r\nHost: a\r\n\r\n"
    client.socket.sendall(poll + early if same_packet else poll)
    wait_for_polls(server, 1)
    if not same_packet:
        client.socket.sendall(early)
    append(server, "a")

    received = b""
    while not received.endswith(b"\r\n\r\n[]"):
        received += client.socket.recv(65_536)
    assert [b'["a"]HTTP/1.1 200 OK', b"[]"] == re.findall(rb"\r\n\r\n(.*)", received.replace(b"OK\r", b"OK\n"))


def test_a_client_that_closes_its_connections_gets_one_response(server, connect):
    client = connect().poll(Connection="close")
    wait_for_polls(server, 1)
    append(server, "a")

    response = client.receive()

    assert (["a"], True) == (response.values, response.will_close)
    assert b"" == client.socket.recv(1)


# Slow clients, and the end of the server.


def test_a_client_that_accepts_no_bytes_is_closed(processes):
    with Server(APP, KAFKASSE_WRITE_TIMEOUT_S="1", KAFKASSE_MAX_STREAMS="1") as server:
        client = Connection(server.port, receive_buffer=4096).poll()
        wait_for_polls(server, 1)
        append(server, "x" * 100, times=140_000)

        wait_for_polls(server, 0)
        client.close()


def test_a_client_that_reads_slowly_receives_its_chunk(server, connect):
    client = connect(receive_buffer=131_072).poll()
    wait_for_polls(server, 1)
    append(server, "x" * 100, times=140_000)

    assert ["x" * 14_000_000] == client.receive().values
    client.poll()
    wait_for_polls(server, 1)
    append(server, "a")
    assert ["a"] == client.receive().values


def test_a_poll_ends_when_the_server_stops(processes):
    with Server(APP) as server:
        client = Connection(server.port).poll()
        wait_for_polls(server, 1)
        server.terminate()

        response = client.receive()

        assert (204, True) == (response.status, response.will_close)
        assert b"" == client.socket.recv(1)
        client.close()


def test_a_stop_closes_idle_connections_and_waits_for_a_response_in_progress(processes):
    with Server(APP, GUNICORN_CMD_ARGS="--keep-alive 600 --graceful-timeout 600") as server:
        idle, reading = Connection(server.port).poll(), Connection(server.port, "/t?", 131_072).poll()
        wait_for_polls(server, 2)
        append(server, "x" * 100, times=140_000)
        idle.receive()
        server.terminate()

        assert b"" == idle.socket.recv(1)
        assert ["x" * 14_000_000] == reading.receive().values
        for client in (idle, reading):
            client.close()
