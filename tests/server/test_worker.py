"""The gunicorn worker: how it stops, and how it responds without the app. No test needs Kafka."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from types import SimpleNamespace

import gevent
import pytest
from gevent.pool import Pool
from gunicorn.workers.ggevent import GeventWorker

from kafkasse.process import runtime
from kafkasse.server.kept_connections import KeptConnections
from kafkasse.server.worker import MAX_WAITING_CONNECTIONS, Worker
from tests.server.conftest import IN_MEMORY
from tests.support.client import READ_TIMEOUT_S, Client, fetch
from tests.support.server import Server
from tests.support.turns import TurnClock, poll_events
from tests.support.waiting import wait_until

WHILE_ONE_WORKER_STOPS = 100  # requests
CONNECTIONS = 400  # more than one turn of the event loop accepts


A, B = "https://a.example", "https://b.example"


@pytest.fixture(scope="module")
def origins(processes: None) -> Iterator[Server]:
    """A server that allows pages of one origin to send credentials."""
    with Server(IN_MEMORY, KAFKASSE_CORS_ORIGINS=A, KAFKASSE_CORS_CREDENTIALS="true") as server:
        yield server


# The start.


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("workers", ["1", "3"])
def test_the_server_ends_if_its_first_workers_cannot_load_the_app(workers):
    """A master without workers would accept connections and never answer. `make compat` runs this with an old gunicorn."""
    server = Server("broken:app", WEB_CONCURRENCY=workers)
    code = server.wait()

    assert (3, True) == (code, "Reason: Worker failed to boot." in server.log)


@pytest.mark.usefixtures("processes")
def test_the_server_ends_without_waiting_for_a_worker_that_fails_during_the_stop(tmp_path):
    """Before version 24, gunicorn would wait until graceful_timeout ends."""
    settings = {"WEB_CONCURRENCY": "2", "GUNICORN_CMD_ARGS": "--graceful-timeout 10000"}
    server = Server("tests.support.apps:failing()", FAILS=str(tmp_path / "workers"), **settings)

    assert 3 == server.wait()


# Kafka.


@pytest.mark.usefixtures("processes")
def test_one_worker_reports_at_the_start_that_kafka_cannot_be_reached():
    """Otherwise an operator would learn it from the first client. The line names the servers, and what to check."""
    with socket.socket() as reserved:  # no process listens there
        reserved.bind(("127.0.0.1", 0))
        servers = f"127.0.0.1:{reserved.getsockname()[1]}"
        environment = {"KAFKASSE_BOOTSTRAP_SERVERS": servers, "KAFKASSE_KAFKA_TIMEOUT_S": "1", "WEB_CONCURRENCY": "2"}
        with Server(**environment) as server:
            line = f"{servers}: Connection refused. If the brokers are running, check kafka.bootstrap_servers"
            wait_until(lambda: line in server.log)
            server.reload()
            wait_until(lambda: server.log.count(line) == 2)

    assert 2 == server.log.count("Kafka is unavailable.")


# The private directory.


def test_without_a_directory_that_all_workers_can_use_a_warning_says_what_does_not_work(tmp_path, monkeypatch, caplog):
    """With gunicorn's option --user, the workers could not read the directory of the master."""
    monkeypatch.setenv(runtime.BASE_VARIABLE, str(tmp_path))
    worker = Worker.__new__(Worker)
    worker.cfg, worker.log = SimpleNamespace(uid=os.geteuid() + 1), logging.getLogger("gunicorn.error")

    worker._start_runtime()

    assert [] == list(tmp_path.iterdir())
    assert "end_streams() ends only the streams of its own worker. With the option --user" in caplog.text


# Turns.


@pytest.mark.parametrize("method", ["handle", "handle_request"])
def test_each_turn_of_the_event_loop_handles_few_of_the_connections_that_arrive_at_once(monkeypatch, method):
    """Otherwise a lookup in Kafka, which needs several turns, would wait for the requests of thousands of clients."""
    clock = TurnClock(monkeypatch)
    turns: list[int] = []

    def parse(*_: object) -> None:
        turns.append(gevent.get_hub().loop.iteration)
        clock.compute()

    monkeypatch.setattr(GeventWorker, method, parse)
    worker = Worker.__new__(Worker)
    worker._kept = KeptConnections(1, worker._may_start)
    arguments = [SimpleNamespace(settimeout=lambda _: None)] * (3 if method == "handle" else 4)

    gevent.joinall([gevent.spawn(getattr(worker, method), *arguments) for _ in range(50)], raise_error=True)

    assert 50 == len(turns) == len(set(turns))


@pytest.mark.parametrize("callbacks_s", [0.000_001, 0.005])
def test_connections_wait_in_the_kernel_while_earlier_ones_wait_for_their_turn(monkeypatch, callbacks_s):
    """In the worker, each of ten thousand connections that arrive at once would take 15 KiB.

    While the event loop is busy, it accepts connections before it has started the greenlets of earlier ones.
    """
    clock = TurnClock(monkeypatch)
    waiting: list[int] = []

    def parse(worker: Worker, *_: object) -> None:
        waiting.append(worker._waiting_connections)
        clock.compute()

    monkeypatch.setattr(GeventWorker, "handle", parse)
    worker = Worker.__new__(Worker)
    worker.cfg, worker._listeners = SimpleNamespace(workers=1), []
    worker._kept = KeptConnections(1, worker._may_start)
    with ExitStack() as sockets:
        listener = sockets.enter_context(gevent.socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS))
        for _ in range(CONNECTIONS):
            sockets.enter_context(gevent.socket.create_connection(listener.getsockname()))
        server = worker.server_class(listener, Pool())

        default_s = gevent.getswitchinterval()
        gevent.setswitchinterval(callbacks_s)
        try:
            server.start()
            wait_until(lambda: len(waiting) == CONNECTIONS)
        finally:
            gevent.setswitchinterval(default_s)
            server.stop()

    assert max(waiting) < MAX_WAITING_CONNECTIONS + server.max_accept < CONNECTIONS


@pytest.mark.parametrize("lets_in", ["a public client", "an operator"])
def test_busy_clients_do_not_lock_out_others(monkeypatch, lets_in):
    """Requests of open connections let a public client in. New connections that wait let only an operator in."""
    clock = TurnClock(monkeypatch)
    handled: list[str] = []
    monkeypatch.setattr(GeventWorker, "handle", lambda *_: handled.append("new connection"))
    monkeypatch.setattr(GeventWorker, "handle_request", lambda *_: clock.compute())
    worker = Worker.__new__(Worker)
    worker.cfg, worker._listeners = SimpleNamespace(workers=1), []
    worker._kept = KeptConnections(1, worker._may_start)
    if lets_in == "an operator":
        worker._waiting_connections = MAX_WAITING_CONNECTIONS

    def keep_alive() -> None:
        while not handled:
            worker.handle_request(None, SimpleNamespace(), SimpleNamespace(settimeout=lambda _: None), None)

    with ExitStack() as sockets:
        listener = sockets.enter_context(gevent.socket.create_server(("127.0.0.1", 0)))
        if lets_in == "an operator":
            worker._operations_name = listener.getsockname()
        server = worker.server_class(listener, Pool())
        sockets.callback(gevent.killall, [gevent.spawn(keep_alive) for _ in range(CONNECTIONS)])
        poll_events()
        sockets.enter_context(gevent.socket.create_connection(listener.getsockname()))

        server.start()
        wait_until(lambda: handled)
        server.stop()


# Stopping.


def _statuses_until_refused(server: Server) -> Iterator[int]:
    try:
        while True:
            with Client(server.port, "/t") as client:
                yield client.status
    except ConnectionError:
        return


def test_a_stopping_worker_leaves_new_connections_to_the_other_workers(start):
    """Only the stopping worker closes its copy of the listener that all workers share."""
    server = start(WEB_CONCURRENCY="2")
    with Client(server.port, "/t").ready(), Client(server.port, "/t").ready():
        os.kill(server.worker, signal.SIGTERM)

        statuses = [fetch(server.port, "/-/health").status for _ in range(WHILE_ONE_WORKER_STOPS)]
        streams = [Client(server.port, "/t") for _ in range(WHILE_ONE_WORKER_STOPS)]
        for stream in streams:
            stream.close()

    assert {200} == set(statuses) | {stream.status for stream in streams}


@pytest.mark.usefixtures("processes")
def test_workers_that_a_reload_replaces_log_no_errors():
    """Each receives SIGTERM again while Python ends. In `make compat`, an old gevent's locks fail at this time."""
    with Server("tests.support.apps:signalled()") as server:
        replaced = server.workers()
        with Client(server.port, "/t").ready() as first, Client(server.port, "/t").ready() as second:
            server.reload()
            wait_until(lambda: not set(replaced) & set(server.workers()))
            first.rest()
            second.rest()

    assert "was sent SIGTERM" not in server.log


def test_a_server_that_drains_is_alive_but_not_ready(start):
    """New connections are refused. On open ones, a stream ends with a retry time: a browser gives up after a 503."""
    server = start(GUNICORN_CMD_ARGS="--keep-alive 60")  # the connections must stay open until the worker stops
    paths = "/-/ready", "/-/health", "/t"
    connections = [HTTPConnection("127.0.0.1", server.port, timeout=READ_TIMEOUT_S) for _ in paths]
    before = [_answer(connection, "/-/ready")[0] for connection in connections]
    with Client(server.port, "/t").ready() as stream:
        server.terminate()
        statuses = list(_statuses_until_refused(server))
        stream.rest()  # the worker is stopping by then

    ready, health, ended = (_answer(*request) for request in zip(connections, paths, strict=True))

    assert {200} >= set(statuses)
    assert ([200] * 3, 503, 200, 200) == (before, ready[0], health[0], ended[0])
    assert b"retry: " in ended[1]
    assert "close" == ended[2]


def _answer(connection: HTTPConnection, path: str) -> tuple[int, bytes, str | None]:
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read(), response.headers["Connection"]


# Responses without the app.


@pytest.mark.parametrize(
    ("status", "path", "fields"),
    [
        (414, "/t?" + "a" * 9_000, {}),
        (414, "/t?" + "a" * 30_000, {}),
        (431, "/t", {"X": "a" * 70_000}),
        (431, "/t", {f"X-{n}": "a" for n in range(200)}),
        (400, "/t", {"X Y": "a"}),
    ],
)
def test_a_page_of_an_allowed_origin_can_read_a_rejection_by_the_worker(origins, status, path, fields):
    """Otherwise the page would see a network error, and retry a request that can never succeed."""
    seen = []
    for origin in (A, B):
        answer = fetch(origins.port, path, Origin=origin, **fields)
        assert (status, "no-store", "nosniff") == (
            answer.status,
            answer.headers["cache-control"],
            answer.headers["x-content-type-options"],
        )
        assert status == answer.json["status"]
        assert "Origin" == answer.headers["vary"]
        seen.append(
            (answer.headers.get("access-control-allow-origin"), answer.headers.get("access-control-allow-credentials"))
        )

    assert [(A, "true"), (None, None)] == seen


def test_a_rejection_by_the_worker_does_not_wait_for_a_header_that_never_ends(origins):
    with socket.create_connection(("127.0.0.1", origins.port), READ_TIMEOUT_S) as connection:
        connection.sendall(b"GET /" + b"a" * 9_000)

        assert connection.recv(12) == b"HTTP/1.1 414"


# Other apps.


def test_serves_an_app_that_is_a_generator(processes):
    """Such an app has no status yet when it returns its body."""
    with Server("tests.support.apps:lazy") as server:
        response = fetch(server.port, "/")

    assert (200, b"ok") == (response.status, response.body)
