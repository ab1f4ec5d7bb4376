"""Lists and ends the open streams of all workers, through a Unix socket of each worker in the private directory.

A client sends one line, `list`, `end ID` or `end-visitor NAME`, and receives lines of JSON. An empty line ends the list, so
that the client notices a list that was cut off. `kafkasse streams`, /-/streams and end_streams() use these sockets.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkasse.process.open_streams import StreamRegistry

TIMEOUT_S = 5.0
MAX_COMMAND_BYTES = 8192
MAX_CONNECTIONS = 8
STREAMS_PER_PIECE = 50
RECV_BYTES = 65_536


def serve(path: Path, streams: StreamRegistry) -> Any:
    """Serve the open streams of this worker at a Unix socket. Return the server, which must be closed."""
    from gevent import Timeout
    from gevent.pool import Pool
    from gevent.server import StreamServer
    from gevent.socket import AF_UNIX
    from gevent.socket import socket as gevent_socket

    def handle(client: Any, address: Any) -> None:
        with Timeout(TIMEOUT_S, False), suppress(ConnectionError):  # the other process may not wait for the answer
            for data in _answer(_receive_line(client), streams):
                client.sendall(data)

    listener = gevent_socket(AF_UNIX)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(MAX_CONNECTIONS)
    server = StreamServer(listener, handle, spawn=Pool(MAX_CONNECTIONS))
    server.start()
    return server


def list_streams(sockets: Iterable[Path]) -> tuple[list[dict[str, Any]], list[Path]]:
    """Return the open streams of the workers with these sockets, oldest first, and the sockets of silent workers.

    A worker is silent if it does not send its whole list in time. A worker that has exited is not silent.
    """
    streams, silent = _ask_all(sockets, "list")
    return sorted(streams, key=lambda stream: float(stream["opened_at"])), silent


def stream_lines(sockets: Iterable[Path], silent: list[Path]) -> Iterator[list[bytes]]:
    """Yield the same streams as JSON, a few at a time: there may be 100,000, and parsing them would block the event loop.

    Appends the sockets of silent workers to `silent`.
    """
    for path in sockets:
        try:
            yield from _ask(path, "list")
        except TimeoutError:
            silent.append(path)


def end_stream(sockets: Iterable[Path], stream_id: str) -> tuple[bool, list[Path]]:
    """End the stream with this ID. Return whether a worker has it and, if none has, the sockets of silent workers."""
    paths = list(sockets)
    silent: list[Path] = []
    worker = f"worker-{stream_id.partition('-')[0]}"
    owners = [path for path in paths if path.stem == worker]  # asked first, so that it waits for no worker that hangs
    for asked in owners, [path for path in paths if path not in owners]:
        answers, timed_out = _ask_all(asked, f"end {stream_id}")
        if any(answer["ended"] for answer in answers):
            return True, []
        silent += timed_out
    return False, silent


def end_visitor(sockets: Iterable[Path], visitor: str) -> tuple[int, list[Path]]:
    """End the streams of a visitor. Return how many there were, and the sockets of silent workers."""
    command = f"end-visitor {json.dumps(visitor)}"
    if len(command) >= MAX_COMMAND_BYTES:
        raise ValueError(f"The name of the visitor is too long: {len(visitor)} characters.")
    answers, silent = _ask_all(sockets, command)
    return sum(int(answer["ended"]) for answer in answers), silent


def _ask_all(sockets: Iterable[Path], command: str) -> tuple[list[Any], list[Path]]:
    """Send a command to all workers at once. Return the lines of their answers, and the sockets of silent workers."""

    def ask(path: Path) -> list[Any] | None:
        try:
            return [json.loads(line) for lines in _ask(path, command) for line in lines]
        except TimeoutError:
            return None

    paths = list(sockets)
    with ThreadPoolExecutor(max_workers=max(1, len(paths))) as threads:  # a worker that hangs does not delay the others
        answers = dict(zip(paths, threads.map(ask, paths), strict=True))
    return list(chain.from_iterable(filter(None, answers.values()))), [path for path in paths if answers[path] is None]


def _receive_line(client: Any) -> str:
    received = b""
    while b"\n" not in received and len(received) < MAX_COMMAND_BYTES and (data := client.recv(MAX_COMMAND_BYTES)):
        received += data
    return received.partition(b"\n")[0].decode("ascii", "replace")


def _answer(command: str, streams: StreamRegistry) -> Iterator[bytes]:
    word, _, argument = command.partition(" ")
    if word == "end":
        yield json.dumps({"ended": streams.end(argument)}).encode() + b"\n"
    elif word == "end-visitor":
        yield json.dumps({"ended": streams.end_visitor(json.loads(argument))}).encode() + b"\n"
    elif word == "list":
        for lines in registry_lines(streams):
            yield b"".join(line + b"\n" for line in lines)
        yield b"\n"


def registry_lines(streams: StreamRegistry) -> Iterator[list[bytes]]:
    """Yield the streams of one registry as JSON, a few at a time. Other greenlets run in between."""
    from kafkasse.process.event_loop import take_turn

    statuses = streams.statuses()
    while lines := [json.dumps(status).encode() for status in islice(statuses, STREAMS_PER_PIECE)]:
        yield lines
        take_turn()


def _ask(path: Path, command: str) -> Iterator[list[bytes]]:
    """Send a command to one worker, and yield the lines of its answer, a few at a time; none if the worker has exited.

    Raises:
        TimeoutError: the worker did not send its whole answer in time.
    """
    rest, is_complete = b"", command != "list"
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(str(path))
            client.sendall(f"{command}\n".encode())
            while data := client.recv(RECV_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                is_complete |= lines[-1:] == [b""]
                yield [line for line in lines if line]
    except (ConnectionError, FileNotFoundError):
        return
    except OSError as error:  # such as EAGAIN: too many clients wait for this worker
        raise TimeoutError from error
    if not is_complete:
        raise TimeoutError
