"""Operators: metrics of all workers, and the list of their open streams. Each test starts a gunicorn; none needs Kafka."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.client import Client, fetch
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until

APP = "tests.support.apps:in_memory()"


@pytest.fixture
def start(processes: None, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that are stopped after the test."""
    with ExitStack() as servers:
        yield lambda **environment: servers.enter_context(
            Server(APP, KAFKASSE_RUNTIME_DIR=str(tmp_path / "run"), **environment)
        )


def metric(server: Server, name: str) -> float:
    """Return the sum of a metric over its labels."""
    lines = fetch(server.port, "/-/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.split("[ {]", line)[0] == f"kafkasse_{name}")


def streams(server: Server) -> list[dict[str, object]]:
    return list(fetch(server.port, "/-/streams").json["streams"])


def open_on_all_workers(server: Server, count: int = 2) -> list[Client]:
    """Open streams until each worker has one."""
    clients: list[Client] = []
    while len({str(each["id"]).split("-")[0] for each in streams(server)}) < count:
        clients.append(Client(server.port, "/t").ready())
    return clients


# Metrics.


def test_any_worker_reports_the_metrics_of_all(start: Callable[..., Server]) -> None:
    """A scrape reaches one worker, and reports the streams of both."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)

    for _ in range(10):
        assert len(clients) == metric(server, "streams_open") == metric(server, "streams_opened_total")


def test_a_killed_worker_leaves_its_counters_but_no_open_streams(start: Callable[..., Server]) -> None:
    """Counters never decrease, and the gauge returns to the number of streams that are really open."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)
    killed = server.worker
    lost = sum(str(each["id"]).startswith(f"{killed}-") for each in streams(server))

    server.expect(KILLED)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in server.workers() and len(server.workers()) == 2)

    assert 0 < lost < len(clients)
    wait_until(lambda: len(clients) - lost == metric(server, "streams_open"))
    assert len(clients) == metric(server, "streams_opened_total")
    assert len(clients) - lost == len(streams(server))


def test_a_reload_keeps_the_counters(start: Callable[..., Server]) -> None:
    """After SIGHUP, all workers are new. Their streams have ended, and the counters continue."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)
    before = server.workers()

    server.reload()
    wait_until(lambda: not set(before) & set(server.workers()) and len(server.workers()) == 2)

    assert 0 == metric(server, "streams_open")
    assert len(clients) == metric(server, "streams_opened_total") == metric(server, "streams_closed_total")
    assert all(client.rest() is not None for client in clients)


def test_scrapes_succeed_while_workers_die(start: Callable[..., Server], tmp_path: Path) -> None:
    """Each response is complete, the counters never decrease, and the files of dead workers do not accumulate."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)
    server.expect(KILLED)
    counts = []
    for _ in range(6):
        os.kill(server.workers()[0], signal.SIGKILL)
        for _ in range(10):
            try:
                counts.append(metric(server, "streams_opened_total"))
            except ConnectionError:  # the worker that had accepted the connection was killed
                continue
        wait_until(lambda: len(server.workers()) == 2)

    assert len(clients) == metric(server, "streams_opened_total")
    assert sorted(counts) == counts
    assert len(list(tmp_path.glob("run/*/metrics/counter_*.db"))) <= 3


def test_measures_the_event_loop(start: Callable[..., Server]) -> None:
    """The histogram has its buckets from the start, so that an alert can use it."""
    server = start()
    with Client(server.port, "/t").ready():
        assert "kafkasse_event_loop_stall_seconds_bucket" in fetch(server.port, "/-/metrics").body.decode()


def test_counts_requests_that_the_worker_rejects(start: Callable[..., Server]) -> None:
    """gunicorn cannot parse these requests, so no app receives them."""
    server = start()
    fetch(server.port, "/t?" + "a" * 9_000)

    assert (
        'requests_rejected_total{error="RequestTooLarge",status="414"} 1.0'
        in fetch(server.port, "/-/metrics").body.decode()
    )


# Who may use the endpoints.


@pytest.mark.parametrize("path", ["/-/metrics", "/-/streams"])
def test_the_endpoints_exist_only_at_the_second_address(
    start: Callable[..., Server], tmp_path: Path, path: str
) -> None:
    """At the public address, they get the same 404 as an unknown path."""
    operations = tmp_path / "operations.sock"
    server = start(KAFKASSE_OPERATIONS_ACCESS="", KAFKASSE_OPERATIONS_BIND=f"unix:{operations}")

    public = fetch(server.port, path)

    assert (404, fetch(server.port, "/-/nothing").json["title"]) == (public.status, public.json["title"])
    assert 200 == fetch(server.port, "/-/health").status
    assert b"200 OK" in ask(operations, path)


def ask(path: Path, target: str) -> bytes:
    """Send a GET request to a Unix socket, and return the response."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_bind_option_that_drops_the_second_address_is_an_error(start: Callable[..., Server]) -> None:
    """The server does not start, because its metrics would not be available."""
    with pytest.raises(AssertionError, match="--bind overrides KAFKASSE_OPERATIONS_BIND"):
        start(KAFKASSE_OPERATIONS_BIND="unix:operations.sock", GUNICORN_CMD_ARGS="--bind 127.0.0.1:0")


# Streams.


def test_lists_the_streams_of_all_workers(start: Callable[..., Server]) -> None:
    """Each stream has its route, client, age, counts and state."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)

    found = streams(server)

    assert len(clients) == len({each["id"] for each in found})
    assert {("topics", "127.0.0.1", "parked", 0)} == {
        (each["route"], each["client"], each["state"], each["lag_records"]) for each in found
    }


def test_ends_one_stream_of_any_worker(start: Callable[..., Server]) -> None:
    """The client receives its last event ID and a reconnection time; the others continue."""
    server = start(WEB_CONCURRENCY="2")
    clients = open_on_all_workers(server)
    ended = streams(server)[0]

    first, second = (fetch(server.port, f"/-/streams/{ended['id']}", "DELETE").status for _ in range(2))

    assert (204, 404) == (first, second)
    wait_until(lambda: len(clients) - 1 == len(streams(server)))
    wait_until(lambda: "reason=operator" in server.log)


# Logs and request IDs.


def test_a_stream_logs_one_line_when_it_ends(start: Callable[..., Server]) -> None:
    """The line has the request ID, the route, the counts and the reason."""
    server = start(KAFKASSE_LOG_FORMAT="json")
    with Client(server.port, "/t", **{"X-Request-ID": "req-1"}).ready():
        pass
    wait_until(lambda: "A stream ended" in server.log)

    (line,) = (json.loads(each) for each in server.log.splitlines() if "A stream ended" in each)

    assert ("req-1", "topics", "client_left") == (line["request_id"], line["route"], line["reason"])
    assert line["bytes"] > 0


def test_the_access_log_has_the_request_id(start: Callable[..., Server], tmp_path: Path) -> None:
    """In JSON, each value is a member."""
    log = tmp_path / "access.log"
    server = start(KAFKASSE_LOG_FORMAT="json", KAFKASSE_ACCESS_LOG=str(log))

    fetch(server.port, "/-/health", **{"X-Request-ID": "req-2"})
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))

    (line,) = log.read_text().splitlines()
    assert ("req-2", "/-/health", 200) == tuple(json.loads(line)[name] for name in ("request_id", "path", "status"))


def test_the_private_directory_is_removed(start: Callable[..., Server], tmp_path: Path) -> None:
    """Only its owner can enter it, and a stopped server leaves nothing."""
    server = start()
    (folder,) = (tmp_path / "run").iterdir()
    assert 0o700 == folder.stat().st_mode & 0o777

    server.stop()

    assert [] == list((tmp_path / "run").iterdir())


def test_the_server_survives_the_loss_of_its_private_directory(start: Callable[..., Server], tmp_path: Path) -> None:
    """Some systems remove old files in the temporary directory. A worker that starts later has metrics again."""
    server = start()
    wait_until(lambda: list(tmp_path.glob("run/*/worker-*.sock")))
    shutil.rmtree(next((tmp_path / "run").iterdir()))
    first = server.worker

    server.expect(KILLED)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.workers() not in ([], [first]))

    with Client(server.port, "/t").ready():
        assert 1 == metric(server, "streams_open")
