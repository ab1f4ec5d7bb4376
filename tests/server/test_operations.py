"""Operators: metrics of all workers, and the list of their open streams. No test needs Kafka."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from kafkasse.process.runtime import BASE_VARIABLE, folders
from kafkasse.process.telemetry import metrics, multiprocess
from tests.server.conftest import IN_MEMORY, metric
from tests.support.client import Client, fetch
from tests.support.server import KILLED, Server
from tests.support.waiting import wait_until


def streams(server: Server) -> list[dict[str, object]]:
    return list(fetch(server.port, "/-/streams").json["streams"])


# Several workers.


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def workers(processes: None, runtime: Path) -> Iterator[Server]:
    with Server(IN_MEMORY, WEB_CONCURRENCY="2", KAFKASSE_RUNTIME_DIR=str(runtime)) as server:
        yield server


@pytest.fixture
def clients(workers: Server) -> Iterator[list[Client]]:
    """A client of each worker. No other stream is open."""
    wait_until(lambda: len(workers.workers()) == 2 and not streams(workers) and not metric(workers, "streams_open"))
    clients: list[Client] = []
    while len({str(stream["id"]).split("-")[0] for stream in streams(workers)}) < 2:
        clients.append(Client(workers.port, "/t").ready())
    yield clients
    for client in clients:
        client.close()


def test_any_worker_reports_the_streams_and_metrics_of_all(workers, clients):
    """A scrape reaches one worker. Each stream has its route, client, age, counts and state."""
    listing = streams(workers)

    assert len(clients) == len({stream["id"] for stream in listing})
    assert {("topics", "127.0.0.1", "parked", 0)} == {
        (stream["route"], stream["client"], stream["state"], stream["lag_records"]) for stream in listing
    }
    assert [len(clients)] * 10 == [metric(workers, "streams_open") for _ in range(10)]


def test_a_path_that_is_too_long_for_the_sockets_of_the_workers_is_reported(processes, tmp_path):
    """After a logout, streams in other workers would stay open, and nobody would know why."""
    runtime = tmp_path / ("a" * 100)
    with Server(IN_MEMORY, KAFKASSE_RUNTIME_DIR=str(runtime)) as server:
        wait_until(lambda: "Set KAFKASSE_RUNTIME_DIR to a shorter path" in server.log)


@pytest.mark.parametrize("folder", ["/proc/nope", "/dev/null"])
@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("KAFKASSE_RUNTIME_DIR", "private directory in {}: .*Set KAFKASSE_RUNTIME_DIR to"),
        ("PROMETHEUS_MULTIPROC_DIR", "metrics, {}: .*Remove PROMETHEUS_MULTIPROC_DIR, or set it to"),
    ],
)
def test_a_directory_that_cannot_be_created_is_reported(processes, folder, variable, line):
    with pytest.raises(AssertionError, match=line.format(folder)):
        Server(IN_MEMORY, **{variable: folder})


def test_ends_one_stream_of_any_worker(workers, clients):
    """The client receives its last event ID and a reconnection time; the others continue."""
    ended = streams(workers)[0]

    first, second = (fetch(workers.port, f"/-/streams/{ended['id']}", "DELETE").status for _ in range(2))

    assert (204, 404) == (first, second)
    wait_until(lambda: len(clients) - 1 == len(streams(workers)))
    wait_until(lambda: "reason=operator" in workers.log)


def test_a_killed_worker_leaves_its_counters_but_no_open_streams(workers, clients):
    """Counters never decrease, and the gauge returns to the number of streams that are really open."""
    opened = metric(workers, "streams_opened_total")
    killed = workers.workers()[0]
    lost = sum(str(stream["id"]).startswith(f"{killed}-") for stream in streams(workers))

    workers.expect(KILLED)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in workers.workers() and len(workers.workers()) == 2)

    assert 0 < lost < len(clients)
    wait_until(lambda: len(clients) - lost == metric(workers, "streams_open"))
    assert opened == metric(workers, "streams_opened_total")
    assert len(clients) - lost == len(streams(workers))


def test_a_reload_keeps_the_counters(workers, clients):
    """After SIGHUP, all workers are new. Their streams have ended, and the counters continue."""
    opened, before = metric(workers, "streams_opened_total"), workers.workers()

    workers.reload()
    wait_until(lambda: not set(before) & set(workers.workers()) and len(workers.workers()) == 2)

    assert 0 == metric(workers, "streams_open")
    assert opened == metric(workers, "streams_opened_total")
    assert all(client.rest() is not None for client in clients)


@pytest.mark.usefixtures("clients")
def test_scrapes_succeed_while_workers_die(workers, runtime):
    """Each response is complete, the counters never decrease, and the files of dead workers do not accumulate."""
    opened = metric(workers, "streams_opened_total")
    workers.expect(KILLED)
    counts = []
    for _ in range(3):
        os.kill(workers.workers()[0], signal.SIGKILL)
        for _ in range(10):
            try:
                counts.append(metric(workers, "streams_opened_total"))
            except ConnectionError:  # the worker that had accepted the connection was killed
                continue
        wait_until(lambda: len(workers.workers()) == 2)

    assert opened == metric(workers, "streams_opened_total")
    assert sorted(counts) == counts
    assert len(list(runtime.glob("*/metrics/counter_*.db"))) <= 3


# One worker.


def test_each_worker_that_fails_is_counted_by_reason(start):
    """Its successor answers. A worker that ends at SIGTERM, SIGQUIT or SIGINT has not failed."""
    server = start(GUNICORN_CMD_ARGS="--timeout 3")
    server.expect(KILLED, "WORKER TIMEOUT")

    def end(number: int) -> None:
        (worker,) = server.workers()
        os.kill(worker, number)
        wait_until(lambda: server.workers() not in ([], [worker]))
        fetch(server.port, "/-/health")  # gunicorn stops no worker that is still loading the app

    def failed() -> list[tuple[str, str]]:
        text = fetch(server.port, "/-/metrics").body.decode()
        return re.findall(r'^kafkasse_workers_failed_total{reason="(.*)"} (.*)$', text, re.MULTILINE)

    assert [("died", "0.0"), ("timeout", "0.0")] == failed()
    end(signal.SIGKILL)
    for number in signal.SIGTERM, signal.SIGQUIT, signal.SIGINT:
        end(number)
    end(signal.SIGSTOP)

    assert [("died", "1.0"), ("timeout", "1.0")] == failed()


def test_a_new_server_does_not_have_the_outdated_configuration_of_the_last_one(start, monkeypatch, tmp_path):
    """Both keep their metrics in the directory that the user has set. The last one was killed after a failed reload."""
    monkeypatch.setenv(multiprocess.VARIABLE, str(tmp_path))
    multiprocess.set_master_gauge(metrics.file_key("outdated_configuration"), 1)

    server = start(**{multiprocess.VARIABLE: str(tmp_path)})

    assert 0 == metric(server, "outdated_configuration")


def test_the_endpoints_exist_only_at_the_second_address(start, tmp_path):
    """They report stalls, and a request that gunicorn cannot parse. The log has the reason, and no part of it."""
    operations = tmp_path / "operations.sock"
    server = start(KAFKASSE_OPERATIONS_ACCESS="", KAFKASSE_OPERATIONS_BIND=f"unix:{operations}")
    request_id = fetch(server.port, "/t?last_event_id=" + "a" * 9_000).json["request_id"]

    for path in ("/-/metrics", "/-/streams"):
        public = fetch(server.port, path)
        assert (404, fetch(server.port, "/-/nothing").json["title"]) == (public.status, public.json["title"])
        assert b"200 OK" in ask(operations, path)
    assert 200 == fetch(server.port, "/-/health").status
    text = ask(operations, "/-/metrics").decode()
    assert 'requests_rejected_total{error="RequestTooLarge",status="414"} 1.0' in text
    assert "kafkasse_event_loop_stall_seconds_bucket" in text  # from the start, so that an alert can use it
    line = f"request_id={request_id} client=127.0.0.1 status=414 error=RequestTooLarge reason=LimitRequestLine"
    wait_until(lambda: f"A request was rejected: {line}" in server.log)


def ask(path: Path, target: str) -> bytes:
    """Send a GET request to a Unix socket, and return the response."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_bind_option_that_drops_the_second_address_is_an_error(start):
    """The server does not start, because its metrics would not be available."""
    with pytest.raises(AssertionError, match="--bind overrides KAFKASSE_OPERATIONS_BIND"):
        start(KAFKASSE_OPERATIONS_BIND="unix:operations.sock", GUNICORN_CMD_ARGS="--bind 127.0.0.1:0")


# Logs and request IDs.


def test_the_logs_have_the_request_id(start, tmp_path):
    """The line of a stream that has ended has the route and the reason. In JSON, each value is a member."""
    log = tmp_path / "access.log"
    server = start(KAFKASSE_LOG_FORMAT="json", KAFKASSE_ACCESS_LOG=str(log))

    with Client(server.port, "/t", **{"X-Request-ID": "req-1"}).ready():
        pass
    wait_until(lambda: "A stream ended" in server.log)
    fetch(server.port, "/-/health", **{"X-Request-ID": "req-2"})
    wait_until(lambda: log.exists() and log.read_text().count("\n") == 2)

    (ended,) = (json.loads(line) for line in server.log.splitlines() if "A stream ended" in line)
    assert ("req-1", "topics", "client_left") == (ended["request_id"], ended["route"], ended["reason"])
    assert ended["bytes"] > 0
    stream, health = map(json.loads, log.read_text().splitlines())
    assert ("req-1", "/t", 200) == (stream["request_id"], stream["path"], stream["status"])
    assert ("req-2", "/-/health", 200) == (health["request_id"], health["path"], health["status"])


def test_the_log_shows_the_code_that_stalls_the_event_loop(processes):
    """With gevent's monitor, which the alert's section names."""
    variables = {"GEVENT_MONITOR_THREAD_ENABLE": "1", "GEVENT_MAX_BLOCKING_TIME": "0.25"}
    with Server("tests.support.apps:stalling()", **variables) as server:
        fetch(server.port, "/stall")

        wait_until(lambda: re.search(r"appears to be blocked\n(.*\n)+.* in stall\n", server.log))


def test_the_server_survives_the_loss_of_its_private_directory(start, tmp_path, monkeypatch):
    """Some systems remove old temporary files. Only the owner can enter it, and a stopped server leaves nothing."""
    server = start()
    wait_until(lambda: list(tmp_path.glob("run/*/worker-*.sock")))
    (folder,) = (tmp_path / "run").iterdir()
    assert 0o700 == folder.stat().st_mode & 0o777
    assert 0 == metric(server, "streams_open")  # the worker has started, so it creates no more files
    shutil.rmtree(folder.parent)
    first = server.worker

    server.expect(KILLED)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.workers() not in ([], [first]))

    with Client(server.port, "/t").ready():
        assert 1 == metric(server, "streams_open")
    monkeypatch.setenv(BASE_VARIABLE, str(folder.parent))
    assert [folder] == folders()  # kafkasse streams finds it
    assert {0o700} == {path.stat().st_mode & 0o777 for path in (folder, folder.parent)}

    shutil.rmtree(folder)
    second = server.worker
    server.reload()
    wait_until(lambda: server.workers() not in ([], [second]))
    server.stop()
    assert [] == list((tmp_path / "run").iterdir())


def test_the_server_uses_another_directory_if_it_cannot_recreate_its_own(start, tmp_path):
    """Systems remove XDG_RUNTIME_DIR when the user logs out."""
    server = start(TMPDIR=str(tmp_path))
    wait_until(lambda: list(tmp_path.glob("run/*/worker-*.sock")))
    first = server.worker
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "run").touch()

    server.expect(KILLED)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: server.workers() not in ([], [first]))

    with Client(server.port, "/t").ready():
        assert 1 == metric(server, "streams_open")
    assert list(tmp_path.glob("kafkasse-*/*/lock"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_worker_that_cannot_be_replaced_does_not_end_the_server(processes, tmp_path, count):
    """For example, a file of keys is not valid. The master tries again until the app can be loaded."""
    failure = tmp_path / "failure"
    settings = {"KAFKASSE_RUNTIME_DIR": str(tmp_path / "run"), "WEB_CONCURRENCY": str(count), "FAILS": str(failure)}
    with Server("tests.support.apps:fragile()", **settings) as server:
        wait_until(lambda: len(list(tmp_path.glob("run/*/worker-*.sock"))) == count)
        failure.write_text("not valid")
        server.expect(KILLED, "This worker cannot load the app.* RuntimeError: not valid", "exited with code 1")

        os.kill(server.worker, signal.SIGKILL)
        wait_until(lambda: "exited with code 1" in server.log)

        with Client(server.port, "/t").ready() if count > 1 else nullcontext():
            failure.unlink()
            wait_until(lambda: len(list(tmp_path.glob("run/*/worker-*.sock"))) == count)
            with Client(server.port, "/t").ready():
                assert count == len(streams(server))
