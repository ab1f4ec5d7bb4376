"""`kafkasse streams`: the list of open streams, and ending one. A real gunicorn serves them; none needs Kafka."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkasse.commands import main
from kafkasse.server import runtime
from tests.support.client import Client, fetch
from tests.support.server import Server
from tests.support.waiting import wait_until


@pytest.fixture
def server(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose private directory the command finds."""
    monkeypatch.setenv("KAFKASSE_RUNTIME_DIR", str(tmp_path))
    with Server("tests.support.apps:in_memory()", KAFKASSE_RUNTIME_DIR=str(tmp_path), WEB_CONCURRENCY="2") as server:
        fetch(server.port, "/-/health")  # a worker is ready
        yield server


def test_lists_open_streams_and_ends_one(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The list contains the streams of all workers."""
    clients = [Client(server.port, "/t", **{"X-Request-ID": f"r{number}"}).ready() for number in range(3)]

    assert 0 == main(["streams", "--json"])
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"r0", "r1", "r2"} == {each["request_id"] for each in listed}

    assert 0 == main(["streams", "end", listed[0]["id"]])
    wait_until(lambda: "reason=operator" in server.log)
    capsys.readouterr()
    assert 0 == main(["streams"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert ["id", "route", "client"] == header.split()[:3]
    assert {each["id"] for each in listed[1:]} == {row.split()[0] for row in rows}
    for client in clients:
        client.close()


def test_names_the_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The user may have other servers, so stderr has the address and the process ID. stdout has only the table."""
    assert 0 == main(["streams"])
    empty = capsys.readouterr()
    client = Client(server.port, "/t").ready()
    assert 0 == main(["streams"])
    listed = capsys.readouterr()

    name = f"process {server.pid} at 127.0.0.1:{server.port}"
    assert (f"Server: {name}\n", "There are no open streams.\n") == (empty.err, empty.out)
    assert f"Server: {name}\n" == listed.err
    assert "server" not in listed.out
    client.close()


def test_names_the_server_of_each_stream(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With several servers, the table has a column for the server. The JSON objects always have it."""
    with Server("tests.support.apps:in_memory()", KAFKASSE_RUNTIME_DIR=str(tmp_path)) as other:
        fetch(other.port, "/-/health")
        clients = [Client(each.port, "/t", **{"X-Request-ID": f"r{each.port}"}).ready() for each in (server, other)]
        codes = [main(["streams"]), main(["streams", "--json"])]

        names = [f"process {each.pid} at 127.0.0.1:{each.port}" for each in (server, other)]
        printed = capsys.readouterr()
        header, *rows = printed.out.splitlines()[:3]
        streams = [json.loads(line) for line in printed.out.splitlines()[3:]]
        assert [0, 0] == codes
        assert {f"Server: {name}" for name in names} == set(printed.err.splitlines())
        assert header.endswith("  server")
        assert names == [row[-len(name) :] for row, name in zip(rows, names, strict=True)]
        assert names == [each["server"] for each in streams]
        for client in clients:
            client.close()


def test_names_a_worker_that_does_not_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The list contains the other worker's streams. stderr names the process ID of the silent one. The exit code is 1."""
    wait_until(lambda: [2] == [len(runtime.sockets(folder)) for folder in runtime.folders()])
    clients = [Client(server.port, "/t").ready() for _ in range(8)]
    assert 0 == main(["streams", "--json"])
    owners = {each["id"]: int(each["id"].partition("-")[0]) for each in map(json.loads, _lines(capsys))}
    stopped, running = server.workers()
    os.kill(stopped, signal.SIGSTOP)
    try:
        codes = [main(["streams", "--json"]), main(["streams", "end", f"{stopped}-0"])]
    finally:
        os.kill(stopped, signal.SIGCONT)

    printed = capsys.readouterr()
    assert [1, 1] == codes
    assert {each for each, pid in owners.items() if pid == running} == {
        json.loads(line)["id"] for line in printed.out.splitlines()
    }
    silent = f"kafkasse streams: no answer within 5 s from the workers with these process IDs: {stopped};"
    assert [silent, silent] == [line[: len(silent)] for line in printed.err.splitlines()]
    for client in clients:
        client.close()


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_a_stream_that_does_not_exist_is_an_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the command that lists the IDs."""
    assert 1 == main(["streams", "end", "1-1"])

    assert "no open stream 1-1; run kafkasse streams" in capsys.readouterr().err


def test_without_a_server_it_names_the_settings_and_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server may run without kafkasse's gunicorn settings, or use another directory."""
    monkeypatch.setenv("KAFKASSE_RUNTIME_DIR", str(tmp_path / "none"))

    assert 1 == main(["streams"])

    printed = capsys.readouterr().err
    assert f"found no server of this user in {tmp_path}" in printed
    assert "gunicorn -c python:kafkasse.server.gunicorn_conf" in printed
