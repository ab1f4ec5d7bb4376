"""Lists and ends the open streams of all workers, through a Unix socket of each worker in the private directory.

A client sends one line, `list` or `end ID`, and receives lines of JSON. `kafkasse streams` and /-/streams use it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkasse.web.registry import StreamRegistry

TIMEOUT_S = 5.0
MAX_COMMAND_BYTES = 256
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
        with Timeout(TIMEOUT_S, False):
            for data in _answer(_receive_line(client), streams):
                client.sendall(data)

    listener = gevent_socket(AF_UNIX)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    listener.listen(MAX_CONNECTIONS)
    server = StreamServer(listener, handle, spawn=Pool(MAX_CONNECTIONS))
    server.start()
    return server


def list_streams(sockets: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the open streams of the workers with these sockets, oldest first. Workers that do not answer are left out."""
    streams = [stream for path in sockets for stream in _ask(path, "list")]
    return sorted(streams, key=lambda stream: float(stream["opened_at"]))


def end_stream(sockets: Iterable[Path], stream_id: str) -> bool:
    """End the stream with this ID. Return whether a worker has such a stream."""
    return any(answer["ended"] for path in sockets for answer in _ask(path, f"end {stream_id}"))


def _receive_line(client: Any) -> str:
    received = b""
    while b"\n" not in received and len(received) < MAX_COMMAND_BYTES and (data := client.recv(MAX_COMMAND_BYTES)):
        received += data
    return received.partition(b"\n")[0].decode("ascii", "replace")


def _answer(command: str, streams: StreamRegistry) -> Iterator[bytes]:
    from kafkasse.event_loop import take_turn

    word, _, stream_id = command.partition(" ")
    if word == "end":
        yield _line({"ended": streams.end(stream_id)})
    elif word == "list":
        lines: list[bytes] = []
        for status in streams.statuses():
            lines.append(_line(status))
            if len(lines) == STREAMS_PER_PIECE:
                yield b"".join(lines)
                take_turn()
                lines.clear()
        yield b"".join(lines)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _ask(path: Path, command: str) -> list[dict[str, Any]]:
    """Send a command to one worker, and return its answer: [] if the worker has just exited or does not answer in time."""
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(TIMEOUT_S)
            client.connect(str(path))
            client.sendall(f"{command}\n".encode())
            while data := client.recv(RECV_BYTES):
                received += data
    except OSError:
        return []
    return [json.loads(line) for line in received.split(b"\n")[:-1]]
