"""`kafkasse streams`: the list of open streams, and ending one. A real gunicorn serves them; none needs Kafka."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafkasse.process import runtime
from tests.commands.run import Done, Run
from tests.support.client import Client, fetch
from tests.support.server import Server
from tests.support.waiting import wait_until

APP = "tests.support.apps:in_memory()"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The private directory of the servers, in which the command finds them."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def server(processes: None, directory: Path) -> Iterator[Server]:
    with Server(APP, KAFKASSE_RUNTIME_DIR=str(directory), WEB_CONCURRENCY="2") as server:
        fetch(server.port, "/-/health")  # a worker is ready
        yield server


@pytest.fixture
def streams(run: Run, directory: Path) -> Run:
    return lambda *words: run("streams", *words, KAFKASSE_RUNTIME_DIR=str(directory))


@pytest.fixture
def connect(streams: Run) -> Iterator[Callable[..., Client]]:
    with ExitStack() as clients:
        yield lambda server, **headers: clients.enter_context(Client(server.port, "/t", **headers)).ready()
    wait_until(lambda: not streams("--json").out)


def listed(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def name_of(server: Server) -> str:
    return f"process {server.pid} at 127.0.0.1:{server.port}"


def test_lists_open_streams_and_ends_one(server, streams, connect):
    """The list contains the streams of all workers. The user may have other servers, so stderr names this one."""
    assert (0, "There are no open streams.\n", f"Server: {name_of(server)}\n") == streams()
    for number in range(3):
        connect(server, **{"X-Request-ID": f"r{number}"})

    first, *rest = listed(streams("--json"))
    ended = streams("end", first["id"])
    wait_until(lambda: "reason=operator" in server.log)
    code, out, err = streams()

    assert {"r0", "r1", "r2"} == {stream["request_id"] for stream in (first, *rest)}
    header, *rows = out.splitlines()
    assert (0, 0, f"Server: {name_of(server)}\n") == (ended.code, code, err)
    assert (["id", "route", "client"], False) == (header.split()[:3], "server" in header)
    assert {stream["id"] for stream in rest} == {row.split()[0] for row in rows}


def test_names_the_server_of_each_stream(server, streams, connect, directory):
    """With several servers, the table has a column for the server. The JSON objects always have it."""
    with Server(APP, KAFKASSE_RUNTIME_DIR=str(directory)) as other:
        fetch(other.port, "/-/health")
        for instance in (server, other):
            connect(instance)
        table, objects = streams(), streams("--json")

    names = [name_of(instance) for instance in (server, other)]
    header, *rows = table.out.splitlines()
    assert (0, 0) == (table.code, objects.code)
    assert {f"Server: {name}" for name in names} == set(table.err.splitlines())
    assert header.endswith("  server")
    assert names == [row[-len(name) :] for row, name in zip(rows, names, strict=True)]
    assert names == [stream["server"] for stream in listed(objects)]


def test_names_a_worker_that_does_not_answer(server, streams, connect, directory):
    """The list contains the other worker's streams. stderr names the process ID of the silent one. The exit code is 1."""
    wait_until(lambda: 2 == len(list(directory.glob("*/worker-*.sock"))))
    for _ in range(8):
        connect(server)
    all_streams = {stream["id"] for stream in listed(streams("--json"))}
    stopped, running = server.workers()
    os.kill(stopped, signal.SIGSTOP)
    try:
        listing, ended = streams("--json"), streams("end", f"{stopped}-0")
    finally:
        os.kill(stopped, signal.SIGCONT)

    of_running = {stream_id for stream_id in all_streams if stream_id.startswith(f"{running}-")}
    silent = f"kafkasse streams: no answer within 5 s from the workers with these process IDs: {stopped};"
    assert [1, 1] == [listing.code, ended.code]
    assert of_running == {stream["id"] for stream in listed(listing)}
    assert [True, True] == [done.err.startswith(silent) for done in (listing, ended)]


def test_shows_a_finite_read_without_a_lag(server, streams):
    """The table has a dash instead of the lag."""
    offset = fetch(server.port, "/t?offset=now").headers["stream-next-offset"]
    with socket.create_connection(("127.0.0.1", server.port)) as poll:
        poll.sendall(f"GET /t?offset={offset}&live=long-poll HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        wait_until(lambda: "finite_read" in streams().out)

        table = streams().out

    assert ["-", "finite_read"] == table.splitlines()[1].split()[-2:]


def test_a_stream_that_does_not_exist_is_an_error(server, streams):
    """The message names the command that lists the IDs."""
    code, _, err = streams("end", "1-1")

    assert (1, True) == (code, "no open stream 1-1; run kafkasse streams" in err)


def test_without_a_server_it_names_the_settings_and_the_directory(run, tmp_path):
    """The server may run without kafkasse's worker, or use another directory."""
    code, _, err = run("streams", KAFKASSE_RUNTIME_DIR=str(tmp_path))

    assert 1 == code
    assert f"found no server of this user in {tmp_path}" in err
    assert "gunicorn -c python:kafkasse.server.gunicorn_conf" in err


def test_a_server_without_workers_is_named(run, monkeypatch, tmp_path):
    """Its workers are still loading the app, or cannot load it."""
    monkeypatch.setenv("KAFKASSE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(runtime, "_lock", None)  # start() replaces it
    for variable in (runtime.FOLDER_VARIABLE, runtime.METRICS_VARIABLE):
        monkeypatch.setenv(variable, "")
    runtime.start(with_metrics=False)

    code, _, err = run("streams", KAFKASSE_RUNTIME_DIR=str(tmp_path))

    assert 1 == code
    assert f"no worker has loaded the app; wait, or read the log of the server: {runtime.folder()}" in err
