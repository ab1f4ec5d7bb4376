"""The list of open streams, for a worker with many of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from kafkasse.process import control
from kafkasse.process.open_streams import EndReason, StreamInfo, StreamRegistry
from tests.support.turns import MAX_LINES, most_lines_in_a_piece

STREAMS = 5_000


class Stream:
    def __init__(self) -> None:
        self.info = StreamInfo.new("a-request-id", "orders", "203.0.113.7", "visitor")
        self.ended = False

    def status(self) -> dict[str, Any]:
        return {**self.info._asdict(), "state": "parked", "events": 1, "bytes": 1000, "lag_records": 0}

    def end(self, reason: EndReason) -> None:
        self.ended = True

    def close(self) -> None:
        """Called when the process exits."""


@pytest.fixture
def streams() -> list[Stream]:
    return [Stream() for _ in range(STREAMS)]


@pytest.fixture
def path(streams: list[Stream], tmp_path: Path) -> Iterator[Path]:
    registry = StreamRegistry()
    for stream in streams:
        registry.add(stream)
    server = control.serve(tmp_path / "worker.sock", registry)
    yield tmp_path / "worker.sock"
    server.close()


def test_listing_many_streams_does_not_block_the_event_loop(path, streams):
    registry = StreamRegistry()
    for stream in streams:
        registry.add(stream)

    assert STREAMS == len(list(chain.from_iterable(control.stream_lines([path], []))))
    assert most_lines_in_a_piece(lambda: list(control.registry_lines(registry))) < MAX_LINES


def test_a_worker_that_has_exited_is_left_out(path, tmp_path):
    """Its socket may still exist when the list is made."""
    listed, silent = control.list_streams([tmp_path / "gone.sock", path])

    assert (STREAMS, []) == (len(listed), silent)


def test_a_list_that_is_cut_off_is_not_complete(path, monkeypatch):
    """A worker that does not finish in time closes the connection after a part of its list."""
    answer = control._answer
    monkeypatch.setattr(control, "_answer", lambda *arguments: islice(answer(*arguments), 2))

    assert ([], [path]) == control.list_streams([path])


@pytest.mark.parametrize("command", [b"", b"drop all\n", b"x" * 200, b"end \xff\n"])
def test_an_unknown_command_gets_no_answer(path, command):
    """The socket is private, but a mistake must not stop the worker."""
    from gevent import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(command)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1000), b""))

    assert answer == (json.dumps({"ended": False}).encode() + b"\n" if command.startswith(b"end") else b"")
